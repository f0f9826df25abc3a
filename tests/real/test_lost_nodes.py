"""Work of lost nodes on real processes: it is started elsewhere by itself, and never runs beside its successor.

All in one test, since each loss takes as long as the bounds that are waited for.
"""

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from stoker.brain.domain.policy import LEASE_KILL_MS, surely_over_ms
from tests.real.agent_process import AgentProcess, job, submit, until, until_state
from tests.real.control_process import ControlProcess

LEASE_S = 2
KILL_S, OVER_S = LEASE_KILL_MS / 1_000, surely_over_ms(LEASE_S * 1_000) / 1_000
SAYS_WHEN = 'while :; do echo "$STOKER_ATTEMPT $(cut -d " " -f 1 /proc/uptime)" >> {file}; sleep 0.05; done'
"""/proc/uptime counts as CLOCK_BOOTTIME does, which leases are counted on."""


@pytest.fixture
def control(tmp_path: Path) -> Iterator[ControlProcess]:
    with ControlProcess(tmp_path / "control", lease_s=LEASE_S) as control:
        yield control


def the_agent_is_killed(agent: AgentProcess) -> None:
    agent.kill()


def the_agent_is_stopped(agent: AgentProcess) -> None:
    os.kill(agent.pid, signal.SIGSTOP)


def agent_and_runner_are_stopped(agent: AgentProcess) -> None:
    os.kill(agent.pid, signal.SIGSTOP)
    os.kill(agent.runner_pid, signal.SIGSTOP)


LOSSES = (the_agent_is_killed, the_agent_is_stopped, agent_and_runner_are_stopped)


def test_work_of_lost_nodes_starts_elsewhere_and_never_runs_twice_at_a_time(
    control: ControlProcess, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        agents = [
            stack.enter_context(AgentProcess(tmp_path / f"n{number}", control, name=f"n{number}", gpus=1))
            for number, _ in enumerate(LOSSES)
        ]
        # Each has one GPU, so each gets one of the jobs; which of them doesn't matter.
        jobs = [submit(control, SAYS_WHEN.format(file=tmp_path / f"said-{number}")) for number, _ in enumerate(LOSSES)]
        for each in jobs:
            until_state(control, each, "running")
        assert [job(control, each)["attempts"][0]["lease_ms"] for each in jobs] == [LEASE_S * 1_000] * len(jobs)
        stack.enter_context(AgentProcess(tmp_path / "spare", control, name="spare", gpus=len(jobs)))
        until(lambda: free(control) == len(jobs), "the spare node is there")
        lost_at = uptime()
        for lose, agent in zip(LOSSES, agents, strict=True):
            lose(agent)
        until(lambda: all(second(tmp_path / f"said-{number}") for number, _ in enumerate(LOSSES)), "all run again", 60)
        for number, each in enumerate(jobs):
            first, next_one = spans(tmp_path / f"said-{number}").values()
            assert first[1] < lost_at + LEASE_S + KILL_S
            assert first[1] < next_one[0], f"job {each} ran beside its successor"
            assert next_one[0] > lost_at + OVER_S - 1, "the newest beat was at most a second old"
            assert job(control, each)["attempts"][0]["outcome"] == "lost"
        assert quarantined(control) == len(jobs)
        come_back(agents)
        until(lambda: quarantined(control) == 0, "all say that they are clean")
        # One that stood still as a whole may first say what it knew before, until its runner has looked.
        broken = [line for line in control.output().splitlines() if '"lease_broken"' in line]
        assert [line for line in broken if f'"node:{agents[2].name}"' not in line] == []
        for each in jobs:
            assert len(job(control, each)["attempts"]) == 2


def come_back(agents: list[AgentProcess]) -> None:
    for lose, agent in zip(LOSSES, agents, strict=True):
        if lose is the_agent_is_killed:
            agent.start()
        else:
            os.kill(agent.pid, signal.SIGCONT)


def free(control: ControlProcess) -> int:
    _, answer = control.ask("GET", "/api/v1/gpus")
    return int(answer["idle"])


def quarantined(control: ControlProcess) -> int:
    _, answer = control.ask("GET", "/api/v1/gpus")
    return int(answer["quarantined"])


def second(file: Path) -> bool:
    return 2 in spans(file)


def spans(file: Path) -> Mapping[int, tuple[float, float]]:
    """From when to when each attempt has said that it runs."""
    found: dict[int, tuple[float, float]] = {}
    for line in file.read_text().splitlines():
        words = line.split()
        if len(words) == 2:
            attempt, at = int(words[0]), float(words[1])
            first, last = found.get(attempt, (at, at))
            found[attempt] = (min(first, at), max(last, at))
    return found


def uptime() -> float:
    return float(Path("/proc/uptime").read_text().split()[0])
