"""What may the engine see?

A read-only facade over the state, used in process: no copies are made, so nobody may change what it returns.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import NamedTuple, Protocol

from stoker.brain.domain.demand import Shape
from stoker.brain.domain.ids import Epoch, JobId, NodeName, Position
from stoker.brain.domain.job import Job
from stoker.brain.domain.node import Free, Node

GpuKinds = tuple[tuple[str, int], ...]
"""The distinct (model, memory_mb) of *all* GPUs of a node, sorted. Nodes of one kind are searched together."""


class Bucket(NamedTuple):
    """Pending jobs of one shape and one base priority."""

    priority: int
    shape: Shape
    jobs: Sequence[JobId]
    """In order of submission, which is the order of ids. Never empty."""


class View(Protocol):
    """The state as the engine may read it."""

    @property
    def position(self) -> Position:
        """Of the newest event in it."""
        ...

    @property
    def epoch(self) -> Epoch: ...

    def pending(self) -> Iterable[Bucket]:
        """Jobs that may be placed, in no particular order of buckets; jobs in a pause or held aren't in it."""
        ...

    def job(self, job: JobId) -> Job: ...

    @property
    def nodes(self) -> Mapping[NodeName, Node]:
        """Every node ever registered."""
        ...

    @property
    def free(self) -> Mapping[NodeName, Free]:
        """What is free on each node that takes new work (ready: reachable, not drained, not forgotten)."""
        ...

    @property
    def by_free(self) -> Mapping[GpuKinds, Mapping[int, Sequence[NodeName]]]:
        """The nodes of `free`, by kind and number of free GPUs; names sorted. Empty lists don't appear."""
        ...

    def ports_in_use(self, address: str) -> Set[int]:
        """Rendezvous ports held by live attempts whose rank 0 is at `address`."""
        ...
