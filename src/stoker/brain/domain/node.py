"""Node records, inventories, free resources and orphan tasks."""

import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Final

import msgspec

from stoker.brain.domain.allocation import TaskPlacement
from stoker.brain.domain.gpu import WHOLE_GPU, Gpu, GpuLink, SharedGpu
from stoker.brain.domain.health import GpuCondition
from stoker.brain.domain.ids import GpuUuid, JobId, NodeName, Principal
from stoker.brain.domain.units import NEVER, Instant

NODE_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,63}")
"""Names of nodes: host names with dots, dashes and capitals, safe in a path, a label and a table."""
NODE_GLOB: Final = re.compile(r"[A-Za-z0-9._*?-]{1,63}")
"""A name, or a pattern of names with `*` and `?`."""
ROOT: Final = "root"
CONTAINER: Final = "container"
"""Kind of executor."""
UNREAD_MAX: Final = 1_024
CPUS_PER_GPU: Final = 4
MEMORY_MB_PER_GPU: Final = 32 * 1024
"""What a node whose GPUs are simulated offers for each of them, unless it is told otherwise."""


class OrphanTask(msgspec.Struct, frozen=True, kw_only=True):
    """Orphan task: a node runs it, or may run it, although it isn't live in the cluster state.

    The node is told to stop it. Until its end is reported its GPUs are not offered and are charged to nobody.
    """

    job: JobId
    attempt: int
    rank: int
    gpus: tuple[GpuUuid, ...]
    settled_at: Instant = NEVER
    """When it was settled without proof, since its node was silent: until the node says what it runs, its GPUs are in
    quarantine. NEVER = the node itself has said that it runs."""

    @property
    def unproved(self) -> bool:
        """Whether it was settled without proof, so that its GPUs are in quarantine."""
        return self.settled_at != NEVER

    @property
    def key(self) -> tuple[JobId, int, int]:
        """The task as (job, attempt, rank)."""
        return self.job, self.attempt, self.rank


class Inventory(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Resources and properties of a node, as its agent measured them. Units: MiB, whole CPUs."""

    boot_id: str
    address: str
    """Host name or address for other nodes; the ranks of a gang meet at that of rank 0."""
    gpus: tuple[Gpu, ...]
    """In PCI order, MIG instances last."""
    cpus: int
    memory_mb: int
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    taints: tuple[str, ...] = ()
    """Each as `key=value:NoSchedule` or `key:NoSchedule`."""
    executors: tuple[str, ...] = ("process",)
    """How it runs jobs now: as processes, in containers, or both."""
    containers_fault: str = ""
    """Why it runs no containers although it is set up to, in words. Empty = it does, or isn't."""
    simulated: bool = False
    """True when its GPUs, CPUs and memory are scripted rather than found."""
    version: str = ""
    account: str = ""
    """Unix account of its agent. `root` = it runs each job as the job's own user; else it runs all jobs as itself.
    Empty = an agent of an older version, which runs all jobs as itself."""
    allow_root: bool = True
    """Whether jobs may run as root, also those that name no user. Counts only where the agent is root."""
    keeps_leases: bool = False
    """Whether it surely ends tasks whose lease has run out, also when its agent or its runner has died."""
    agent_uid: str = ""
    """Drawn once per agent data folder: tells a restarted agent from a second machine under the same name."""
    fault: str = ""
    """What keeps it from starting and ending tasks, in words: a full disk, a stopped runner. Empty = nothing."""
    opens_no_stream: bool = False
    """Whether it can't say what it runs as long as that lasts, and so isn't heard of although its agent lives."""
    limits: str = ""
    """Why it offers fewer CPUs or less memory than it has, in words: too few open files or processes, or what a process
    may have. Empty = it doesn't."""
    gpu_fault: str = ""
    """Why not every GPU could be read, in the driver's words. Empty = all could."""
    links: tuple[GpuLink, ...] = ()
    """Pairs of its GPUs that NVLink joins, in the order of their indexes."""
    withheld: tuple[Gpu, ...] = ()
    """GPUs that it has and doesn't offer now, since they aren't healthy. None of them is among `gpus`."""
    conditions: tuple[GpuCondition, ...] = ()
    """GPUs that aren't healthy. Of these only suspect ones are among `gpus`."""
    reads_latin_1: bool = True
    """Whether its agent knows texts of jobs in Latin-1. False = one of an older version, which takes all for UTF-8."""
    keeps_scripts: bool = True
    """Whether its agent knows scripts that come with a job. False = one of an older version, which would look for them
    on its own disk."""

    shares_gpus: bool = True
    """Whether its agent lets several tasks share a GPU. False = one of an older version, which refuses the second."""
    mps: str = ""
    """Pipe folder of NVIDIA's MPS there, which bounds what a sharer takes of a GPU. Empty = it has none, and only the
    programs themselves keep to their shares."""
    unenforced: str = ""
    """Limits that it can't hold tasks to, in words, since it may make no cgroup or lacks a controller. Empty = it holds
    them to all of theirs, or its agent is of an older version."""

    @property
    def only_users(self) -> bool:
        """Whether it runs only jobs that name a Unix user, and none as root."""
        return self.account == ROOT and not self.allow_root

    # Found once for as long as it is reported, since the engine asks for it at each placement.
    @cached_property
    def has_like_gpus(self) -> bool:
        """Whether any of its GPUs does as well as any other: one model, as much memory, no instance, none suspect."""
        gpus = self.gpus
        for gpu in gpus:
            if gpu.suspect or gpu.parent or gpu.model != gpus[0].model or gpu.memory_mb != gpus[0].memory_mb:
                return False
        return True


class NodePause(msgspec.Struct, frozen=True, kw_only=True):
    """A time without new work, because starts failed there."""

    until: Instant
    error: str
    """What the last of them said, for people."""


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A machine with an agent; `ClusterState.node_state` derives its public state."""

    name: NodeName
    inventory: Inventory
    registered_at: Instant
    shrunk_at: Instant = NEVER
    """When it last said that it has fewer CPUs or less memory than before."""
    reachable: bool = True
    silent_since: Instant = NEVER
    """When an unreachable node was last heard of; the beginning of the epoch where that was before it."""
    returned: bool = True
    """Whether it has said what it runs since the present epoch began; until then it may be dead."""
    drain: str | None = None
    """The reason of its drain. None = it isn't drained."""
    drained_by: Principal = Principal("")
    """Who drains it; empty while nobody does, and of nodes drained before this was noted."""
    drained_at: Instant = NEVER
    forgotten: bool = False
    strays: tuple[OrphanTask, ...] = ()
    labels: dict[str, str | None] = msgspec.field(default_factory=dict)
    """Set by people, over those of the inventory. None = taken off."""
    taints: tuple[str, ...] = ()
    """Put on by people, beside those of the inventory."""
    taints_off: tuple[str, ...] = ()
    """Keys of taints of the inventory that people took off."""
    unread: tuple[Gpu, ...] = ()
    """GPUs that it has had and, as long as its inventory has a `gpu_fault`, can't be read: known, and not offered. At
    most `UNREAD_MAX`."""

    failed_starts: tuple[str, ...] = ()
    """Whose starts failed there in a row: jobs, and people; each once."""
    pauses: int = 0
    """Pauses begun since a task last started there after one."""
    pause: NodePause | None = None

    @property
    def mended(self) -> Inventory:
        """Its inventory once every GPU can be read again, as far as is known."""
        inventory = self.inventory
        return msgspec.structs.replace(inventory, gpus=inventory.gpus + self.unread) if self.unread else inventory

    @property
    def hides_unknown(self) -> bool:
        """Whether it has GPUs that could never be read, so that nobody knows how many and which."""
        return bool(self.inventory.gpu_fault) and not self.unread

    @property
    def gpus_by_uuid(self) -> dict[GpuUuid, Gpu]:
        """Its GPUs but those that orphan tasks keep: these don't come free with the end of another task."""
        kept = {uuid for stray in self.strays for uuid in stray.gpus}
        return {gpu.uuid: gpu for gpu in self.inventory.gpus if gpu.uuid not in kept}

    @property
    def schedulable(self) -> bool:
        """Whether it is in service: reachable, without a fault, not drained, not forgotten, in no pause."""
        barred = self.drain is not None or self.pause is not None or self.forgotten
        return self.reachable and not barred and not self.inventory.fault

    @property
    def takes_work(self) -> bool:
        """Whether it gets new work: it is in service and has said what it runs."""
        return self.schedulable and self.returned


class Free(msgspec.Struct, frozen=True, gc=False):
    """Free GPUs, CPUs and memory of one node; a frozen value, so a draft can roll back by keeping the old one."""

    gpus: tuple[Gpu, ...]
    """In PCI order, without the GPUs of orphan tasks."""
    cpus: int
    memory_mb: int
    shared: tuple[SharedGpu, ...] = ()
    """What is left of the GPUs that have sharers, in PCI order; without those of orphan tasks."""

    @property
    def gpu_milli(self) -> int:
        """Thousandths of its GPUs that nobody holds."""
        return len(self.gpus) * WHOLE_GPU + sum([rest.left for rest in self.shared])

    def take(self, placement: TaskPlacement) -> "Free":
        """Return the resources left after `placement`, which must be free."""
        held, left = placement.gpus, self.gpus
        if len(held) == 1 and left and left[0].uuid == held[0]:  # most often
            left = left[1:]
        elif held:
            first = left[: len(held)]
            if tuple([gpu.uuid for gpu in first]) == held:
                left = left[len(held) :]
            else:
                left = tuple([gpu for gpu in left if gpu.uuid not in held])
        taken = len(self.gpus) - len(left)
        is_whole = placement.gpu_share == WHOLE_GPU
        assert not is_whole or taken == len(held), f"a GPU is promised twice: {placement} from {self}"
        assert self.cpus >= placement.cpus, f"overdrawn CPUs: {placement} from {self}"
        assert self.memory_mb >= placement.memory_mb, f"overdrawn memory: {placement} from {self}"
        cpus, memory_mb = self.cpus - placement.cpus, self.memory_mb - placement.memory_mb
        shared = self.shared if is_whole else self._shared_with(placement)
        return Free(left, cpus, memory_mb, shared)

    def _shared_with(self, placement: TaskPlacement) -> tuple[SharedGpu, ...]:
        uuid, rests = placement.gpus[0], {rest.gpu.uuid: rest for rest in self.shared}
        rest = rests.get(uuid) or next(
            SharedGpu(gpu, WHOLE_GPU, gpu.memory_mb, 0) for gpu in self.gpus if gpu.uuid == uuid
        )
        left, memory_mb = rest.left - placement.gpu_share, rest.memory_left_mb - placement.gpu_memory_mb
        assert left >= 0, f"overdrawn GPU: {placement} from {self}"
        rests[uuid] = SharedGpu(rest.gpu, left, memory_mb, rest.sharers + 1)
        return tuple(sorted(rests.values(), key=_index))

    def put_back_share(self, placement: TaskPlacement) -> "Free":
        """Return this with the share of `placement` given back; its CPUs and memory are the caller's to add.

        A GPU without sharers is free whole. One that isn't among the shared ones (an orphan task's) stays gone.
        """
        uuid, gpus = placement.gpus[0], self.gpus
        rests = {rest.gpu.uuid: rest for rest in self.shared}
        rest = rests.pop(uuid, None)
        if rest is None:
            return self
        if rest.sharers == 1:
            gpus = tuple(sorted((*gpus, rest.gpu), key=lambda gpu: gpu.index))
        else:
            left, memory_mb = rest.left + placement.gpu_share, rest.memory_left_mb + placement.gpu_memory_mb
            rests[uuid] = SharedGpu(rest.gpu, left, memory_mb, rest.sharers - 1)
        return Free(gpus, self.cpus, self.memory_mb, tuple(sorted(rests.values(), key=_index)))


def _index(rest: SharedGpu) -> int:
    return rest.gpu.index


def free_on(node: Node, held: Iterable[TaskPlacement]) -> Free:
    """Return the resources that a node has left beside its tasks and orphan tasks.

    An inventory that shrank under its tasks leaves nothing.
    """
    cpus, memory_mb = node.inventory.cpus, node.inventory.memory_mb
    taken: dict[GpuUuid, None] = {uuid: None for stray in node.strays for uuid in stray.gpus}
    sharers: dict[GpuUuid, list[TaskPlacement]] = {}
    for placement in held:
        cpus -= placement.cpus
        memory_mb -= placement.memory_mb
        if placement.gpu_share != WHOLE_GPU:
            sharers.setdefault(placement.gpus[0], []).append(placement)
            continue
        for uuid in placement.gpus:
            taken[uuid] = None
    gpus, shared = node.inventory.gpus, tuple[SharedGpu, ...]()
    if sharers:
        shared = tuple(_rest(gpu, sharers[gpu.uuid]) for gpu in gpus if gpu.uuid in sharers and gpu.uuid not in taken)
        taken.update(dict.fromkeys(sharers))
    if taken:
        gpus = tuple(gpu for gpu in gpus if gpu.uuid not in taken)
    return Free(gpus, max(cpus, 0), max(memory_mb, 0), shared)


def _rest(gpu: Gpu, sharers: Sequence[TaskPlacement]) -> SharedGpu:
    left = WHOLE_GPU - sum([each.gpu_share for each in sharers])
    return SharedGpu(gpu, left, gpu.memory_mb - sum([each.gpu_memory_mb for each in sharers]), len(sharers))
