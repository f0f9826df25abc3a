"""An agent that knows two control planes, and the leases of what it runs; all as processes.

The settings are as fast as they may be, so that a lease ends within a test's time.
"""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.real.agent_process import AgentProcess, alive
from tests.real.failing_over import post
from tests.real.pair_process import Half, Pair, until

pytestmark = pytest.mark.timeout(240)

LEASE_S = 3.0
FAST = {"heartbeat_s": 0.3, "unreachable_after_s": 1.0}


@pytest.fixture
def pair(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Pair]:
    with Pair(tmp_path / "pair") as pair:
        pair.extra["agents"] = {**FAST, "attempt_lease_s": getattr(request, "param", LEASE_S)}
        yield pair.start()


def state(half: Half, job: str) -> dict[str, Any]:
    status, answer = half.ask("GET", f"/api/v1/jobs/{job}")
    assert status == 200, answer
    return dict(answer)


def until_state(pair: Pair, half: Half, job: str, *states: str, within_s: float = 60.0) -> dict[str, Any]:
    def is_so() -> bool:
        status, answer = half.ask("GET", f"/api/v1/jobs/{job}")
        return status == 200 and answer["state"] in states  # who loses its lease for a moment begins anew, and says so

    until(is_so, lambda: f"{half.ask('GET', f'/api/v1/jobs/{job}')}\n{pair.story()}", within_s)
    return state(half, job)


def family(folder: Path) -> tuple[str, Path]:
    """A job whose grandchild leaves its session and ignores being terminated, and where it says its pids."""
    pids = folder / "pids"
    inner = f"trap '' TERM; echo $$ >> {pids}; while :; do sleep 0.1; done"
    return f'echo $$ >> {pids}; setsid sh -c "{inner}" & wait', pids


def pids_in(path: Path, count: int) -> list[int]:
    until(lambda: path.exists() and len(path.read_text().split()) >= count, lambda: f"{path} names {count} pids")
    return [int(word) for word in path.read_text().split()]


def registered(agent: AgentProcess) -> int:
    return agent.output().count("agent_registered")


@pytest.mark.parametrize("pair", [60.0], indirect=True, ids=["a lease longer than a take-over"])
def test_the_agent_goes_on_at_the_other_control_plane_at_once_and_its_work_is_not_touched(
    pair: Pair, tmp_path: Path
) -> None:
    """Killed, then stopped: a process in SIGSTOP still takes connections, and answers nothing."""
    with pair.agent("n1") as agent:
        until(lambda: registered(agent) == 1, agent.output)
        go = tmp_path / "go"
        job = post(pair.active, {"command": f"until [ -e {go} ]; do sleep 0.05; done; exit 7", "gpu_count": 1})
        until_state(pair, pair.active, job, "running")
        old, new = pair.active, pair.standby
        old.kill()
        pair.until_active(new)
        began = time.monotonic()
        until(lambda: registered(agent) == 2, agent.output)
        assert time.monotonic() - began < 4.0
        old.start()
        pair.until_whole()
        old, new = pair.active, pair.standby
        old.stop()
        pair.until_active(new)
        began = time.monotonic()
        until(lambda: registered(agent) == 3, agent.output)
        assert time.monotonic() - began < 8.0
        go.touch()
        ended = until_state(pair, new, job, "failed")
        assert (ended["exit_code"], len(ended["attempts"])) == (7, 1)
        assert agent.output().count("registration_refused") == 0
        old.go_on()
        pair.until_whole()


def test_work_of_an_agent_that_stays_stopped_is_dead_before_it_begins_elsewhere(pair: Pair, tmp_path: Path) -> None:
    """The agent's silence is all that the control plane sees; the runner beside it ends the work alone."""
    line, pids = family(tmp_path)
    with pair.agent("n1") as first, pair.agent("n2") as second:
        until(lambda: registered(first) and registered(second), first.output)
        job = post(pair.active, {"command": line, "gpu_count": 1})
        until_state(pair, pair.active, job, "running")
        before = pids_in(pids, 2)
        where = state(pair.active, job)["attempts"][0]["tasks"][0]["node"]
        silent = first if where == "n1" else second
        os.kill(silent.pid, signal.SIGSTOP)
        try:
            until(lambda: len(pids.read_text().split()) >= 4, pair.story, 60)
            assert not [pid for pid in before if alive(pid)], "it runs beside its successor"
        finally:
            os.kill(silent.pid, signal.SIGCONT)
        until_state(pair, pair.active, job, "running")
        assert len(state(pair.active, job)["attempts"]) == 2
        assert pair.active.ask("DELETE", f"/api/v1/jobs/{job}")[0] < 300
        until_state(pair, pair.active, job, "cancelled")


def test_without_a_control_plane_and_without_an_agent_work_ends_with_its_lease_and_begins_anew(
    pair: Pair, tmp_path: Path
) -> None:
    line, pids = family(tmp_path)
    with pair.agent("n1") as agent:
        until(lambda: registered(agent), agent.output)
        leased = post(pair.active, {"command": line, "gpu_count": 1})
        until_state(pair, pair.active, leased, "running")
        before = pids_in(pids, 2)
        agent.kill()  # and with the agent dead, at that
        for half in pair.halves:
            half.kill()
        until(lambda: not any(map(alive, before)), lambda: f"{before} live", LEASE_S + 10)
        for half in pair.halves:
            half.start()
        pair.until_active()
        agent.start()
        until(lambda: len(state(pair.active, leased)["attempts"]) == 2, pair.story)
        first = state(pair.active, leased)["attempts"][0]
        assert "lease" in str(first), first


@pytest.mark.parametrize("pair", [60.0], indirect=True, ids=["a lease longer than a take-over"])
def test_work_is_given_to_the_node_that_is_back_and_not_to_one_that_died_with_the_active(pair: Pair) -> None:
    with pair.agent("n1") as dead, pair.agent("n2") as well:
        until(lambda: registered(dead) and registered(well), dead.output)
        new = pair.standby
        dead.kill()
        pair.active.kill()
        pair.until_active(new)
        job = post(new, {"command": "true", "gpu_count": 1})
        ended = until_state(pair, new, job, "succeeded", within_s=10)
        assert [task["node"] for task in ended["attempts"][0]["tasks"]] == ["n2"]
        assert node(new, "n1") == ("ready", False)
        assert node(new, "n2") == ("ready", True)
        waits = post(new, {"command": "true", "gpu_count": 4, "tasks": 2})
        until(lambda: state(new, waits)["reason"]["code"] == "nodes_returning", lambda: str(state(new, waits)), 10)
        dead.start()
        until_state(pair, new, waits, "succeeded")


def node(half: Half, name: str) -> tuple[str, bool]:
    """Its state, and whether it gets new work."""
    status, answer = half.ask("GET", f"/api/v1/nodes/{name}")
    assert status == 200, answer
    return answer["state"], answer["schedulable"]
