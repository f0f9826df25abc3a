"""Recovery of the state from the log, and the snapshots that keep recovery short.

Rules: N1  a snapshot is of one position, taken in slices between which others run, and saved only once that position
           is durable
       N2  a snapshot that can't be saved is a warning: the log still holds everything
       N3  a snapshot waits for the history, from which the log could no longer be told once it is trimmed; but not
           longer than `HELD_S_MAX` or `HELD_FACTS_MAX`, so that no broken history makes the log grow without end
       N4  recovery never guesses: a record that can't be read or applied ends the start with its position
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.ids import Position
from stoker.brain.domain.units import Mono
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.codec import load_snapshot, snapshot_chunks
from stoker.control.committer import Committer, LogTooNew, replayed
from stoker.control.control_ports import ControlPorts
from stoker.control.feed import Entry, Feed
from stoker.control.history import Recorder
from stoker.ports import EventLog, LogDamaged, LogFailed

HELD_S_MAX: Final = 3_600.0
"""How long a snapshot waits for a history that can't be written: long enough to free a disk."""
HELD_FACTS_MAX: Final = 500_000
"""The same in facts: the next start replays them in about ten seconds."""
REST_S: Final = 0.001
"""Between two slices. Without a rest the loop gives Python away and takes it back before the log's thread has woken up:
an append then waited for the whole snapshot, 110 ms."""
RELIEF_EVERY: Final = 1_000

Begin = Callable[[ClusterState], Recorder]
"""Makes the recorder of the history that goes on from this state."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """State that the log adds up to, with its newest facts and the history that goes on from there."""

    state: ClusterState
    snapshot: Position
    """Of the newest snapshot that was there; 0 = none."""
    recent: Sequence[Entry]
    history: Recorder


async def recover(log: EventLog, ports: ControlPorts, begin: Begin) -> Recovered:
    """Read the newest snapshot and every record after it. The log is open already.

    Raises: LogDamaged.
    """
    began = ports.clock.mono()
    stored = await log.snapshot()
    state = ClusterState() if stored is None else _loaded(stored.position, stored.chunks)
    since: Final = state.position
    history = begin(state)
    recent = Feed(since)
    async for position, record in log.follow(since):
        entry = replayed(state, position, record)
        history.note(state, *entry)
        recent.publish((entry,))
        if position % RELIEF_EVERY == 0:
            await history.relieve()
    ports.telemetry.event(
        "recovered",
        position=state.position,
        snapshot=since,
        replayed=state.position - since,
        jobs=len(state.jobs),
        nodes=len(state.nodes),
        epoch=state.epoch,
        took_ms=round((ports.clock.mono() - began) * 1_000),
    )
    return Recovered(state, since, recent.entries(), history)


async def state_of(log: EventLog) -> ClusterState:
    """Return the state that an open log adds up to, for uses without a history.

    Raises: LogDamaged.
    """
    stored = await log.snapshot()
    state = ClusterState() if stored is None else _loaded(stored.position, stored.chunks)
    async for position, record in log.follow(state.position):
        replayed(state, position, record)
    return state


@asynccontextmanager
async def writing(log: EventLog, ports: ControlPorts) -> AsyncIterator[Committer]:
    """Run a writer over the open log of a control plane that doesn't run, from entry to exit.

    The log is opened under the lock that a control plane holds. What is acknowledged is durable: the next start finds
    it as if it had been asked for while it ran. No epoch begins, for nothing here is active: the facts stand under the
    last one that did, which the store accepts as long as nobody has begun another.

    Raises: LogDamaged, LogFailed.
    """
    committer = Committer(await state_of(log), log, ports)
    writer = asyncio.create_task(committer.run(), name="committer")
    try:
        yield committer
    finally:
        committer.close()
        await writer


def _loaded(position: Position, chunks: Sequence[bytes]) -> ClusterState:
    try:
        state = load_snapshot(chunks)
    except ValueError as fault:
        raise LogTooNew(f"the snapshot at {position} is unknown to this version: {fault}") from fault
    if state.position != position:
        raise LogDamaged(f"the snapshot stored as {position} is of position {state.position}")
    return state


class Snapshots:
    """Taker of a snapshot every `interval_s` seconds when something changed."""

    def __init__(
        self, committer: Committer, log: EventLog, ports: ControlPorts, recovered: Recovered, *, interval_s: float
    ) -> None:
        self._committer = committer
        self._log = log
        self._history = recovered.history
        self._kept = recovered.snapshot
        self._clock = ports.clock
        self._telemetry = ports.telemetry
        self._interval_s = interval_s
        self._saved = committer.durable
        self._saved_at = ports.clock.mono()
        self._held_since: Mono | None = None

    def age_s(self) -> float:
        """Return for how many seconds facts have been in no snapshot, since the last one; 0 = it holds all of them."""
        return 0.0 if self._committer.state.position == self._saved else self._clock.mono() - self._saved_at

    async def run(self) -> None:
        """Take snapshots until cancelled, or until the writer has stopped."""
        while not self._committer.failed.is_set():
            await self._clock.sleep(self._interval_s)
            await self.save()

    async def save(self) -> None:
        """Take a snapshot now, unless nothing changed since the last one."""
        if self._committer.state.position == self._saved or self._committer.failed.is_set():
            return
        began = self._clock.mono()
        position = self._committer.state.position
        slices = snapshot_chunks(self._committer.state)
        chunks = [next(slices)]  # from here on it is of this position, whatever happens meanwhile
        try:
            await self._committer.settled()
            if not await self._told(position):
                return
            for chunk in slices:
                chunks.append(chunk)
                await self._clock.sleep(REST_S)
            await self._log.save_snapshot(position, chunks)
        except (StokerError, LogFailed) as fault:
            self._telemetry.count("snapshot_faults")
            self._telemetry.warn("snapshot_failed", position=position, error=str(fault))
            return
        self._saved, self._kept, self._saved_at = position, position, self._clock.mono()
        self._telemetry.observe("snapshot", self._clock.mono() - began)
        self._telemetry.gauge("snapshot_position", position)

    async def _told(self, position: Position) -> bool:
        """Return whether the log may forget what happened up to `position` (N3)."""
        if await self._history.flush(position):
            self._held_since = None
            return True
        if self._held_since is None:
            self._held_since = self._clock.mono()
        held_s, facts = self._clock.mono() - self._held_since, position - self._kept
        if held_s < HELD_S_MAX and facts < HELD_FACTS_MAX:
            self._telemetry.count("snapshots_held")
            self._telemetry.warn("snapshot_held", position=position, facts=facts, held_s=round(held_s))
            return False
        self._telemetry.warn("snapshot_without_history", position=position, facts=facts, held_s=round(held_s))
        return True
