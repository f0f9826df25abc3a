"""`--output` and `--error`: what a task writes is also in the file that its user named (rules F1 to F5, Y1 to Y3)."""

import asyncio
import os
import resource
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stoker.brain.domain.ids import JobId
from stoker.brain.domain.instruction import TaskKey
from stoker.brain.domain.job import EndCause, TaskEnd
from tests.contracts.runner import Listener, agent_on, key
from tests.real.runner_node import RealNode, node_in, wait_until

ONE = key(1)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[RealNode]:
    async with node_in(tmp_path) as node:
        yield node


@pytest.fixture
async def agent(node: RealNode) -> AsyncIterator[Listener]:
    async with agent_on(node) as agent:
        yield agent


async def ran(node: RealNode, agent: Listener, line: str, task: TaskKey = ONE, **start: object) -> TaskEnd:
    await agent.runner.start(node.shell(task, line, **start))
    return await agent.end(task)


async def kept(agent: Listener, task: TaskKey = ONE) -> bytes:
    return (await agent.runner.read_log(task, 0, 1 << 20)).data


async def test_a_file_gets_all_that_the_task_writes_and_so_does_its_log(node: RealNode, agent: Listener) -> None:
    assert (await ran(node, agent, "echo out; echo err >&2; echo more", output=str(node.folder / "all.txt"))).clean
    assert (node.folder / "all.txt").read_bytes() == b"out\nerr\nmore\n" == await kept(agent)


async def test_errors_go_to_a_file_of_their_own(node: RealNode, agent: Listener) -> None:
    assert (await ran(node, agent, "echo out; echo err >&2", output="out.txt", error="err.txt")).clean
    assert (node.folder / "out.txt").read_bytes() == b"out\n"
    assert (node.folder / "err.txt").read_bytes() == b"err\n"
    assert sorted((await kept(agent)).splitlines()) == [b"err", b"out"]


async def test_errors_alone_may_have_a_file(node: RealNode, agent: Listener) -> None:
    assert (await ran(node, agent, "echo out; echo err >&2", error="err.txt")).clean
    assert (node.folder / "err.txt").read_bytes() == b"err\n"
    assert sorted((await kept(agent)).splitlines()) == [b"err", b"out"]


async def test_one_file_for_both_keeps_their_order(node: RealNode, agent: Listener) -> None:
    line = "for i in 1 2 3; do echo o$i; echo e$i >&2; done"
    assert (await ran(node, agent, line, output="all.txt", error="./all.txt")).clean
    assert (node.folder / "all.txt").read_bytes() == b"o1\ne1\no2\ne2\no3\ne3\n" == await kept(agent)


async def test_a_relative_path_is_meant_from_the_working_directory(node: RealNode, agent: Listener) -> None:
    (node.folder / "there" / "logs").mkdir(parents=True)
    assert (await ran(node, agent, "echo hi", workdir=str(node.folder / "there"), output="logs/../logs/a")).clean
    assert (node.folder / "there" / "logs" / "a").read_bytes() == b"hi\n"


async def test_a_device_may_stand_for_a_file(node: RealNode, agent: Listener) -> None:
    assert (await ran(node, agent, "echo hi", output="/dev/null")).clean
    assert await kept(agent) == b"hi\n"


async def test_the_first_attempt_empties_the_file_and_later_ones_append(node: RealNode, agent: Listener) -> None:
    """Y1. As Slurm does where a job is requeued."""
    (node.folder / "a.txt").write_text("of an earlier job\n")
    for attempt in (1, 2, 3):
        await ran(node, agent, f"echo attempt {attempt}", TaskKey(JobId(1), attempt, 0), output="a.txt")
    assert (node.folder / "a.txt").read_text() == "attempt 1\nattempt 2\nattempt 3\n"
    await ran(node, agent, "echo appended", key(2), output="a.txt", append=True)
    assert (node.folder / "a.txt").read_text().endswith("attempt 3\nappended\n")


async def test_ranks_that_name_one_file_share_it_line_by_line(node: RealNode, agent: Listener) -> None:
    """Y1, Y2, F2."""
    (node.folder / "all.txt").write_text("of an earlier job\n")
    for rank in range(4):
        line = f"i=0; while [ $i -lt 2000 ]; do echo rank {rank} line $i of many; i=$((i+1)); done"
        await agent.runner.start(node.shell(key(1, rank), line, output="all.txt"))
    for rank in range(4):
        assert (await agent.end(key(1, rank))).clean
    lines = (node.folder / "all.txt").read_text().splitlines()
    assert sorted(lines) == sorted(f"rank {rank} line {i} of many" for rank in range(4) for i in range(2000))
    for rank in range(4):
        of_rank = [line for line in lines if line.startswith(f"rank {rank} ")]
        assert of_rank == [f"rank {rank} line {i} of many" for i in range(2000)]


# --- what can't be opened -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("no/such/folder/a.txt", "No such file or directory (ENOENT); the folder must exist"),
        ("a_folder", "Is a directory (EISDIR)"),
        ("a_file/a.txt", "Not a directory (ENOTDIR)"),
        ("a_pipe", "No such device or address (ENXIO)"),
        pytest.param(
            "closed/a.txt",
            "Permission denied (EACCES)",
            marks=pytest.mark.skipif(os.geteuid() == 0, reason="nothing is closed to root"),
        ),
        ("a" * 300, "File name too long (ENAMETOOLONG)"),
        ("a\0b", "can't be a file's name"),
    ],
)
@pytest.mark.parametrize("stream", ["output", "error"])
async def test_a_file_that_cannot_be_opened_is_a_failure_to_start_with_its_name(
    node: RealNode, agent: Listener, stream: str, path: str, words: str
) -> None:
    """F1, F5."""
    (node.folder / "a_folder").mkdir()
    (node.folder / "closed").mkdir(0o500)
    (node.folder / "a_file").touch()
    os.mkfifo(node.folder / "a_pipe")
    end = await ran(node, agent, "touch it_ran", **{stream: path})
    assert end.cause is EndCause.START_FAILED
    named = str(node.folder / path).replace("\0", "\\0")
    assert f"cannot write its {stream} to {named}" in end.error
    assert words in end.error
    assert not (node.folder / "it_ran").exists()


async def test_a_task_that_is_stopped_while_its_file_is_opened_never_runs(node: RealNode, agent: Listener) -> None:
    task = node.shell(key(1), "touch it_ran", output="a.txt")
    await asyncio.gather(agent.runner.start(task), agent.runner.stop(key(1), 10_000))
    await agent.end(key(1))
    wait_until(lambda: _copiers(node) == [], "nobody opens it any more")


# --- what can't be written ----------------------------------------------------------------------------------------


async def test_a_full_disk_under_the_file_costs_what_did_not_fit_and_says_so(node: RealNode, agent: Listener) -> None:
    """F3. /dev/full takes nothing, as a full disk does."""
    end = await ran(node, agent, "seq 1 100000; echo done; exit 3", output="/dev/full", error="e.txt")
    assert (end.cause, end.exit_code) == (EndCause.EXITED, 3)
    assert end.error == "588900 bytes didn't get into /dev/full: No space left on device"
    assert (await kept(agent)).endswith(b"100000\ndone\n")
    assert (await ran(node, agent, "echo fine", key(2), output="fine.txt")).error == ""


async def test_a_file_at_its_size_limit_costs_the_rest(tmp_path: Path) -> None:
    """F3. What fits is there."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    async with node_in(tmp_path, head_bytes_max=1000, tail_bytes_max=1000) as node, agent_on(node) as agent:
        await agent.inventory()
        resource.prlimit(node.runner_pid, resource.RLIMIT_FSIZE, (100_000, hard))
        end = await ran(node, agent, "seq 1 100000", output="a.txt")
        assert end.clean
        assert "bytes didn't get into" in end.error
        assert (node.folder / "a.txt").stat().st_size == 100_000
        resource.prlimit(node.runner_pid, resource.RLIMIT_FSIZE, (soft, hard))


# --- the process that copies --------------------------------------------------------------------------------------


async def test_a_task_that_closes_its_output_runs_on(node: RealNode, agent: Listener) -> None:
    """F4."""
    line = "echo before; exec > /dev/null 2>&1; sleep 0.2; echo after > file"
    assert (await ran(node, agent, line, output="a.txt")).clean
    assert (node.folder / "a.txt").read_bytes() == b"before\n"
    assert (node.folder / "file").read_text() == "after\n"


async def test_a_stopped_task_has_every_line_in_its_file_up_to_the_kill(node: RealNode, agent: Listener) -> None:
    """F4: the signals are for the task, not for who copies its output."""
    line = "trap 'echo saving; sleep 0.1; echo saved' TERM; echo one; touch written; while :; do :; done"
    await agent.runner.start(node.shell(key(1), line, output="a.txt"))
    wait_until((node.folder / "written").exists, "it writes")
    await agent.runner.stop(key(1), 500)
    assert (await agent.end(key(1))).signal == 9
    assert (node.folder / "a.txt").read_bytes() == b"one\nsaving\nsaved\n" == await kept(agent)


async def test_a_stranger_that_was_given_the_pipe_does_not_hold_up_the_end(node: RealNode, agent: Listener) -> None:
    """Y3. No process of the tree is left, yet the pipe has a writer: this test."""
    await agent.runner.start(node.shell(key(1), "exec sleep 300", output="a.txt"))
    pid = (await agent.running(key(1))).pid
    with open(f"/proc/{pid}/fd/1", "wb", buffering=0) as pipe:
        pipe.write(b"from a stranger\n")
        began = time.monotonic()
        await agent.runner.stop(key(1), 1000)
        assert (await agent.end(key(1))).error == ""
        assert time.monotonic() - began < 3
    assert (node.folder / "a.txt").read_bytes() == b"from a stranger\n" == await kept(agent)


async def test_a_file_system_that_hangs_holds_up_nobody_else(node: RealNode, agent: Listener) -> None:
    """A named pipe whose reader reads nothing hangs as a dead network file system does."""
    os.mkfifo(node.folder / "hangs")
    reader = os.open(node.folder / "hangs", os.O_RDONLY | os.O_NONBLOCK)
    try:
        await agent.runner.start(node.shell(key(1), "head -c 300000 /dev/zero; echo over", output="hangs"))
        await agent.running(key(1))
        began = time.monotonic()
        assert (await ran(node, agent, "echo fine", key(2), output="fine.txt")).clean
        assert time.monotonic() - began < 3
        await agent.runner.stop(key(1), 0)
        end = await agent.end(key(1))
        assert "took more than 5 s for its last bytes" in end.error
        assert str(node.folder / "hangs") in end.error
    finally:
        os.close(reader)
    wait_until(lambda: _copiers(node) == [], "nobody copies any more")


async def test_when_the_copier_is_killed_the_end_says_what_is_missing(node: RealNode, agent: Listener) -> None:
    await agent.runner.start(node.shell(key(1), "trap '' PIPE; while [ ! -e go ]; do sleep 0.01; done", output="a.txt"))
    await agent.running(key(1))
    (pid,) = _copiers(node)
    os.kill(pid, 9)
    (node.folder / "go").touch()
    end = await agent.end(key(1))
    assert end.clean
    assert end.error == f"output is missing in {node.folder / 'a.txt'}: the process that writes it was killed"


async def test_it_leaves_with_a_killed_runner_and_holds_no_lock_of_its(node: RealNode) -> None:
    """F4. The next runner would be refused."""
    async with agent_on(node) as agent:
        await agent.runner.start(node.shell(key(1), "echo one; sleep 300", output="a.txt"))
        await agent.running(key(1))
        wait_until(lambda: (node.folder / "a.txt").read_bytes() == b"one\n", "it writes")
        copiers = _copiers(node)
        node.kill_runner()
    async with agent_on(node) as agent:
        await agent.inventory()
        assert not node.lives(key(1))
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in copiers), "it has left")


async def test_it_is_small_and_leaves_no_trace(node: RealNode, agent: Listener) -> None:
    await agent.runner.start(node.shell(key(1), "true"))
    await agent.end(key(1))  # the runner has its fork server from now on
    before = len(os.listdir(f"/proc/{node.runner_pid}/fd"))
    for job in range(2, 12):
        await agent.runner.start(node.shell(key(job), "while [ ! -e go ]; do sleep 0.05; done", output=f"{job}.txt"))
        await agent.running(key(job))
    copiers = _copiers(node)
    assert len(copiers) == 10
    assert max(map(_private_kb, copiers)) < 2_432
    held = [os.readlink(entry) for pid in copiers for entry in Path(f"/proc/{pid}/fd").iterdir() if int(entry.name) > 2]
    assert sorted(path for path in held if path.startswith("/")) == sorted(
        str(node.folder / f"{job}.txt") for job in range(2, 12)
    )
    assert len(held) == 10 * len(["the file", "its line", "what it reads", "where it hands it on"])
    (node.folder / "go").touch()
    for job in range(2, 12):
        await agent.end(key(job))
    wait_until(lambda: _copiers(node) == [], "none is left")
    assert len(os.listdir(f"/proc/{node.runner_pid}/fd")) == before


def _copiers(node: RealNode) -> list[int]:
    """Living children of the runner that copy."""
    children = Path(f"/proc/{node.runner_pid}/task/{node.runner_pid}/children").read_text().split()
    return [int(pid) for pid in children if _status(int(pid), "Name") == "stoker-copy"]


def _private_kb(pid: int) -> int:
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in rollup if line.startswith(("Private_Clean", "Private_Dirty")))


def _status(pid: int, field: str) -> str:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return ""
    return next((line.split(":")[1].strip() for line in lines if line.startswith(f"{field}:")), "")
