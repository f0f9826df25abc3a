"""Outputs are copied once, when their tasks have ended, through silence of nodes and faults of the archive."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from stoker.brain.domain.ids import JobId, NodeName
from stoker.brain.domain.instruction import TaskKey
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.domain.report import LogChunk
from stoker.control import output_archive
from stoker.control.control_ports import ControlPorts, LogPlace
from stoker.control.output_archive import OutputArchiver
from tests.control.followed_output import Node
from tests.control.stage import Player, Stage, stage, virtual

N1 = NodeName("n1")


class Shelf:
    """The `OutputArchive` port in memory; its disk is full while the test says so."""

    def __init__(self) -> None:
        self.kept: dict[TaskKey, bytes] = {}
        self.parts: dict[TaskKey, bytes] = {}
        self.fault = ""
        self.swept = 0
        self.cluster = ""

    def belong_to(self, cluster_id: str) -> None:
        self.cluster = cluster_id

    def _check(self) -> None:
        if self.fault:
            raise OSError(self.fault)

    async def has(self, key: TaskKey) -> bool:
        self._check()
        return key in self.kept

    async def write(self, key: TaskKey, offset: int, data: bytes) -> None:
        self._check()
        self.parts[key] = self.parts.get(key, b"") + data

    async def finish(self, key: TaskKey, size: int) -> None:
        self._check()
        assert key not in self.kept, "it was copied twice"
        self.kept[key] = self.parts.pop(key, b"")

    def give_up(self, key: TaskKey) -> None:
        self.parts.pop(key, None)

    async def read(self, key: TaskKey, offset: int, limit: int) -> LogChunk | None:
        self._check()
        if key not in self.kept:
            return None
        data = self.kept[key][offset : offset + limit]
        return LogChunk(request=0, offset=offset, data=data, size=len(self.kept[key]), ended=True)

    async def sweep(self) -> int:
        self._check()
        self.swept += 1
        return 0

    async def close(self) -> None: ...


class Archived:
    """A control plane with a node of one player, which keeps one output, and an archive."""

    def __init__(self, s: Stage, node: Node, shelf: Shelf) -> None:
        self.stage, self.node, self.shelf = s, node, shelf
        ports = ControlPorts(clock=s.control.clock, entropy=s.control.entropy, telemetry=s.notes)
        self.archiver = OutputArchiver(s.committer, ports, shelf, node.read)

    async def ended(self, player: Player, **end: Any) -> TaskKey:  # noqa: ANN401  # fields of `Player.end`
        """Have a job run and end, and return its task."""
        job = await self.stage.submit()
        await self.stage.until(lambda: any(start.key.job == job for start in player.starts))
        key = TaskKey(job, 1, 0)
        await player.say_started(key)
        await player.end(key, **end)
        await self.stage.until_state(job, JobState.SUCCEEDED)
        return key

    async def until_kept(self, *keys: TaskKey, within_s: float = 60) -> None:
        await self.stage.until(lambda: all(key in self.shelf.kept for key in keys), within_s)


@asynccontextmanager
async def archived() -> AsyncIterator[tuple[Archived, Player]]:
    node = Node()
    node.write(b"hello\n")
    node.end()
    async with stage() as s:
        it = Archived(s, node, Shelf())
        player = await s.join("n1")
        beating = asyncio.ensure_future(player.keep_beating())
        copying = asyncio.ensure_future(it.archiver.run())
        try:
            yield it, player
        finally:
            for duty in (beating, copying):
                duty.cancel()
            await asyncio.wait((beating, copying))


@virtual
async def test_o1_an_output_is_copied_when_its_task_has_ended_and_read_there_from_then_on() -> None:
    async with archived() as (it, player):
        key = await it.ended(player)
        await it.until_kept(key)
        assert it.shelf.kept == {key: b"hello\n"}
        it.node.refuse("node_unreachable")
        assert (await it.archiver.read(LogPlace(N1, key), 2, 3)).data == b"llo"
        assert it.stage.notes.counts["outputs_archived"] == 1
        assert it.shelf.cluster == it.stage.committer.state.cluster_id != ""


@virtual
async def test_o6_what_still_runs_and_what_is_not_there_is_read_on_the_node() -> None:
    async with archived() as (it, player):
        job = await it.stage.submit()
        start = await player.next_start()
        await player.say_started(start.key)
        it.shelf.kept[start.key] = b"of another cluster, say"
        assert (await it.archiver.read(LogPlace(N1, TaskKey(job, 1, 0)), 0, 99)).data == b"hello\n"
        assert (await it.archiver.read(LogPlace(N1, TaskKey(JobId(77), 1, 0)), 0, 99)).data == b"hello\n"


@virtual
async def test_o2_a_silent_node_is_asked_again_and_one_that_has_no_output_is_not() -> None:
    async with archived() as (it, player):
        it.node.refuse("node_unreachable")
        key = await it.ended(player)
        await it.stage.pause(600)
        assert 5 < len(it.node.asked) < 20
        it.node.refuse("")
        await it.until_kept(key, within_s=output_archive.RETRY_MAX_S + 1)
        it.node.refuse("log_unavailable")
        asked = len(it.node.asked)
        await it.ended(player)
        await it.stage.pause(600)
        assert len(it.node.asked) == asked + 1


@virtual
async def test_o2_the_output_of_a_node_that_is_silent_for_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_archive, "PATIENCE_S", 900.0)
    async with archived() as (it, player):
        it.node.refuse("node_unreachable")
        await it.ended(player)
        await it.stage.pause(output_archive.PATIENCE_S + 2 * output_archive.RETRY_MAX_S)
        assert it.stage.notes.counts["outputs_not_archived"] == 1
        asked = len(it.node.asked)
        await it.stage.pause(2 * output_archive.RETRY_MAX_S)
        assert len(it.node.asked) == asked


@virtual
async def test_o3_of_too_many_that_wait_the_oldest_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_archive, "WAITING_MAX", 2)
    async with archived() as (it, player):
        it.node.refuse("node_unreachable")
        keys = [await it.ended(player) for _ in range(4)]
        it.node.refuse("")
        await it.until_kept(*keys[2:])
        assert sorted(it.shelf.kept) == keys[2:]
        assert it.stage.notes.counts["outputs_not_archived"] == 2


@virtual
async def test_o4_a_full_archive_is_told_once_and_copied_to_when_it_has_room() -> None:
    async with archived() as (it, player):
        it.shelf.fault = "No space left on device"
        keys = [await it.ended(player) for _ in range(3)]
        await it.stage.pause(300)
        told = [line for line in it.stage.notes.lines if "output_archive_failed" in line]
        assert len(told) == 1
        assert (await it.archiver.read(LogPlace(N1, keys[0]), 0, 99)).data == b"hello\n"
        it.shelf.fault = ""
        await it.until_kept(*keys)


@virtual
async def test_only_bytes_that_were_copied_are_counted() -> None:
    async with archived() as (it, player):
        it.node.drop(2)
        await it.until_kept(await it.ended(player))
        assert it.stage.notes.counts["output_bytes_archived"] == len(b"llo\n")


@virtual
async def test_o5_what_ended_while_nobody_copied_is_copied_by_the_next_who_is_active() -> None:
    async with archived() as (it, player):
        kept = await it.ended(player)
        await it.until_kept(kept)
        later = Archived(it.stage, it.node, Shelf())
        copying = asyncio.ensure_future(later.archiver.run())
        await later.until_kept(kept)
        copying.cancel()
        await asyncio.wait((copying,))


@virtual
async def test_the_archive_is_swept_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_archive, "SWEEP_EVERY_S", 100.0)
    async with archived() as (it, _):
        await it.stage.pause(310)
        assert it.shelf.swept == 4
