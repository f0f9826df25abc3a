"""Is a process allowed to run? SIGSTOP shuts its gate, SIGCONT opens it.

A stopped process is one whose every touch of the world waits: its sleeps, its messages, its reports. What its tasks do
between two touches costs no time on a virtual clock, so nothing more is needed to stop it.
"""

import asyncio

from stoker.brain.domain.units import Instant, Mono
from stoker.ports import Clock


class Gate:
    """Open at first."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()

    @property
    def is_open(self) -> bool:
        return self._open.is_set()

    def shut(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    async def passed(self) -> None:
        while not self._open.is_set():
            await self._open.wait()


class GatedClock:
    """The Clock port of a process that may be stopped: time goes on, but who slept wakes only once it may run."""

    def __init__(self, clock: Clock, gate: Gate) -> None:
        self._clock, self._gate = clock, gate

    def now(self) -> Instant:
        return self._clock.now()

    def mono(self) -> Mono:
        return self._clock.mono()

    def awake(self) -> Mono:
        return self._clock.awake()

    async def sleep(self, seconds: float) -> None:
        await self._clock.sleep(seconds)
        await self._gate.passed()
