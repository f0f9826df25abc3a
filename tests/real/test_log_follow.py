"""Many follow one job, some stall, and control plane and agent are killed under them: everybody gets every line once.

"Must show" 3 of daily work, and family 12 of the faults.
"""

import http.client
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.real.agent_process import AgentProcess, rss_mb, submit, until, until_state
from tests.real.control_process import ControlProcess
from tests.real.log_followers import CommandFollower, Crowd, StalledFollower, StreamFollower, WaitingFollower
from tests.real.say import Say

pytestmark = pytest.mark.timeout(120)

ROUNDS = 120
LINES = 500
LINE_BYTES = 100
MIB = 1 << 20
WRITER = f"""
import os, time
began, slowest, number = time.monotonic(), 0.0, 0
for round in range(1, {ROUNDS} + 1):
    lines = b"".join(b"%0{LINE_BYTES - 1}d\\n" % (number + each) for each in range({LINES}))
    number += {LINES}
    before = time.monotonic()
    while lines:
        lines = lines[os.write(1, lines):]
    slowest = max(slowest, time.monotonic() - before)
    time.sleep(max(0, began + round * 0.05 - time.monotonic()))
os.write(1, b"%d %d\\n" % ((time.monotonic() - began) * 1000, slowest * 1000))
"""
"""A million bytes a second for six seconds; the last line says how long it took, and its slowest write, in ms."""


@pytest.fixture
def control(tmp_path: Path) -> Iterator[ControlProcess]:
    with ControlProcess(tmp_path / "control") as control:
        yield control


@pytest.fixture
def agent(tmp_path: Path, control: ControlProcess) -> Iterator[AgentProcess]:
    with AgentProcess(tmp_path / "agent", control) as agent:
        yield agent


def every_line() -> bytes:
    return b"".join(b"%0*d\n" % (LINE_BYTES - 1, number) for number in range(ROUNDS * LINES))


def test_twenty_followers_get_every_line_once_through_a_restart_of_both_daemons(
    tmp_path: Path, control: ControlProcess, agent: AgentProcess
) -> None:
    job_id = submit(control, ["python3", "-c", WRITER])
    with Crowd() as crowd:
        crowd.stalled = [
            StalledFollower(control, job_id, "follow=true"),
            StalledFollower(control, job_id, "follow=true"),
            StalledFollower(control, job_id, "wait_s=30&limit=1000000"),
        ]
        commands = [CommandFollower(tmp_path, control, job_id) for _ in range(6)]
        crowd.live += commands
        crowd.live += [WaitingFollower(control, job_id) for _ in range(8)]
        crowd.live += [StreamFollower(control, job_id) for _ in range(3)]
        until_state(control, job_id, "running")
        # Who never had an answer gives up at once, and on a busy machine a command may be slow to begin.
        until(lambda: all(len(each.got) > 0.5 * MIB for each in commands), "half a MiB came to each command")
        rss_before_mb = rss_mb(control.pid)
        commands[-1].stall()
        agent.kill()
        control.kill()
        control.start()
        agent.start()
        until(lambda: len(commands[0].got) > 3 * MIB, "it goes on where it was")
        commands[-1].go_on()
        results = [each.result() for each in crowd.live]
        rss_after_mb = rss_mb(control.pid)
    lines = every_line()
    assert [result[: len(lines)] == lines for result in results] == [True] * 17
    assert {result[len(lines) :] for result in results} == {results[0][len(lines) :]}, "the last line ends it"
    took_ms, slowest_ms = map(int, results[0][len(lines) :].split())
    assert took_ms < ROUNDS * 50 * 4, "nobody slows the job down"
    assert slowest_ms < 2_000
    assert rss_after_mb < rss_before_mb + 100


def test_a_cancelled_job_keeps_every_line_up_to_the_kill_and_a_follower_has_them_too(
    tmp_path: Path, control: ControlProcess, agent: AgentProcess
) -> None:
    """Faults 114 and 117."""
    script = "trap 'echo last words; exit 1' TERM; n=0; while :; do n=$((n+1)); echo line $n; sleep 0.01; done"
    job_id = submit(control, script)
    say = Say(control.url, control.tokens.admin)
    with Crowd() as crowd:
        follower = CommandFollower(tmp_path, control, job_id)
        crowd.live.append(follower)
        until(lambda: follower.got.count(b"\n") > 20, "twenty lines")
        status, _ = control.ask("DELETE", f"/api/v1/jobs/{job_id}")
        assert status == 200
        assert until_state(control, job_id, "cancelled")["state"] == "cancelled"
        followed = follower.result()
    assert say("logs", job_id).stdout_bytes == followed
    lines = followed.splitlines()
    assert lines[-1] == b"last words"
    numbered = [line for line in lines if line.startswith(b"line ")]  # the shell has a word for its `sleep`, too
    assert numbered == [b"line %d" % number for number in range(1, len(numbered) + 1)]
    assert say("logs", "--tail", "1", job_id).stdout_bytes == b"last words\n"


@pytest.fixture
def running(control: ControlProcess, agent: AgentProcess) -> str:
    """A job that has written a line and goes on for long."""
    job_id = submit(control, "echo begun; exec sleep 600")
    until_state(control, job_id, "running")
    return job_id


def test_following_says_when_the_control_plane_stays_away(
    tmp_path: Path, control: ControlProcess, running: str
) -> None:
    """It waits for it; but a server that never was is told at once."""
    with Crowd() as crowd:
        follower = CommandFollower(tmp_path, control, running)
        crowd.live.append(follower)
        until(lambda: follower.got == b"begun\n", "it follows")
        control.kill()
        until(lambda: "waiting: no control plane answers" in follower.said, "it says that it waits")
        assert follower.process.poll() is None
        late = CommandFollower(tmp_path, control, running)
        crowd.live.append(late)
        assert late.process.wait(30) == 5
        assert "no_server" in late.said


def test_a_control_plane_that_is_told_to_end_ends_at_once_and_no_reader_takes_the_output_for_whole(
    control: ControlProcess, running: str
) -> None:
    client = http.client.HTTPConnection("127.0.0.1", control.http_port, timeout=20)
    with closing(client), Crowd() as crowd:
        crowd.live.append(WaitingFollower(control, running))
        client.request("GET", f"/api/v1/jobs/{running}/logs?follow=true", headers=control.headers)
        response = client.getresponse()
        assert response.readline() == b"begun\n"
        status, took_s = control.terminate()
        assert (status, took_s < 5) == (0, True)
        with pytest.raises(http.client.IncompleteRead) as broken:
            response.read()
        assert broken.value.partial == b"[stoker: this control plane stops [stopping]]\n"
