"""The log in a simulated database that several processes reach."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final

from stoker.brain.domain.ids import Epoch, Position
from stoker.ports import Clock, Entropy, LogFailed, LogTrimmed, Snapshot
from tests.rig.sim_disk import SimDisk
from tests.rig.sim_log import SimLog

GIVE_UP_S: Final = 30.0
"""How long it waits for a database that it can't reach."""


class SimSharedLog(SimLog):
    """The SharedLog port of the process `who` on a database that several reach."""

    def __init__(
        self,
        disk: SimDisk,
        clock: Clock,
        entropy: Entropy,
        *,
        who: str = "",
        look_back_max: int = 1_000_000,
        give_up_s: float = GIVE_UP_S,
    ) -> None:
        super().__init__(disk, clock, entropy, look_back_max=look_back_max)
        self._who, self._give_up_s = who, give_up_s

    async def open(self) -> Position:
        await self._reached()
        self._refusal = None
        return self._disk.end

    async def _append(self, epoch: Epoch, position: Position, records: Sequence[bytes]) -> None:
        try:
            await self._reached()
            await super()._append(epoch, position, records)
        except asyncio.CancelledError:
            self._refusal = LogFailed("an append was given up, and nobody knows whether it was done; open it anew")
            raise
        except LogFailed as fault:
            self._refusal = fault
            raise

    def _holds(self) -> bool:
        return True

    @property
    def floor(self) -> Epoch:
        """L9"""
        return max(self._disk.epoch, self._disk.moved_to)

    def _trimmed(self, position: Position) -> Exception:
        return LogTrimmed(f"records before {self._disk.first} were trimmed: follow from there, not from {position}")

    async def follow(self, position: Position) -> AsyncIterator[tuple[Position, bytes]]:
        await self._reached()
        if position > self._disk.end:
            raise LogTrimmed(f"the log ends at {self._disk.end}, before {position}: it isn't the one that it was")
        async for row in super().follow(position):
            yield row

    async def snapshot(self) -> Snapshot | None:
        await self._reached()
        return await super().snapshot()

    async def save_snapshot(self, position: Position, chunks: Sequence[bytes]) -> None:
        await self._reached()
        await super().save_snapshot(position, chunks)

    async def news(self, position: Position, within_s: float) -> bool:
        due_s = self._clock.mono() + within_s
        while True:
            if self._who in self._disk.cut_off:
                raise LogFailed("the database can't be reached")
            if self._disk.end > position:
                await self._clock.sleep(self._entropy.jitter(0.0002, 0.01))
                return True
            if (left_s := due_s - self._clock.mono()) <= 0:
                return False
            try:
                async with asyncio.timeout(left_s):
                    await self._disk.news.wait()
            except TimeoutError:
                return False

    async def _reached(self) -> None:
        """Wait for the database as long as the real one does. Raises: LogFailed."""
        due_s = self._clock.mono() + self._give_up_s
        while self._who in self._disk.cut_off:
            if self._clock.mono() >= due_s:
                raise LogFailed(f"the database hasn't answered for {self._give_up_s:g} s")
            await self._clock.sleep(0.2)

    async def close(self) -> None:
        self._refusal = LogFailed("the log is closed")
