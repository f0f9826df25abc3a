"""The runner's own life: what it outlives, what it refuses, what it costs."""

import asyncio
import os
import resource
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from stoker.adapters.clock import SystemClock
from stoker.agent.ports import RunnerGone, RunnerHealth
from stoker.agent.runner_socket import RunnerSocket
from stoker.brain.domain.job import EndCause
from stoker.brain.domain.report import TaskPhase
from tests.contracts.runner import LONG_S, Listener, agent_on, key
from tests.real.forks import SRC
from tests.real.runner_node import RealNode, cgroups_here, is_alive, node_in, wait_until

RSS_KB_MAX = 15 * 1024
EAT = "python3 -c 'import sys; b = bytearray({mib} << 20); sys.exit(0)'"


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[RealNode]:
    async with node_in(tmp_path) as node:
        yield node


async def test_it_stays_small_while_it_serves(node: RealNode) -> None:
    async with agent_on(node) as agent:
        for job in range(1, 301):
            await agent.runner.start(node.shell(key(job), "echo some output"))
        for job in range(1, 301):
            await agent.end(key(job))
            await agent.runner.settle(key(job))
        assert node.rss_kb() <= RSS_KB_MAX


async def test_it_ignores_what_stops_its_agent_while_a_task_runs(node: RealNode) -> None:
    async with agent_on(node) as agent:
        await agent.runner.start(node.shell(key(1), "while [ ! -e go ]; do sleep 0.01; done; exit 6"))
        await agent.running(key(1))
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            os.kill(node.runner_pid, number)
        (node.folder / "go").touch()
        assert (await agent.end(key(1))).exit_code == 6
        await agent.hear(RunnerGone)  # the terminate signal holds once nothing is left to outlive


async def test_without_tasks_a_terminate_signal_ends_it(node: RealNode) -> None:
    async with agent_on(node) as agent:
        os.kill(node.runner_pid, signal.SIGTERM)
        assert (await agent.hear(RunnerGone)).error


async def test_a_tethered_one_ends_everything_when_its_agent_stays_away(tmp_path: Path) -> None:
    async with node_in(tmp_path, tether_s=0.5) as node:
        async with agent_on(node) as agent:
            await agent.runner.start(node.task(key(1), lasts_s=LONG_S, stubborn=True))
            await agent.begun(node, key(1))
            runner = node.runner_pid
        wait_until(lambda: not is_alive(runner), "the runner has left")
        assert not node.lives(key(1))


async def test_one_that_nobody_needs_leaves(tmp_path: Path) -> None:
    async with node_in(tmp_path, tether_s=0, idle_exit_s=0.1) as node:
        async with agent_on(node):
            runner = node.runner_pid
        wait_until(lambda: not is_alive(runner), "the runner has left")


async def test_one_that_left_is_followed_by_another_that_knows_every_end(tmp_path: Path) -> None:
    async with node_in(tmp_path, tether_s=0, idle_exit_s=0.1) as node:
        async with agent_on(node) as agent:
            runner = node.runner_pid
            await agent.runner.start(node.shell(key(1), "exit 3"))
            await agent.end(key(1))
        wait_until(lambda: not is_alive(runner), "the runner has left")
        async with agent_on(node) as agent:
            (over,) = (await agent.inventory()).ends
            assert (over.key, over.end.exit_code) == (key(1), 3)


async def test_one_whose_tasks_run_on_stays_without_an_agent(tmp_path: Path) -> None:
    async with node_in(tmp_path, tether_s=0, idle_exit_s=0.2) as node:
        async with agent_on(node) as agent:
            await agent.runner.start(node.shell(key(1), "while [ ! -e go ]; do sleep 0.01; done; exit 6"))
            await agent.running(key(1))
        for _ in range(50):
            assert _nudged(node.runner_pid)
            await asyncio.sleep(0.01)
        (node.folder / "go").touch()
        async with agent_on(node) as agent:
            assert (await agent.known_end(key(1))).exit_code == 6


async def test_a_start_that_comes_while_it_ends_all_is_none(node: RealNode) -> None:
    """Nobody would end that task any more, and the runner would stay for it."""
    async with agent_on(node) as agent:
        await agent.runner.start(node.task(key(1), lasts_s=LONG_S))
        await agent.begun(node, key(1))
        await agent.runner.renounce()
        with suppress(OSError):
            await agent.runner.start(node.task(key(2), lasts_s=LONG_S))
        await agent.hear(RunnerGone)
    assert node.starts(key(2)) == 0


async def test_a_caller_that_is_cancelled_while_it_closes_its_runner_is_cancelled(node: RealNode) -> None:
    """Swallowed, it would leave an agent that was told to stop waiting for ever."""
    runner = node.agent()
    await runner.connect()
    closing = asyncio.create_task(runner.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await runner.close()


async def test_a_task_whose_output_somebody_removed_is_not_taken_for_never_started(node: RealNode) -> None:
    """Then nobody would end it, and its job would run twice."""
    async with agent_on(node) as agent:
        await agent.runner.start(node.task(key(1), lasts_s=LONG_S))
        await agent.running(key(1))
        (node.folder / "agent" / "output" / "1.1.0.out").unlink()
        node.kill_runner_and_guard()
        await agent.hear(RunnerGone)
    async with agent_on(node) as agent:
        assert (await agent.known_end(key(1))).cause is EndCause.RUNNER_LOST
        assert not node.lives(key(1))


async def test_a_newer_agent_replaces_the_older(node: RealNode) -> None:
    async with agent_on(node) as first:
        await first.runner.start(node.task(key(1), lasts_s=LONG_S))
        await first.running(key(1))
        async with agent_on(node) as second:
            assert "another agent" in (await first.hear(RunnerGone)).error
            (status,) = (await second.inventory()).tasks
            assert status.phase is TaskPhase.RUNNING
            await second.runner.stop(key(1), 5_000)
            await second.end(key(1))


async def test_a_second_runner_on_one_folder_refuses_and_names_the_first(node: RealNode) -> None:
    async with agent_on(node) as agent:
        data_dir = str(node.folder / "agent")
        second = subprocess.run(
            [sys.executable, "-m", "stoker.agent.runner", "--data_dir", data_dir],
            capture_output=True,
            text=True,
            check=False,
        )
        assert second.returncode == 3
        assert str(node.runner_pid) in second.stderr
        await agent.runner.start(node.shell(key(1), "true"))
        assert (await agent.end(key(1))).clean


async def test_a_damaged_journal_is_refused_and_says_how_to_recover(tmp_path: Path) -> None:
    async with node_in(tmp_path) as node:
        async with agent_on(node) as agent:
            await agent.runner.start(node.shell(key(1), "true"))
            await agent.end(key(1))
            await agent.runner.shutdown()
        journal = node.folder / "agent" / "journal"
        whole = journal.read_bytes()
        journal.write_bytes(whole.replace(b'"start"', b'"stxrt"'))
        with pytest.raises(OSError, match=r"journal, line 2 is damaged.*move the file away"):
            await node.agent().connect()
        assert b"stxrt" in journal.read_bytes(), "it was left as it is"
        journal.write_bytes(whole)


async def test_a_record_cut_short_by_a_crash_is_taken_for_never_written(tmp_path: Path) -> None:
    async with node_in(tmp_path) as node:
        async with agent_on(node) as agent:
            await agent.runner.start(node.shell(key(1), "exit 3"))
            await agent.end(key(1))
            node.kill_runner()
            await agent.hear(RunnerGone)
        with open(node.folder / "agent" / "journal", "ab") as journal:
            journal.write(b'1234abcd {"t":"start","key":"2.1.0"')
        async with agent_on(node) as agent:
            (over,) = (await agent.inventory()).ends
            assert over.end.exit_code == 3
            await agent.runner.start(node.shell(key(2), "true"))
            assert (await agent.end(key(2))).clean


async def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "agent").write_text("a file")
    with pytest.raises(OSError, match="agent"):
        await RunnerSocket(tmp_path / "agent", SystemClock()).connect()


async def test_beyond_its_bound_of_tasks_nothing_starts_and_the_number_is_said(tmp_path: Path) -> None:
    async with node_in(tmp_path, tasks_max=3) as node, agent_on(node) as agent:
        for job in range(1, 5):
            await agent.runner.start(node.task(key(job), lasts_s=LONG_S))
        end = await agent.end(key(4))
        assert end.cause is EndCause.NEVER_STARTED
        assert "3 tasks" in end.error


async def test_settled_ends_beyond_the_bound_are_forgotten_the_oldest_first(tmp_path: Path) -> None:
    async with node_in(tmp_path, ends_max=5) as node, agent_on(node) as agent:
        for job in range(1, 121):
            await agent.runner.start(node.shell(key(job), "echo x"))
            await agent.end(key(job))
            await agent.runner.settle(key(job))
        with pytest.raises(FileNotFoundError):
            await agent.runner.read_log(key(1), 0, 1)
        assert (await agent.runner.read_log(key(120), 0, 1)).size == 2


async def test_an_end_is_told_to_nobody_before_it_is_on_the_disk(node: RealNode) -> None:
    async def fault(agent: Listener) -> str:
        """What the runner says of itself once it has heard all that was said before."""
        before = len(agent.heard)
        agent.runner.ask()
        health = await agent.hear(RunnerHealth, lambda report: any(report is each for each in agent.heard[before:]))
        return health.fault

    async with agent_on(node) as agent:
        await agent.runner.start(node.shell(key(1), "while [ ! -e go ]; do sleep 0.01; done; exit 7"))
        await agent.running(key(1))
        journal = node.folder / "agent" / "journal"
        resource.prlimit(node.runner_pid, resource.RLIMIT_FSIZE, (journal.stat().st_size, resource.RLIM_INFINITY))
        (node.folder / "go").touch()
        while "journal" not in await fault(agent):
            await asyncio.sleep(0.01)
        await agent.runner.start(node.shell(key(1), "true"))
        await agent.runner.recall(key(1))
        await fault(agent)
        assert agent.overs(key(1)) == []
    async with agent_on(node) as agent:
        assert (await agent.inventory()).ends == ()
        resource.prlimit(node.runner_pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert (await agent.end(key(1))).exit_code == 7


_NOTES_SYNCS = """
import os

def noted(fd, call=os.fdatasync):
    call(fd)
    with open({calls!r}, "a") as file:
        print("synced", os.path.basename(os.readlink(f"/proc/self/fd/{{fd}}")), file=file)

os.fdatasync = noted
"""


async def test_a_start_is_on_the_disk_before_the_program_runs_and_an_end_before_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sync that is left out has no other trace, so the runner notes its own where the program notes that it ran."""
    calls = tmp_path / "calls"
    (tmp_path / "sitecustomize.py").write_text(_NOTES_SYNCS.format(calls=str(calls)))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{SRC}")
    async with node_in(tmp_path) as node, agent_on(node) as agent:
        await agent.runner.start(node.shell(key(1), f"echo ran >> {calls}"))
        assert (await agent.end(key(1))).clean
        assert calls.read_text().splitlines() == ["synced journal", "ran", "synced journal"]


async def test_a_full_disk_starts_nothing_and_loses_no_end(tmp_path: Path) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", folder], check=False).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        async with node_in(folder) as node, agent_on(node) as agent:
            await agent.runner.start(node.shell(key(1), "while [ ! -e go ]; do sleep 0.01; done; exit 7"))
            await agent.running(key(1))
            (folder / "go").touch()
            _fill(folder / "ballast")
            await agent.runner.start(node.shell(key(2), "true"))
            await asyncio.sleep(1)
            (folder / "ballast").unlink()
            assert (await agent.end(key(1))).exit_code == 7
            end = await agent.end(key(2))
            assert end.cause in (EndCause.NEVER_STARTED, EndCause.EXITED), "a full disk is no fault of the job"
            await agent.runner.start(node.shell(key(3), "true"))
            assert (await agent.end(key(3))).clean
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


async def test_a_disk_so_full_that_it_takes_no_log_line_ends_no_task(tmp_path: Path) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", folder], check=False).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        async with node_in(folder) as node, agent_on(node) as agent:
            await agent.runner.start(node.shell(key(1), "while [ ! -e go ]; do sleep 0.01; done; exit 7"))
            await agent.running(key(1))
            _fill(folder / "ballast")
            wider_than_a_page = tuple(f"GPU-{number:036d}" for number in range(200))
            await agent.runner.start(node.shell(key(2), "true", gpus=wider_than_a_page))
            assert (await agent.end(key(2))).cause is EndCause.NEVER_STARTED, "told while the disk is full"
            (folder / "ballast").unlink()
            (folder / "go").touch()
            assert (await agent.end(key(1))).exit_code == 7
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def _nudged(pid: int) -> bool:
    """Wake it: by itself it looks twice a minute. Does it still live?"""
    if is_alive(pid):
        os.kill(pid, signal.SIGHUP)
    return is_alive(pid)


def _fill(path: Path) -> None:
    with open(path, "wb", buffering=0) as ballast:
        try:
            while True:
                ballast.write(bytes(4096))
        except OSError:
            return


class TestMemoryLimit:
    @pytest.fixture(autouse=True)
    def _controller(self) -> None:
        if not cgroups_here("auto")[1]:
            pytest.skip("no memory controller can be used here")

    async def test_a_task_beyond_its_limit_is_out_of_memory(self, node: RealNode) -> None:
        async with agent_on(node) as agent:
            await agent.runner.start(node.shell(key(1), f"exec {EAT.format(mib=256)}", memory_mb=64))
            end = await agent.end(key(1))
            assert (end.oom, end.signal) == (True, signal.SIGKILL)
            assert 32 <= end.peak_memory_mb <= 64

    async def test_a_parent_that_exits_zero_does_not_hide_it(self, node: RealNode) -> None:
        """Fault 108."""
        async with agent_on(node) as agent:
            await agent.runner.start(node.shell(key(1), f"{EAT.format(mib=256)}; exit 0", memory_mb=64))
            end = await agent.end(key(1))
            assert (end.exit_code, end.oom, end.clean) == (0, True, False)

    async def test_a_task_within_its_limit_tells_its_peak(self, node: RealNode) -> None:
        """Fault 111."""
        async with agent_on(node) as agent:
            await agent.runner.start(node.shell(key(1), EAT.format(mib=100), memory_mb=256))
            end = await agent.end(key(1))
            assert (end.exit_code, end.oom) == (0, False)
            assert 100 <= end.peak_memory_mb <= 200
