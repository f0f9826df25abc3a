"""Order in which looks at GPUs are made: one at a time, not too often, and by the first of two means that answers.

Rules: S1  a driver is asked one question at a time
       S2  of what is dear to ask no look begins sooner than `every_s` after the one before; whoever asks meanwhile gets
           the next one, which began after it was asked for, and so do all others who ask
       S3  the second means is asked only where the first has nothing to ask, or refuses; where it hangs, the second
           would hang in the same driver
"""

import asyncio
from collections.abc import Collection, Sequence

from msgspec.structs import replace

from stoker.agent.gpu_monitor import NothingToAsk, Sample
from stoker.brain.domain.gpu_telemetry import GpuLook
from stoker.brain.domain.ids import GpuUuid
from stoker.brain.domain.units import Mono
from stoker.ports import Clock


class OneAtATime:
    """Looks at devices that may be asked one question at a time (S1)."""

    def __init__(self, sample: Sample) -> None:
        self._sample = sample
        self._asking = asyncio.Lock()

    async def __call__(self, indexes: Sequence[int] | None, held: Collection[GpuUuid]) -> GpuLook:
        async with self._asking:
            return await self._sample(indexes, held)


class SeldomLooks:
    """Looks that are dear, shared by all who wait for one (S1, S2). All GPUs are looked at, whichever are asked for."""

    def __init__(self, sample: Sample, clock: Clock, every_s: float) -> None:
        self._sample = sample
        self._clock = clock
        self._every_s = every_s
        self._asking = asyncio.Lock()
        self._began: Mono | None = None
        self._look: GpuLook | None = None

    async def __call__(self, indexes: Sequence[int] | None, held: Collection[GpuUuid]) -> GpuLook:
        asked = self._clock.mono()
        async with self._asking:
            if self._look is None or self._began is None or self._began < asked:
                self._look = await self._next(held)
            look = self._look
        if indexes is None:
            return look
        return replace(look, samples=tuple(each for each in look.samples if each.index in indexes))

    async def _next(self, held: Collection[GpuUuid]) -> GpuLook:
        if self._began is not None:
            await self._clock.sleep(max(0.0, self._began + self._every_s - self._clock.mono()))
        self._look, self._began = None, self._clock.mono()
        return await self._sample(None, held)


class FirstThatAnswers:
    """Looks by one means, or by another where the first can't be used (S3)."""

    def __init__(self, first: Sample, second: Sample, hangs: type[OSError]) -> None:
        """`hangs`: what the first raises where it hangs."""
        self._first = first
        self._second = second
        self._hangs = hangs

    async def __call__(self, indexes: Sequence[int] | None, held: Collection[GpuUuid]) -> GpuLook:
        try:
            return await self._first(indexes, held)
        except self._hangs:
            raise
        except OSError as refused:
            try:
                return await self._second(indexes, held)
            except NothingToAsk:
                raise refused from None
