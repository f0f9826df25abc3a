"""Feed of durable facts to any number of subscribers: a ring of the newest ones.

Each subscriber has a place of its own in it and costs nothing while it is away, so the writer never waits for one.

Rules: F1  only durable facts, in log order, each once
       F2  a subscriber that falls behind the ring gets FeedLost instead of a gap
       F3  after `close` every subscription ends once it has read what there is
       F4  the ring begins later where what it holds would take more memory than FEED_BYTES_MAX
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final

from stoker.brain.domain.ids import Position
from stoker.brain.state.codec import Fact
from stoker.brain.state.events.job import JobSubmitted

Entry = tuple[Position, Fact]

FEED_MAX: Final = 10_000
"""Facts kept for subscribers that lag or come back: seconds of the busiest hour, hours of a quiet one."""
FEED_BYTES_MAX: Final = 64 << 20
"""Memory of the submitted jobs among them, six times what as many usual ones take (F4)."""


class FeedLost(Exception):
    """The fact after `position` is no longer (or not yet) in the feed, whose oldest entry is at `oldest`."""

    def __init__(self, position: Position, oldest: Position) -> None:
        super().__init__(f"the feed begins at {oldest}; nothing after {position} can be had without a gap")
        self.position = position
        self.oldest = oldest


class Feed:
    """Ring of the newest `feed_max` durable facts, or fewer where they are large."""

    def __init__(self, newest: Position, *, feed_max: int = FEED_MAX, bytes_max: int = FEED_BYTES_MAX) -> None:
        """`newest` is the position of the last fact that happened before this feed began."""
        assert feed_max >= 1, f"a feed of {feed_max} would lose everything"
        self._ring: list[Entry | None] = [None] * feed_max
        self._sizes = [0] * feed_max
        self._bytes, self._bytes_max = 0, bytes_max
        self._began = newest
        self._newest = newest
        self._news = asyncio.Event()
        self._closed = False
        self._over = asyncio.Event()

    @property
    def newest(self) -> Position:
        return self._newest

    @property
    def oldest(self) -> Position:
        """Return the oldest position that can still be read; one beyond `newest` when there is none."""
        return Position(max(self._began, self._newest - len(self._ring)) + 1)

    def publish(self, entries: Sequence[Entry]) -> None:
        size = len(self._ring)
        for entry in entries:
            assert entry[0] == self._newest + 1, f"position {entry[0]} after {self._newest}"
            self._put(entry[0] % size, entry)
            self._newest = entry[0]
            while self._bytes > self._bytes_max and self.oldest < self._newest:
                self._began = self.oldest
                self._put(self._began % size, None)
        self._wake()

    def _put(self, at: int, entry: Entry | None) -> None:
        size = entry[1].event.spec.memory_bytes if entry and isinstance(entry[1].event, JobSubmitted) else 0
        self._bytes += size - self._sizes[at]
        self._ring[at], self._sizes[at] = entry, size

    def entries(self) -> list[Entry]:
        """Return all that can still be read, in order."""
        return [self._at(Position(at)) for at in range(self.oldest, self._newest + 1)]

    def close(self) -> None:
        self._closed = True
        self._over.set()
        self._wake()

    async def until_closed(self) -> None:
        """Wait until there will be no more facts: the control plane stops, or its tenure ends."""
        await self._over.wait()

    def subscribe(self, after: Position | None) -> AsyncIterator[Entry]:
        """Return the facts after `after`, in order and without end; None = from now on. Raises FeedLost, also later."""
        return self._follow(self._newest if after is None else after)

    async def _follow(self, cursor: Position) -> AsyncIterator[Entry]:
        while True:
            if not self.oldest - 1 <= cursor <= self._newest:
                raise FeedLost(cursor, self.oldest)
            if cursor < self._newest:
                cursor = Position(cursor + 1)
                yield self._at(cursor)
            elif self._closed:
                return
            else:
                await self._news.wait()

    def _at(self, position: Position) -> Entry:
        entry = self._ring[position % len(self._ring)]
        assert entry is not None, f"nothing stands at {position}"
        assert entry[0] == position, f"{entry[0]} stands where {position} should"
        return entry

    def _wake(self) -> None:
        # Subscribers that wait hold the old event; later ones wait for the next news.
        self._news.set()
        self._news = asyncio.Event()
