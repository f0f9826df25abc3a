"""An agent that finds its GPUs by NVML: what it offers, loses and offers again, while jobs run."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.real.agent_process import AgentProcess, job, submit, until, until_state
from tests.real.control_process import ControlProcess
from tests.real.nvml_stub import MODEL, NvmlStub, mig_uuid, uuid, uuids

AGENT_RSS_MB_MAX = 50.0
"""As without NVML, for which 64 would be allowed: the library is never loaded by the agent."""


@pytest.fixture
def control(tmp_path: Path) -> Iterator[ControlProcess]:
    with ControlProcess(tmp_path / "control") as control:
        yield control


@pytest.fixture
def stub(tmp_path: Path) -> NvmlStub:
    return NvmlStub(tmp_path)


def agent_with(
    stub: NvmlStub, control: ControlProcess, *, detection: str = "nvml", telemetry_s: float = 0.2
) -> AgentProcess:
    """It looks at its GPUs each second, and at their figures more often."""
    agent = AgentProcess(stub.path.parent / "n1", control, name="n1")
    agent.write(
        f"data_dir: {agent.data_dir}",
        "node: {name: n1}",
        f"control: {{addresses: ['127.0.0.1:{control.grpc_port}'], insecure: true}}",
        f"gpu: {{detection: {detection}, probe_again_s: 1, watch_s: 1, telemetry_s: {telemetry_s}}}",
        "health: {error_clean_s: 1}",
        "log: {format: text}",
    )
    agent.environ |= stub.environ
    return agent


def node(control: ControlProcess) -> dict[str, Any]:
    return control.ask("GET", "/api/v1/nodes/n1")[1]


def offered(control: ControlProcess) -> list[str]:
    """GPUs that new work gets, or that a job has."""
    return [gpu["uuid"] for gpu in listed(control) if gpu["status"] in ("idle", "busy")]


def listed(control: ControlProcess) -> list[dict[str, Any]]:
    return list(control.ask("GET", "/api/v1/gpus")[1]["gpus"])


def health(control: ControlProcess, gpu: int) -> str:
    """State and cause of what ails a GPU."""
    found = next(each for each in listed(control) if each["uuid"] == uuid(gpu))
    return f"{found['status']}: {found['health']['state']} {found['health']['kind'] or ''}".strip()


def test_a_gpu_that_is_lost_under_a_job_is_told_the_job_starts_elsewhere_and_it_is_offered_again_once_it_is_back(
    control: ControlProcess, stub: NvmlStub
) -> None:
    stub.tell(gpu_0_bus="00000000:C1:00.0")
    with agent_with(stub, control):
        until(lambda: offered(control) == uuids([1, 2, 3, 0]), "its GPUs are known, in PCI order")
        assert {gpu["model"] for gpu in listed(control)} == {MODEL}
        holds = submit(control, "sleep 600", gpu_count=3)
        until_state(control, holds, "running")
        (task,) = job(control, holds)["attempts"][0]["tasks"]
        lost = next(gpu for gpu in range(4) if uuid(gpu) in task["gpus"])
        stub.tell(**{f"gpu_{lost}_handle": "!15"})
        until(lambda: health(control, lost) == "lost: drained lost", "one is lost, and not forgotten")
        shown = next(gpu for gpu in listed(control) if gpu["uuid"] == uuid(lost))
        assert (shown["health"]["reason"], shown["health"]["since"] is not None) == ("GPU is lost", True)
        until(lambda: len(job(control, holds)["attempts"]) == 2, "it starts on those that are left")
        first, second = until_state(control, holds, "running")["attempts"]
        assert (first["outcome"], first["stopping"]) == ("node_failed", "gpu_failed")
        assert uuid(lost) not in second["tasks"][0]["gpus"]
        assert job(control, holds)["requeues_used"] == 1
        assert b"stoker_nodes_gpus_unread 1" in control.metrics()
        later = submit(control, "true", gpu_count=4)
        until(lambda: "gpus_unread" in str(job(control, later)["reason"]), "no new work for what is lost")
        stub.tell(f"{lost}.handle")
        control.ask("DELETE", f"/api/v1/jobs/{holds}")
        until_state(control, later, "succeeded")
        assert health(control, lost) == "idle: healthy"
        assert node(control)["gpu_fault"] == ""


def test_a_gpu_that_is_not_clean_after_a_job_is_taken_out_alone_and_offered_again_once_it_is(
    control: ControlProcess, stub: NvmlStub
) -> None:
    with agent_with(stub, control):
        until(lambda: len(offered(control)) == 4, "its GPUs are known")
        first = submit(control, "sleep 600", gpu_count=1)
        (task,) = until_state(control, first, "running")["attempts"][0]["tasks"]
        used = next(gpu for gpu in range(4) if uuid(gpu) in task["gpus"])
        until(lambda: any(gpu["figures"] for gpu in listed(control)), "its figures are known")
        stub.tell(**{f"gpu_{used}_used": "9000"})
        control.ask("DELETE", f"/api/v1/jobs/{first}")
        next_one = submit(control, "true", gpu_count=4)
        until_state(control, first, "cancelled")
        assert health(control, used) == "offline: drained memory", "not for the length of one answer was it offered"
        assert sorted(offered(control)) == uuids(gpu for gpu in range(4) if gpu != used)
        until_state(control, submit(control, "true", gpu_count=3), "succeeded")
        assert job(control, next_one)["state"] == "pending"
        stub.tell(**{f"gpu_{used}_used": "3", f"gpu_{used}_processes": "1:300"})
        until(lambda: health(control, used) == "offline: drained process", "somebody's process is on it")
        stub.tell(f"{used}.processes")
        until_state(control, next_one, "succeeded")


def test_a_job_that_failed_with_an_error_of_its_gpu_starts_again_and_one_that_failed_by_itself_does_not(
    control: ControlProcess, stub: NvmlStub, tmp_path: Path
) -> None:
    stub.tell(**{f"gpu_{gpu}_ecc": "0" for gpu in range(4)})
    go = tmp_path / "go"
    with agent_with(stub, control) as agent:
        until(lambda: any(gpu["figures"] for gpu in listed(control)), "its figures are known")
        one = submit(control, f"until [ -e {go} ]; do sleep 0.05; done; [ $STOKER_ATTEMPT = 2 ]", gpu_count=1)
        (task,) = until_state(control, one, "running")["attempts"][0]["tasks"]
        sick = next(gpu for gpu in range(4) if uuid(gpu) in task["gpus"])
        stub.tell(**{f"gpu_{sick}_ecc": "1"})
        go.touch()
        ended = until_state(control, one, "succeeded")
        assert ended["attempts"][0]["outcome"] == "node_failed"
        assert "1 more uncorrected memory errors" in str(ended["attempts"][0]) + agent.output()
        assert uuid(sick) not in ended["attempts"][1]["tasks"][0]["gpus"]
        until(lambda: health(control, sick) == "idle: healthy", "it is clean for long enough")
        assert len(until_state(control, submit(control, "exit 3"), "failed")["attempts"]) == 1


def test_a_gpu_that_the_driver_no_longer_lists_is_lost_and_not_forgotten_also_by_an_agent_that_starts_anew(
    control: ControlProcess, stub: NvmlStub
) -> None:
    with agent_with(stub, control) as agent:
        until(lambda: len(offered(control)) == 4, "its GPUs are known")
        stub.tell(count="3")
        until(lambda: f"{uuid(3)} isn't listed any more" in node(control)["gpu_fault"], "one is lost")
        agent.kill()
        agent.start()
        waits = submit(control, "true", gpu_count=4)
        until(lambda: "gpus_unread" in str(job(control, waits)["reason"]), "it is waited for")
        assert f"{uuid(3)} isn't listed any more" in node(control)["gpu_fault"]
        stub.tell(count="4")
        until_state(control, waits, "succeeded")


def test_a_driver_that_hangs_holds_up_neither_jobs_nor_the_agent(control: ControlProcess, stub: NvmlStub) -> None:
    with agent_with(stub, control) as agent:
        until(lambda: len(offered(control)) == 4, "its GPUs are known")
        stub.tell(init="!hang")
        until_state(control, submit(control, "sleep 3", gpu_count=4), "succeeded")
        until(lambda: "NVML didn't answer within 10 s" in node(control)["gpu_fault"], "it hung twice", within_s=60)
        until_state(control, submit(control, "true", gpu_count=0), "succeeded")
        stub.tell("init")
        until_state(control, submit(control, "true", gpu_count=4), "succeeded")
        assert "Traceback" not in agent.output()


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"init": "!18"}, "NVML: RM has detected an NVML/RM version mismatch (the driver was upgraded"),
        ({"init": "!crash"}, "NVML: NVML crashed (signal 11)"),
        ({"gpu_1_mig": "1", "gpu_1_migs": "-1"}, f"{uuid(1)}: MIG is on, and it has no MIG instance to offer: make"),
    ],
)
def test_a_node_says_what_is_wrong_with_its_driver_and_uses_it_once_it_is_mended(
    control: ControlProcess, stub: NvmlStub, changed: dict[str, str], fault: str
) -> None:
    stub.tell(**changed)
    with agent_with(stub, control):
        until(lambda: node(control).get("gpu_fault", "").startswith(fault), "the reason is on the node")
        stub.tell("init", "1.mig")
        until(lambda: len(offered(control)) == 4 and not node(control)["gpu_fault"], "all are offered")


def test_mig_instances_are_offered_to_who_asks_for_one_and_are_lost_and_made_anew_like_gpus(
    control: ControlProcess, stub: NvmlStub, tmp_path: Path
) -> None:
    """Fault 70: fewer instances than before need nobody's hand."""
    stub.tell(count="2", gpu_0_temperature="66", gpu_0_xid="0:0")
    stub.divide(0, 0, 1, 2)
    said, slices = tmp_path / "said", [mig_uuid(0, slot) for slot in range(3)]
    with agent_with(stub, control) as agent:
        until(lambda: offered(control) == [uuid(1), *slices], "the instances are known, and not their GPU")
        holds = submit(control, f"echo $CUDA_VISIBLE_DEVICES >> {said}; sleep 600", gpu_count=1, gpu_model="1g.10gb")
        (task,) = until_state(control, holds, "running")["attempts"][0]["tasks"]
        until(lambda: said.exists() and said.read_text().split() == task["gpus"], "it sees its instance")
        assert task["gpus"] == slices[:1]
        until(lambda: any((gpu["figures"] or {}).get("of_whole_gpu") for gpu in listed(control)), "it has figures")
        first = next(gpu for gpu in listed(control) if gpu["uuid"] == slices[0])
        assert (first["parent"], first["figures"]["of_whole_gpu"]) == (uuid(0), ["temperature_c"])
        assert (first["figures"]["temperature_c"], first["figures"]["utilization_percent"]) == (66, None)
        refused = control.ask("POST", "/api/v1/jobs", {"command": "true", "gpu_count": 2})[1]
        assert refused["code"] == "demand_unsatisfiable", "there is one whole GPU"
        stub.tell(gpu_0_migs="1,2")
        until(lambda: len(job(control, holds)["attempts"]) == 2, "its instance was taken away under it")
        again, ended = until_state(control, holds, "running")["attempts"][::-1]
        assert (ended["outcome"], again["tasks"][0]["gpus"]) == ("node_failed", slices[1:2])
        assert slices[0] not in offered(control), "it isn't offered again"
        until(lambda: not node(control)["gpu_fault"], "and it is forgotten")
        assert [gpu["uuid"] for gpu in listed(control)] == [uuid(1), *slices[1:]]
        stub.tell(gpu_0_xid="1:79")
        until(lambda: offered(control) == [uuid(1)], "an error of the GPU is one of each instance")
        until(lambda: offered(control) == [uuid(1), *slices[1:]], "and they are offered again once it is over")
        until_state(control, holds, "running")
        control.ask("DELETE", f"/api/v1/jobs/{holds}")
        until_state(control, holds, "cancelled")
        stub.tell(gpu_0_mig="0")
        until(lambda: offered(control) == uuids([0, 1]) and not node(control)["gpu_fault"], "it is whole again")
        until_state(control, submit(control, "true", gpu_count=2), "succeeded")
        assert "Traceback" not in agent.output()


def test_an_agent_with_nvml_stays_as_small_as_one_without(control: ControlProcess, stub: NvmlStub) -> None:
    agent = agent_with(stub, control, detection="auto")
    agent.from_scratch = True
    with agent:
        until(lambda: len(offered(control)) == 4, "its GPUs are known")
        for _ in range(20):
            until_state(control, submit(control, "echo hello", gpu_count=1), "succeeded")
        maps = Path(f"/proc/{agent.pid}/maps").read_text()
        print(f"agent {agent.rss_mb():.1f} MiB")
        assert agent.rss_mb() <= AGENT_RSS_MB_MAX
        assert "libnvidia-ml" not in maps
