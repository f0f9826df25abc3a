"""Ports of the agent to the GPUs of its node: where they are, and whether they are well."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

import msgspec

from stoker.brain.domain.gpu_telemetry import FigureWatch
from stoker.brain.domain.ids import GpuUuid
from stoker.brain.domain.instruction import TaskKey
from stoker.brain.domain.report import Beat
from stoker.ports import Clock

Holders = Mapping[GpuUuid, Sequence[TaskKey]]
"""The tasks that may have processes on each GPU that is held."""


class Placement(msgspec.Struct, frozen=True):
    """Devices and CPUs of its node to which a task is held, by the GPUs that it has."""

    denied: tuple[tuple[int, int], ...] = ()
    """Character devices that it may not open, by major and minor number."""
    cpus: tuple[int, ...] = ()
    """Numbers of the CPUs on which it runs. Empty = all that the agent may use."""


class Locality(Protocol):
    """Knows where GPUs are."""

    def placement(self, gpus: Sequence[GpuUuid], cpus: int) -> Placement:
        """Return what a task with these GPUs and so many CPUs is held to."""
        ...


class NoLocality:
    """Knows nothing: no task is held to anything."""

    def placement(self, gpus: Sequence[GpuUuid], cpus: int) -> Placement:
        return Placement()


class GpuCare(Protocol):
    """Watch over what the GPUs of this node do."""

    def fill(self, beat: Beat) -> Beat:
        """Return a beat with the figures of GPUs that none had before, and with this node's clock."""
        ...

    async def run(self, holders: Callable[[], Holders | None], tell: Callable[[], None]) -> None:
        """Look at the GPUs again and again, until cancelled. `holders` returns None while nobody knows what runs.

        `tell` is called when there are figures that somebody waits for.
        """
        ...

    def watch(self, asked: FigureWatch) -> None:
        """Look more often for a while, and have told what is seen: somebody waits for it."""
        ...

    async def released(self, gpus: Collection[GpuUuid], *, went_well: bool) -> str:
        """Return once these GPUs, whose task has just ended, are clean or no longer offered.

        What is returned are faults of theirs that may have ended a task which didn't end well; empty = none.
        """
        ...


class NoGpuCare:
    """A node whose GPUs show no figures."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def fill(self, beat: Beat) -> Beat:
        return msgspec.structs.replace(beat, at=self._clock.now())

    async def run(self, holders: Callable[[], Holders | None], tell: Callable[[], None]) -> None:
        return None

    def watch(self, asked: FigureWatch) -> None:
        """There is nothing to look at."""

    async def released(self, gpus: Collection[GpuUuid], *, went_well: bool) -> str:
        return ""
