"""The state as the engine may read it.

A read-only facade over the state, used in process: no copies are made, so nobody may change what it returns.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from typing import NamedTuple, Protocol

import msgspec

from stoker.brain.domain.allocation import Claim, TaskPlacement
from stoker.brain.domain.demand import Shape
from stoker.brain.domain.gpu import Gpu
from stoker.brain.domain.ids import GpuUuid, JobId, NodeName, PartitionName, TenantName
from stoker.brain.domain.job import Job
from stoker.brain.domain.node import Free, Inventory, Node
from stoker.brain.domain.partition import Partition
from stoker.brain.domain.quota import Pools
from stoker.brain.domain.tenant import Tenant
from stoker.brain.domain.units import Instant
from stoker.brain.domain.where import Where
from stoker.brain.state.decayed_usage import TenantUse
from stoker.brain.state.usage_ledger import UsageLedger

GpuKinds = tuple[tuple[str, int], ...]
"""The distinct (model, memory in MiB) of *all* GPUs of a node, sorted. Nodes of one kind are searched together."""


class SharedRest(NamedTuple):
    """Rest of a GPU that tasks share, in the order in which shares are placed: the fullest first."""

    left: int
    """Thousandths."""
    node: NodeName
    device: int
    """Its index on the node."""


class Bucket(NamedTuple):
    """Pending jobs of one shape and one base priority, and of one time to begin where they were told one."""

    priority: int
    shape: Shape
    jobs: Sequence[JobId]
    """In order of submission, which is the order of ids, and of age."""
    arrays: Sequence[JobId] = ()
    """Arrays that may start another lazy member. Never empty together with `jobs`."""


class NodeClass(msgspec.Struct, frozen=True, eq=False):
    """Nodes that have the same GPUs, CPUs and memory."""

    kinds: GpuKinds
    inventory: Inventory
    """Of one of them."""
    names: Sequence[NodeName]
    """Sorted, never empty."""


class SelectedNodes:
    """The nodes ever registered on which a job may run, by labels, names and taints. Never changed once made."""

    __slots__ = ("_by_kinds", "classes", "everywhere", "kinds")

    def __init__(self, classes: Iterable[NodeClass], *, everywhere: bool) -> None:
        self.classes: Sequence[NodeClass] = tuple(classes)
        """By first name."""
        self.everywhere = everywhere
        """It's all of them."""
        self.kinds: Sequence[GpuKinds] = tuple(sorted({each.kinds: each.kinds for each in self.classes}.values()))
        """The kinds of their GPUs, sorted."""
        self._by_kinds: Mapping[GpuKinds, Sequence[NodeClass]] | None = None

    @property
    def by_kinds(self) -> Mapping[GpuKinds, Sequence[NodeClass]]:
        """The classes by the kinds of their GPUs, sorted. Kept for as long as the selection is remembered."""
        if self._by_kinds is None:
            found: dict[GpuKinds, list[NodeClass]] = {kinds: [] for kinds in self.kinds}
            for each in self.classes:
                found[each.kinds].append(each)
            self._by_kinds = found
        return self._by_kinds


class RunningJob(NamedTuple):
    """A job that holds resources, and what its end would free."""

    job: JobId
    shape: Shape
    """Whose it is, and what it asked for."""
    priority: int
    """Base priority, never aged."""
    ends_by: Instant
    """When it will have ended at the latest: by its time limit and the grace time after it."""
    tasks: Sequence[TaskPlacement]
    """What it holds: of a gang of which some tasks have ended, the others."""


class FutureRelease(NamedTuple):
    """Resources that the end of one job frees on one node."""

    ends_by: Instant
    """At the latest."""
    job: JobId
    gpus: Sequence[Gpu]
    cpus: int
    memory_mb: int


class View(Protocol):
    """The state at one time as the engine may read it."""

    partitions: Mapping[PartitionName, Partition]
    tenants: Mapping[TenantName, Tenant]
    pools: Pools
    usage_ledger: UsageLedger
    """Use by class and tenant. Not to be changed: take a copy."""
    tenant_use: TenantUse
    """What each tenant has used so far, where recent use counts more."""
    nodes: Mapping[NodeName, Node]
    """Every node ever registered."""
    free: Mapping[NodeName, Free]
    """What is free on each node that takes new work: in service (reachable, not drained, not forgotten), and
    returned."""
    returning: Mapping[NodeName, Free]
    """What is free on each node in service that hasn't returned, and so takes no new work yet."""
    free_milli: int
    """Thousandths of GPUs that nobody holds, on all nodes of `free` and `returning`."""
    shared: Sequence[SharedRest]
    """What is left of GPUs that tasks share, on the nodes of `free`; sorted."""
    by_free: Mapping[GpuKinds, Mapping[int, Sequence[NodeName]]]
    """The nodes of `free`, by kind and number of free GPUs; names sorted. Empty lists don't appear."""

    def pending(self) -> Iterable[Bucket]:
        """Return jobs that may be placed, in no particular order of buckets; those in a pause or held aren't in it."""
        ...

    claims: Mapping[JobId, Claim]
    """What is kept for jobs for which others were told to give way, oldest first."""
    preemptible: Collection[JobId]
    """Jobs that hold resources and may be preempted."""

    def live(self) -> Sequence[Job]:
        """Return the jobs that hold resources, in the order of ids."""
        ...

    def running(self, job: Job, now: Instant) -> RunningJob:
        """Return what a live job holds. Costs about 2 us."""
        ...

    def releases(self, node: NodeName, now: Instant) -> Sequence[FutureRelease]:
        """Return what the ends of jobs will free on a node, the earliest first. Cheap while nothing changes there."""
        ...

    def coming_free(self, node: NodeName) -> Set[GpuUuid]:
        """Return the GPUs of a node that jobs hold which are ending."""
        ...

    def held_on(self, node: NodeName) -> Collection[TaskPlacement]:
        """Return what tasks hold on a node, until their ends are proved."""
        ...

    def job(self, job: JobId) -> Job:
        """Return a record; lazy members of arrays have none."""
        ...

    def members(self, array: JobId) -> Iterator[JobId]:
        """Return the ids of the array's lazy members, in order."""
        ...

    def array_slots(self, array: JobId) -> int | None:
        """Return how many members of the array its own limit lets start now. None = it has no limit."""
        ...

    def admitted(self, where: Where) -> SelectedNodes:
        """Return the nodes that `where` admits. Cheap when it was asked for before and no node has changed."""
        ...

    def ports_in_use(self, address: str) -> Set[int]:
        """Return the rendezvous ports held by live attempts whose rank 0 is at `address`."""
        ...
