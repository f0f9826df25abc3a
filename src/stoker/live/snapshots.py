"""How does a control plane find its state again, and how is that kept short?

Rules: N1  a snapshot is of one position, taken in slices between which others run, and saved only once that position
           is durable
       N2  a snapshot that can't be saved is a warning: the log still holds everything
       N3  recovery never guesses: a record that can't be read or applied ends the start with its position
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.ids import Position
from stoker.brain.state.apply.dispatch import apply
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.codec import decode_fact, load_snapshot, snapshot_chunks
from stoker.live.committer import Committer
from stoker.live.feed import FEED_MAX, Entry
from stoker.live.world import World
from stoker.ports import EventLog, LogDamaged, LogFailed


@dataclass(frozen=True, slots=True)
class Recovered:
    """What the log adds up to, and its newest facts."""

    state: ClusterState
    recent: Sequence[Entry]


async def recover(log: EventLog, world: World) -> Recovered:
    """Read the newest snapshot and every record after it. The log is open already.

    Raises: LogDamaged.
    """
    began = world.clock.mono()
    stored = await log.snapshot()
    state = ClusterState() if stored is None else _loaded(stored.position, stored.chunks)
    since: Final = state.position
    recent: deque[Entry] = deque(maxlen=FEED_MAX)
    async for position, record in log.follow(since):
        recent.append(_replayed(state, position, record))
    world.telemetry.event(
        "recovered",
        position=state.position,
        snapshot=since,
        replayed=state.position - since,
        jobs=len(state.jobs),
        nodes=len(state.nodes),
        epoch=state.epoch,
        took_ms=round((world.clock.mono() - began) * 1_000),
    )
    return Recovered(state, tuple(recent))


def _loaded(position: Position, chunks: Sequence[bytes]) -> ClusterState:
    try:
        state = load_snapshot(chunks)
    except ValueError as fault:
        raise LogDamaged(f"the snapshot at {position} can't be read: {fault}") from fault
    if state.position != position:
        raise LogDamaged(f"the snapshot stored as {position} is of position {state.position}")
    return state


def _replayed(state: ClusterState, position: Position, record: bytes) -> Entry:
    try:
        fact = decode_fact(record)
        apply(state, fact, position)
    except (ValueError, AssertionError, LookupError) as fault:
        raise LogDamaged(f"record {position} of the log can't be replayed: {fault!r}") from fault
    return position, fact


class Snapshots:
    """Takes a snapshot every `interval_s` when something changed."""

    def __init__(self, committer: Committer, log: EventLog, world: World, *, interval_s: float) -> None:
        self._committer = committer
        self._log = log
        self._clock = world.clock
        self._telemetry = world.telemetry
        self._interval_s = interval_s
        self._saved = committer.durable
        self._saved_at = world.clock.mono()

    def age_s(self) -> float:
        """Seconds for which facts have been in no snapshot, counted from the last one; 0 when it holds all of them."""
        return 0.0 if self._committer.state.position == self._saved else self._clock.mono() - self._saved_at

    async def run(self) -> None:
        """Until cancelled, or until the writer has stopped."""
        while not self._committer.failed.is_set():
            await self._clock.sleep(self._interval_s)
            await self.save()

    async def save(self) -> None:
        """Take one now, unless nothing changed since the last."""
        if self._committer.state.position == self._saved or self._committer.failed.is_set():
            return
        began = self._clock.mono()
        position = self._committer.state.position
        chunks: list[bytes] = []
        for chunk in snapshot_chunks(self._committer.state):
            chunks.append(chunk)
            await self._clock.sleep(0)
        try:
            await self._committer.settled()
            await self._log.save_snapshot(position, chunks)
        except (StokerError, LogFailed) as fault:
            self._telemetry.count("snapshot_faults")
            self._telemetry.warn("snapshot_failed", position=position, error=str(fault))
            return
        self._saved, self._saved_at = position, self._clock.mono()
        self._telemetry.observe("snapshot", self._clock.mono() - began)
        self._telemetry.gauge("snapshot_position", position)
