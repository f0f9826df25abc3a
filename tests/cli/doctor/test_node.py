"""What the doctor makes of GPUs, cgroups, labels and the name of a node."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from stoker.adapters.entropy import SystemEntropy
from stoker.agent.settings import AgentSettings, ExecutorSettings, GpuSettings, NodeSettings
from stoker.brain.domain.ids import GpuUuid
from stoker.cli.doctor import node
from stoker.cli.doctor.finding import CheckResult, Level
from stoker.ports import GpuFault, ProbedGpu, ProbeResult
from stoker.wire.token import fresh_token

GPU = ProbedGpu(uuid=GpuUuid("GPU-1"), index=0, model="NVIDIA H100", memory_mb=81_559)


def levels(said: Iterable[CheckResult]) -> list[Level]:
    return [each.level for each in said]


def test_a_gpu_that_cannot_be_read_is_told_beside_those_that_can() -> None:
    told = list(node.found(ProbeResult(gpus=(GPU,), faults=(GpuFault(where="GPU-2", error="fell off the bus"),))))
    assert levels(told) == [Level.WARNING, Level.OK]
    assert "GPU-2: fell off the bus" in told[0].what


def test_simulated_gpus_are_doubtful_on_a_real_node() -> None:
    (said,) = node.found(ProbeResult(gpus=(GPU,), simulated=True))
    assert said.level is Level.WARNING


def test_devices_without_a_program_that_lists_them_are_an_error() -> None:
    assert node.none_found(devices=True).level is Level.ERROR
    assert node.none_found(devices=False).level is Level.WARNING


def test_gpus_that_a_variable_hides_are_told_with_it() -> None:
    (said,) = node.found(ProbeResult(gpus=(), hidden="CUDA_VISIBLE_DEVICES='' in the agent's environment: ..."))
    assert (said.level, said.what.startswith("CUDA_VISIBLE_DEVICES=''")) == (Level.WARNING, True)


def test_a_missing_script_of_gpus_is_told_as_the_agent_would(tmp_path: Path) -> None:
    settings = AgentSettings(gpu=GpuSettings(script=str(tmp_path / "gpus.yaml")))
    (said,) = node.gpus(settings)
    assert said.level is Level.ERROR
    assert "gpus.yaml" in said.what


def test_nvidia_smi_that_is_wanted_and_missing_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (said,) = node.gpus(AgentSettings(gpu=GpuSettings(detection="nvidia-smi")))
    assert (said.level, "PATH" in said.what) == (Level.ERROR, True)


def test_every_label_and_taint_that_could_not_be_used_is_named() -> None:
    told = list(node.labels({"zone": "a", "-bad": "x", "ok": "no way"}, ("gpu=old:NoSchedule", "x:Sometimes")))
    assert levels(told) == [Level.ERROR] * 3
    assert levels(node.labels({"zone": "a"}, ())) == [Level.OK]


def test_a_token_file_is_read_as_the_agent_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(fresh_token(SystemEntropy()))
    path.chmod(0o644)
    (said,) = node.token_file(str(path))
    assert (said.level, "chmod 600" in said.fix) == (Level.ERROR, True)
    path.chmod(0o600)
    assert levels(node.token_file(str(path))) == [Level.OK]
    assert levels(node.token_file("")) == [Level.WARNING]


def test_a_name_that_cannot_be_a_nodes_is_told() -> None:
    (said,) = node.name(AgentSettings(node=NodeSettings(name="gpu-07")))
    assert (said.level, "gpu-07" in said.what) == (Level.OK, True)


@pytest.mark.parametrize(
    ("state", "level"),
    [
        (node.CgroupState(0, "", False, False), Level.WARNING),
        (node.CgroupState(2, "/sys/fs/cgroup/x", False, True), Level.WARNING),
        (node.CgroupState(2, "/sys/fs/cgroup/x", True, False), Level.WARNING),
        (node.CgroupState(2, "/sys/fs/cgroup/x", True, True), Level.OK),
        (node.CgroupState(1, "/sys/fs/cgroup/freezer", True, True), Level.OK),
    ],
)
def test_cgroups_are_judged_by_what_a_job_would_miss(state: node.CgroupState, level: Level) -> None:
    assert levels(node.cgroups(state)) == [level]


def machine(root: Path, mounts: str, own: str) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/mountinfo").write_text(mounts)
    (root / "proc/self/cgroup").write_text(own)
    return root


def test_version_two_is_read_where_it_can_kill(tmp_path: Path) -> None:
    own = tmp_path / "sys/fs/cgroup/system.slice/agent"
    own.mkdir(parents=True)
    for name in ("cgroup.procs", "cgroup.kill"):
        (own / name).touch()
    (own / "cgroup.controllers").write_text("cpu memory pids\n")
    line = "30 22 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
    found = node.cgroup_state(machine(tmp_path, line, "0::/system.slice/agent\n"))
    assert found == node.CgroupState(2, str(own), True, True)


def test_version_one_is_read_where_version_two_is_only_mounted(tmp_path: Path) -> None:
    lines = (
        "30 22 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
        "31 22 0:27 / /sys/fs/cgroup/freezer rw - cgroup freezer rw,freezer\n"
        "32 22 0:28 / /sys/fs/cgroup/memory rw - cgroup memory rw,memory\n"
    )
    (tmp_path / "sys/fs/cgroup/freezer").mkdir(parents=True)
    found = node.cgroup_state(machine(tmp_path, lines, "0::/\n3:freezer:/\n"))
    assert (found.version, found.memory) == (1, True)


def test_a_machine_without_cgroups_has_none(tmp_path: Path) -> None:
    found = node.cgroup_state(machine(tmp_path, "22 1 254:1 / / rw - ext4 /dev/root rw\n", ""))
    assert found.version == 0


def test_a_checkpoint_folder_is_judged_as_named(tmp_path: Path) -> None:
    def level(named: str) -> Level:
        (said,) = node.checkpoint_dir(ExecutorSettings(checkpoint_dir=named).checkpoint_dir, tmp_path)
        return said.level

    assert level("/dev/shm") is Level.OK  # another file system
    assert level("") is level(str(tmp_path)) is Level.WARNING  # a job could fill the agent's disk
    assert level("relative") is level(str(tmp_path / "gone")) is Level.WARNING


def test_a_folder_for_working_directories_is_judged_as_named(tmp_path: Path) -> None:
    def said(named: str) -> tuple[Level, str]:
        (finding,) = node.work_dir(named, tmp_path)
        return finding.level, finding.what

    assert said("/dev/shm")[0] is Level.OK  # another file system
    for named in ("", str(tmp_path)):
        assert said(named)[0] is Level.WARNING
        assert "a job that fills that disk keeps this node from starting tasks" in said(named)[1]
    assert said(str(tmp_path / "gone"))[0] is Level.WARNING


def test_a_prolog_that_others_could_change_is_found(tmp_path: Path) -> None:
    (fine,) = node.site_programs(ExecutorSettings())
    assert fine.what == "no prolog or epilog"
    program = tmp_path / "prolog"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    (fine,) = node.site_programs(ExecutorSettings(prolog=str(program)))
    assert fine.what == f"around each task, 60 s at most: prolog {program}"
    program.chmod(0o777)
    (wrong,) = node.site_programs(ExecutorSettings(prolog=str(program)))
    assert wrong.what.startswith(f"executor.prolog: {program} may be changed by others")


def test_limits_of_jobs_that_this_account_may_not_give_are_found() -> None:
    (fine,) = node.limits(AgentSettings())
    assert fine.what == "jobs get umask 022, and as limits those of the agent"
    (wrong,) = node.limits(AgentSettings(executor=ExecutorSettings(limits={"nofile": "unlimited"})))
    assert wrong.level is Level.ERROR
    assert wrong.what.startswith("executor.limits: nofile: unlimited is ")


def test_a_bound_that_no_file_system_keeps_is_found(tmp_path: Path) -> None:
    def said(bound_gb: int) -> list[tuple[Level, str]]:
        executor = ExecutorSettings(folder_max_gb=bound_gb, checkpoint_dir="/dev/shm")
        found = node.folder_bound(AgentSettings(data_dir=tmp_path, executor=executor))
        return [(finding.level, finding.what) for finding in found]

    assert [level for level, _ in said(0)] == [Level.OK]
    (level, what), *_ = said(5)  # which is memory, and has no project quotas
    assert level is Level.WARNING
    assert what.startswith("/dev/shm ")
