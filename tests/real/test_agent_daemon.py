"""The agent as a daemon: real processes, a real runner, a real control plane; killed, stopped, started wrongly."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.real.agent_process import AgentProcess, alive, job, rss_mb, submit, until, until_state
from tests.real.control_process import ControlProcess
from tests.real.forks import ran_text
from tests.real.runner_node import parent_of
from tests.real.say import Say

AGENT_RSS_MB_MAX = 50.0
RUNNER_RSS_MB_MAX = 15.0
GUARD_RSS_MB_MAX = 13.0
"""Two thirds of it are the runner's own pages."""
FOUR_GPUS = Path(__file__).resolve().parents[2] / "examples" / "local" / "fake-nvidia-smi"
SIGNAL_FILE = "while [ ! -e {file} ]; do sleep 0.05; done; exit {code}"


@pytest.fixture
def control(tmp_path: Path) -> Iterator[ControlProcess]:
    with ControlProcess(tmp_path / "control") as control:
        yield control


@pytest.fixture
def agent(tmp_path: Path, control: ControlProcess) -> Iterator[AgentProcess]:
    with AgentProcess(tmp_path / "node-1", control) as agent:
        yield agent


def test_a_job_runs_in_a_real_process_and_sees_its_node(
    control: ControlProcess, agent: AgentProcess, tmp_path: Path
) -> None:
    said = tmp_path / "said"
    command = f'echo "$STOKER_NODE $CUDA_VISIBLE_DEVICES $STOKER_CHECKPOINT_DIR $HOME" > {said} && false || exit 7'
    done = until_state(control, submit(control, command), "failed")
    assert done["exit_code"] == 7
    node, gpu, checkpoints, home = said.read_text().split()
    assert (node, home) == ("node-1", os.path.expanduser("~"))
    assert gpu.startswith("GPU-")
    with control.client() as client:
        cluster = client.health().cluster_id
    assert checkpoints == str(agent.data_dir / "checkpoints" / f"{done['id']}.{cluster[-12:]}")


def test_output_of_a_forgotten_job_is_read_from_its_node_for_as_long_as_that_keeps_it(tmp_path: Path) -> None:
    """`status` says `stoker logs ID`, and that said that the record was gone."""
    with (
        ControlProcess(tmp_path / "control", ended_max=1) as control,
        AgentProcess(tmp_path / "node-1", control) as agent,
    ):
        say = Say(control.url, control.tokens.admin)
        first, second = say.submit("--wait", "--", "echo kept"), say.submit("--wait", "--", "true")
        until(lambda: say("cancel", first).exit_code == 3, "the first is forgotten")
        assert say("status", first).exit_code == 0
        for words in (("logs",), ("logs", "-f"), ("logs", "--tail", "1")):
            assert say(*words, first).stdout == "kept\n"
        for file in (agent.data_dir / "output").glob(f"{first}.*"):
            file.unlink()
        gone = say("logs", first)
        assert (gone.exit_code, gone.stdout) == (4, "")
        assert "none is kept there any more" in gone.stderr
        assert "24 hours" in gone.stderr
        assert say("logs", "-f", first).exit_code == 4
        assert say("logs", second).exit_code == 0


def test_a_forgotten_member_that_is_requeued_runs_on_the_node_that_knows_its_first_attempt(tmp_path: Path) -> None:
    with ControlProcess(tmp_path / "control", ended_max=1) as control, AgentProcess(tmp_path / "node-1", control):
        say = Say(control.url, control.tokens.admin)
        array = say.submit("--array", "0-1", "--", "echo attempt $STOKER_ATTEMPT; [ $STOKER_ATTEMPT = 2 ]")
        assert say("wait", array).exit_code == 1
        remembered = "/api/v1/jobs?members=true&state=succeeded,failed"
        until(lambda: control.ask("GET", remembered)[1]["total"] == 0, "its members are forgotten")
        assert say("requeue", array).exit_code == 0
        assert say("logs", "-f", f"{array}_0").stdout == "attempt 2\n"
        assert say("wait", array).exit_code == 0
        assert "2 members, 2 succeeded" in say("status", array).stdout


def test_a_killed_agent_readopts_its_job_with_the_exit_code(
    control: ControlProcess, agent: AgentProcess, tmp_path: Path
) -> None:
    """Fault 34, twice: the job ends once while there is an agent again, and once while there is none."""
    files = [tmp_path / "one", tmp_path / "two"]
    jobs = [submit(control, SIGNAL_FILE.format(file=file, code=40 + i)) for i, file in enumerate(files)]
    for job_id in jobs:
        until_state(control, job_id, "running")
    agent.kill()
    files[0].touch()
    agent.start()
    assert until_state(control, jobs[0], "failed")["exit_code"] == 40
    files[1].touch()
    ended = until_state(control, jobs[1], "failed")
    assert ended["exit_code"] == 41
    assert [len(job(control, job_id)["attempts"]) for job_id in jobs] == [1, 1]


def test_a_stopped_agent_leaves_its_job_running(control: ControlProcess, agent: AgentProcess, tmp_path: Path) -> None:
    file = tmp_path / "go"
    job_id = submit(control, SIGNAL_FILE.format(file=file, code=0))
    until_state(control, job_id, "running")
    assert agent.terminate() == 0
    assert alive(agent.runner_pid)
    assert job(control, job_id)["state"] == "running"
    agent.start()
    file.touch()
    assert len(until_state(control, job_id, "succeeded")["attempts"]) == 1


def test_a_suspended_agent_starts_its_job_once_it_goes_on(control: ControlProcess, agent: AgentProcess) -> None:
    """Fault 21: the machine slept; the assigned job must not stay assigned for ever."""
    until_state(control, submit(control, "true"), "succeeded")  # it is registered, and its tasks were compared
    os.kill(agent.pid, signal.SIGSTOP)
    job_id = submit(control, "true")
    until(lambda: job(control, job_id)["state"] == "starting", "placed on the sleeping node")
    os.kill(agent.pid, signal.SIGCONT)
    assert len(until_state(control, job_id, "succeeded")["attempts"]) == 1


def test_a_killed_control_plane_finds_the_job_running(
    control: ControlProcess, agent: AgentProcess, tmp_path: Path
) -> None:
    file = tmp_path / "go"
    job_id = submit(control, SIGNAL_FILE.format(file=file, code=5))
    until_state(control, job_id, "running")
    control.kill()
    file.touch()
    until(lambda: "control_plane_unreachable" in agent.output(), "the agent notices")
    control.start()
    ended = until_state(control, job_id, "failed")
    assert (ended["exit_code"], len(ended["attempts"])) == (5, 1)


def test_a_killed_runner_ends_the_attempt_and_the_job_runs_again(
    control: ControlProcess, agent: AgentProcess, tmp_path: Path
) -> None:
    file = tmp_path / "go"
    job_id = submit(control, SIGNAL_FILE.format(file=file, code=0))
    until_state(control, job_id, "running")
    os.kill(agent.runner_pid, signal.SIGKILL)
    until(lambda: len(job(control, job_id)["attempts"]) == 2, "a second attempt")
    file.touch()
    ended = until_state(control, job_id, "succeeded")
    assert ended["attempts"][0]["outcome"] == "node_failed"


def test_a_second_agent_on_the_folder_names_the_first(control: ControlProcess, agent: AgentProcess) -> None:
    until(lambda: "agent_registered" in agent.output(), "registered")
    second = ran_text([sys.executable, "-m", "stoker", "agent", "-c", str(agent.settings)], timeout_s=30)
    assert second.returncode != 0
    assert f"held by process {agent.pid}" in second.stderr + second.stdout
    assert "Traceback" not in second.stderr


def test_a_data_folder_that_cant_be_made_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    agent = AgentProcess(tmp_path / "n")
    agent.write(f"data_dir: {tmp_path}/file/data", "node: {name: n}")
    assert agent.start().wait() != 0
    assert "can't use the data folder" in agent.output()
    assert "Traceback" not in agent.output()


def test_a_faulty_script_of_gpus_is_one_clear_error(tmp_path: Path) -> None:
    agent = AgentProcess(tmp_path / "n")
    (tmp_path / "n" / "gpus.yaml").write_text("gpus: [{count: -4}]\n")
    assert agent.start().wait() != 0
    assert "gpus.yaml" in agent.output()
    assert "Traceback" not in agent.output()


@pytest.mark.parametrize("name", ["n", "gpu-1", "Gpu-Box-1.lab", "a-b-c-d"])
def test_a_node_may_have_any_number_of_dashes_in_its_name(tmp_path: Path, name: str) -> None:
    with (
        ControlProcess(tmp_path / "control") as control,
        AgentProcess(tmp_path / "node", control, name=name),
    ):
        job_id = submit(control, "true", gpu_count=4)
        assert until_state(control, job_id, "succeeded")["attempts"][0]["tasks"][0]["node"] == name


def agent_with_driver(folder: Path, control: ControlProcess, name: str) -> tuple[AgentProcess, Path]:
    """Return an agent that looks at its GPUs each second, and where its driver is to be."""
    tools = folder / "bin"
    tools.mkdir()
    agent = AgentProcess(folder / name, control)
    agent.write(
        f"data_dir: {agent.data_dir}",
        f"node: {{name: {name}}}",
        f"control: {{addresses: ['127.0.0.1:{control.grpc_port}'], insecure: true}}",
        "gpu: {detection: nvidia-smi, probe_again_s: 1, watch_s: 1}",
        "log: {format: text}",
    )
    agent.environ["PATH"] = f"{tools}:{os.environ['PATH']}"
    return agent, tools / "nvidia-smi"


def test_gpus_of_a_driver_that_comes_up_late_or_breaks_while_jobs_run_are_used_once_they_can_be_read(
    control: ControlProcess, tmp_path: Path
) -> None:
    """Faults 45 and 69."""
    agent, fake = agent_with_driver(tmp_path, control, "late")
    with agent:
        until(lambda: "agent_registered" in agent.output(), "registered without GPUs")
        assert "gpu_probe_failed" in agent.output()
        assert "nvidia-smi" in control.ask("GET", "/api/v1/nodes/late")[1]["gpu_fault"]
        fake.write_text(FOUR_GPUS.read_text())
        fake.chmod(0o755)
        until(lambda: control.ask("GET", "/api/v1/gpus")[1]["gpus"], "its GPUs are known")
        until_state(control, submit(control, "true", gpu_count=4), "succeeded")
        assert control.ask("GET", "/api/v1/nodes/late")[1]["gpu_fault"] == ""
    fake.write_text("#!/bin/sh\necho 'Failed to initialize NVML: Driver/library version mismatch'; exit 18\n")
    with agent:
        until(lambda: "exit 18" in control.ask("GET", "/api/v1/nodes/late")[1]["gpu_fault"], "the driver is broken")
        waits = submit(control, "true", gpu_count=4)
        until(
            lambda: "gpus_unread" in str(control.ask("GET", f"/api/v1/jobs/{waits}")[1]["reason"]), "it waits for that"
        )
        fake.write_text(FOUR_GPUS.read_text())
        until_state(control, waits, "succeeded")
        go = tmp_path / "go"
        holds = submit(control, f"while [ ! -e {go} ]; do sleep 0.1; done", gpu_count=4)
        until_state(control, holds, "running")
        fake.write_text(FOUR_GPUS.read_text().replace("count=4", "count=3"))
        until(
            lambda: "isn't listed any more" in control.ask("GET", "/api/v1/nodes/late")[1]["gpu_fault"], "one is lost"
        )
        assert b"stoker_nodes_gpus_unread 1" in control.metrics()
        later = submit(control, "true", gpu_count=4)
        until(lambda: "gpus_unread" in str(job(control, later)["reason"]), "no new work for what is lost")
        go.touch()
        assert len(until_state(control, holds, "succeeded")["attempts"]) == 1, "what runs on it goes on"
        fake.write_text(FOUR_GPUS.read_text())
        until_state(control, later, "succeeded")


def test_a_gpu_that_is_lost_while_the_agent_is_down_is_said_and_waited_for_until_a_person_says_that_it_is_gone(
    control: ControlProcess, tmp_path: Path
) -> None:
    agent, fake = agent_with_driver(tmp_path, control, "n1")
    fake.write_text(FOUR_GPUS.read_text())
    fake.chmod(0o755)

    def node() -> dict[str, Any]:
        return control.ask("GET", "/api/v1/nodes/n1")[1]

    with agent:
        until(lambda: len(control.ask("GET", "/api/v1/gpus")[1]["gpus"]) == 4, "its GPUs are known")
    fake.write_text(FOUR_GPUS.read_text().replace("count=4", "count=3"))
    with agent:
        until(lambda: "isn't listed any more" in node()["gpu_fault"], "one is lost")
        assert "remove `gpus.json` in its agent's data folder" in node()["gpu_fault"]
        waits = submit(control, "true", gpu_count=4)
        until(lambda: "gpus_unread" in str(job(control, waits)["reason"]), "it waits for the lost one")
        until_state(control, submit(control, "true", gpu_count=3), "succeeded")
    (agent.data_dir / "gpus.json").unlink()
    with agent:
        until(lambda: node()["gpu_fault"] == "", "it is no longer known")
        until(lambda: "no_fitting_node" in str(job(control, waits)["reason"]), "no node could run that job")


def test_with_jobs_end_with_agent_a_stop_ends_jobs_and_runner(control: ControlProcess, tmp_path: Path) -> None:
    agent, pids = AgentProcess(tmp_path / "node", control), tmp_path / "pids"
    agent.add("executor: {jobs_end_with_agent: true}")
    with agent:
        job_id = submit(control, f"sleep 600 & echo $$ $! > {pids}; wait")
        until_state(control, job_id, "running")
        until(lambda: pids.exists() and pids.read_text().split()[1:], "the job said its pids")
        runner = agent.runner_pid
        assert agent.terminate() == 0
        assert not [pid for pid in (*map(int, pids.read_text().split()), runner) if alive(pid)]


def test_with_jobs_end_with_agent_the_agent_dies_with_its_parent(tmp_path: Path) -> None:
    agent = AgentProcess(tmp_path / "node")
    agent.add("executor: {jobs_end_with_agent: true}")
    program = (
        "import subprocess, sys, time\n"
        "out = open(sys.argv[2], 'wb')\n"
        "words = [sys.executable, '-m', 'stoker', 'agent', '-c', sys.argv[1]]\n"
        "child = subprocess.Popen(words, stdout=out, stderr=out)\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    words = [program, str(agent.settings), str(agent.folder / "agent.out")]
    parent = subprocess.Popen([sys.executable, "-c", *words], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    try:
        pid = int(parent.stdout.readline())
        until(lambda: "control_plane_unreachable" in agent.output(), "the agent runs")
        runner = agent.runner_pid
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
    until(lambda: not alive(pid) and not alive(runner), "agent and runner have ended")


def test_agent_and_runner_stay_small(control: ControlProcess, agent: AgentProcess) -> None:
    agent.kill()
    agent.from_scratch = True
    agent.start()
    for _ in range(20):
        until_state(control, submit(control, "echo hello"), "succeeded")
    time.sleep(0.1)
    guard = parent_of(agent.runner_pid)
    print(f"agent {agent.rss_mb():.1f}, runner {rss_mb(agent.runner_pid):.1f}, guard {rss_mb(guard):.1f} MiB")
    assert rss_mb(guard) <= GUARD_RSS_MB_MAX
    assert agent.rss_mb() <= AGENT_RSS_MB_MAX
    assert "libssl" not in Path(f"/proc/{agent.pid}/maps").read_text()
    assert rss_mb(agent.runner_pid) <= RUNNER_RSS_MB_MAX
