"""What must every copy of a History be? Inherit this beside the contract of the History itself."""

import hashlib

import pytest

from stoker.brain.domain.units import Instant
from stoker.ports import HistoryCopy, HistoryFailed
from tests.contracts.history import (
    HOLDINGS,
    SOME_JOBS,
    HistoryStore,
    all_jobs,
    at,
    batch,
    ended,
    held,
    offer,
    opened,
    query,
    summed,
)


async def whole(copy: HistoryCopy) -> bytes:
    """Read to its end, and closed."""
    pieces = []
    while piece := await copy.read():
        pieces.append(piece)
    await copy.close()
    await copy.close()
    return b"".join(pieces)


class CopyContract:
    async def test_a_copy_holds_every_batch_that_was_recorded_before_and_none_after(self, store: HistoryStore) -> None:
        """H5"""
        async with opened(store) as history:
            await history.record(batch(1, *SOME_JOBS, holdings=HOLDINGS, offers=[offer("n1", 100, 8)]))
            copy = await history.copy()
            await history.record(batch(2, ended(77), holdings=[held(77, 0, 9)]))
            content = await whole(copy)
            before = await all_jobs(history)
        async with opened(store.of_copy(content)) as copied:
            assert [job.id for job in await all_jobs(copied)] == [job.id for job in before if job.id != 77]
            assert await copied.usage(query(), 9) == summed(query(), HOLDINGS)
            assert await copied.offers(Instant(0), Instant(200)) == [offer("n1", 100, 8)]
            assert await store.of_copy(content).history().open() == at(1)

    async def test_a_copy_says_its_length_and_its_sum(self, store: HistoryStore) -> None:
        async with opened(store) as history:
            await history.record(batch(1, ended(1)))
            copy = await history.copy()
            content = await whole(copy)
            assert (copy.size, copy.sha256) == (len(content), hashlib.sha256(content).hexdigest())

    async def test_what_cant_be_used_cant_be_copied(self, store: HistoryStore) -> None:
        """H3"""
        history = store.history()
        with pytest.raises(HistoryFailed):
            await history.copy()
        await history.close()
