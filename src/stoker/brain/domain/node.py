"""What is a node, and what of it is free?"""

import re
from typing import Final

import msgspec

from stoker.brain.domain.allocation import TaskPlacement
from stoker.brain.domain.gpu import Gpu
from stoker.brain.domain.ids import GpuUuid, JobId, NodeName
from stoker.brain.domain.units import NEVER, Instant

NODE_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,63}")
"""What a host may be called, with dots, dashes and capitals; nothing that a path, a label or a table would mind."""
ROOT: Final = "root"


class OrphanTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task that a node runs, or may run, although it isn't live in our ledger. It is told to stop; until its end is
    reported its GPUs are not offered and are charged to nobody."""

    job: JobId
    attempt: int
    rank: int
    gpus: tuple[GpuUuid, ...]
    settled_at: Instant = NEVER
    """When it was settled without proof, since its node was silent: until the node says what it runs, its GPUs are in
    quarantine. NEVER = the node itself has said that it runs."""

    @property
    def unproved(self) -> bool:
        return self.settled_at != NEVER

    @property
    def key(self) -> tuple[JobId, int, int]:
        """(job, attempt, rank)"""
        return self.job, self.attempt, self.rank


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    """What a node is and has, as its agent measured it. Units: MiB, whole CPUs."""

    boot_id: str
    address: str
    """Where other nodes reach it; ranks meet at rank 0's address."""
    gpus: tuple[Gpu, ...]
    """In PCI order."""
    cpus: int
    memory_mb: int
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    taints: tuple[str, ...] = ()
    """Each as `key=value:NoSchedule` or `key:NoSchedule`."""
    executors: tuple[str, ...] = ("process",)
    simulated: bool = False
    """True when its GPUs, CPUs and memory are scripted rather than found."""
    version: str = ""
    account: str = ""
    """Unix account of its agent. `root` = it runs each job as the job's own user; else it runs all as itself. Empty =
    an agent of an older version, which runs all as itself."""
    allow_root: bool = True
    """May jobs run as root, those that name no user among them? Only asked where the agent is root."""
    keeps_leases: bool = False
    """Does it surely end tasks whose lease has run out, also when its agent or its runner has died?"""
    agent_uid: str = ""
    """Made once per agent data folder: tells a restarted agent from a second machine under the same name."""

    @property
    def only_users(self) -> bool:
        """Does it run only jobs that name a Unix user, and none as root?"""
        return self.account == ROOT and not self.allow_root


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A machine with an agent. Its state word is derived: see `state.view`."""

    name: NodeName
    inventory: Inventory
    registered_at: Instant
    reachable: bool = True
    silent_since: Instant = NEVER
    """When it was last heard of. Counted from the beginning of the epoch where it hasn't been heard of in it."""
    returned: bool = True
    """Has it said what it runs since the present epoch began? Until then nobody knows whether it is alive."""
    drain: str | None = None
    """Why a person drains it. None = it isn't drained."""
    forgotten: bool = False
    strays: tuple[OrphanTask, ...] = ()
    labels: dict[str, str | None] = msgspec.field(default_factory=dict)
    """Set by people, over those of the inventory. None = taken off."""
    taints: tuple[str, ...] = ()
    """Put on by people, beside those of the inventory."""
    taints_off: tuple[str, ...] = ()
    """Keys of taints of the inventory that people took off."""

    @property
    def schedulable(self) -> bool:
        """Is it in service?"""
        return self.reachable and self.drain is None and not self.forgotten

    @property
    def takes_work(self) -> bool:
        return self.schedulable and self.returned


class Free(msgspec.Struct, frozen=True):
    """What one node has left. Take and release give a new value, so a draft can speculate by holding on to the old."""

    gpus: tuple[Gpu, ...]
    """In PCI order; GPUs of strays are not in it."""
    cpus: int
    memory_mb: int

    def take(self, placement: TaskPlacement) -> "Free":
        """What is left after `placement`. Taking what isn't free is a bug."""
        held = placement.gpus
        left = tuple(gpu for gpu in self.gpus if gpu.uuid not in held) if held else self.gpus
        assert len(left) == len(self.gpus) - len(held), f"a GPU is promised twice: {placement} from {self}"
        assert self.cpus >= placement.cpus, f"overdrawn CPUs: {placement} from {self}"
        assert self.memory_mb >= placement.memory_mb, f"overdrawn memory: {placement} from {self}"
        return Free(left, self.cpus - placement.cpus, self.memory_mb - placement.memory_mb)
