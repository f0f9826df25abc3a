"""REST shapes of nodes and their GPUs, and of the bodies that change a node."""

from typing import Annotated, Final

import msgspec

from stoker.brain.domain.gpu import GpuStatus
from stoker.brain.domain.health import HealthKind, HealthState
from stoker.brain.domain.label import Source
from stoker.brain.domain.lifecycle import NodeState
from stoker.wire.rest.gpu_figures import GpuFiguresView

REASON_MAX: Final = 4_096
CHANGES_MAX: Final = 1_000
"""Labels or taints in one request; the policy takes fewer on one node."""


class GpuHealthView(msgspec.Struct, frozen=True, kw_only=True):
    """Health of one GPU."""

    state: HealthState
    """Only a healthy or suspect one gets new work."""
    kind: HealthKind | None = None
    reason: str = ""
    since: str | None = None
    """By the clock of its node."""


class GpuSharerView(msgspec.Struct, frozen=True, kw_only=True):
    """One task that shares a GPU. `job` is empty where the caller may not see where it runs."""

    job: str
    share: float
    """Part of the GPU that it holds."""
    memory_mb: int
    """Bound of its memory there."""


class GpuView(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU. `id` is for people and the dgpu dialect; `uuid` is its name. `memory` and `memory_mb` are MiB.

    `lost`: its node has had it, and can't open or read it now. `offline`: its node takes no new work, or something that
    isn't a job of ours holds it.
    `quarantined`: its node was silent for so long that the job that had it was started elsewhere; it isn't offered, and
    charged to nobody, until the node says that it is clean.
    """

    id: str
    uuid: str
    node_id: str
    node: str
    device_index: int
    """Of a MIG instance 1000 x (index of its GPU + 1) + its own number there."""
    model: str
    memory: int
    memory_mb: int
    status: GpuStatus
    current_task: str | None
    simulated: bool
    updated_at: str
    note: str = ""
    """Of one in quarantine: because of which job, since when, and what ends it."""
    sharers: list[GpuSharerView] = []
    """Tasks that share it; empty while nobody does. `current_task` is then the job of one of them."""
    free_share: float = 0
    """Part of it that nobody holds: 1 of an idle one."""
    health: GpuHealthView = GpuHealthView(state=HealthState.HEALTHY)
    parent: str = ""
    """UUID of the GPU of which this is a MIG instance. Its temperature and power are those of that GPU. Empty: it is a
    GPU of its own."""
    numa_node: int | None = None
    """NUMA node that it is beside. Null: it isn't told."""
    bus: str = ""
    """PCI address, as the driver writes it. Empty: it has none."""
    figures: GpuFiguresView | None = None
    """What it does at the moment. Null = its node has told nothing of it."""


class GpuLinkView(msgspec.Struct, frozen=True, kw_only=True):
    """NVLinks between two GPUs of a node, directly or through switches. Placement doesn't look at them yet."""

    first: int
    second: int
    """`device_index` of both, the lower one first."""
    lanes: int


class GpuListView(msgspec.Struct, frozen=True, kw_only=True):
    """Every GPU of every node that wasn't forgotten. total = idle + busy + offline + quarantined + lost."""

    total: int
    idle: int
    busy: int
    offline: int
    quarantined: int = 0
    lost: int = 0
    gpus: list[GpuView]


def gpu_id(node: str, index: int) -> str:
    """The dgpu dialect's name of a GPU. It is never taken apart again: node names may hold dashes."""
    return f"{node}-gpu-{index}"


class FreeView(msgspec.Struct, frozen=True, kw_only=True):
    """Resources that new work could have on the node now."""

    gpus: int
    cpus: int
    memory_mb: int


class NodeHealthView(msgspec.Struct, frozen=True, kw_only=True):
    """Health of a node by itself. A person's drain is none of it: `drain` says that."""

    state: HealthState
    """A drained one gets no new work; nor does one that is repairing, for a while."""
    reasons: tuple[str, ...] = ()
    """The gravest first."""


class OrphanTaskView(msgspec.Struct, frozen=True, kw_only=True):
    """A task that runs on the node although it shouldn't, or may still run there.

    The node hasn't said yet that it doesn't. It is told to stop; its GPUs are kept out of use until then.
    """

    job: str
    attempt: int
    rank: int
    gpus: tuple[str, ...]
    quarantined_since: str | None = None
    """When it was settled without a word of the node, which was silent too long. Null = the node says that it runs."""


class PauseView(msgspec.Struct, frozen=True, kw_only=True):
    """A time in which the node gets no new work, because starts failed there in a row. `node resume` ends it."""

    until: str
    error: str
    """What the last of them said."""


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """A machine with an agent. `_mb` are MiB."""

    name: str
    state: NodeState
    online: bool
    schedulable: bool
    drain: str | None
    """Why a person drains it; null when nobody does."""
    drained_by: str = ""
    """Who drains it; empty when nobody does, and of nodes drained by an older version."""
    drained_at: str | None = None
    pause: PauseView | None = None
    silent_since: str | None
    registered_at: str
    address: str
    cpus: int
    memory_mb: int
    free: FreeView
    gpus: list[GpuView]
    links: list[GpuLinkView] = []
    """Pairs of its GPUs that NVLink joins."""
    jobs: list[str]
    strays: list[OrphanTaskView]
    labels: dict[str, str]
    """Every label that a selector may ask for."""
    labels_by: dict[str, Source] = {}
    """Who set each: the node's agent (`node.labels` in agent.yaml), people, or Stoker itself."""
    labels_off: tuple[str, ...] = ()
    """Keys of labels that people took off."""
    taints: tuple[str, ...] = ()
    """Each as `KEY=VALUE:NoSchedule` or `KEY:NoSchedule`."""
    taints_by: dict[str, Source] = {}
    """Who put each on, by key."""
    taints_off: tuple[str, ...] = ()
    """Keys of taints that people took off."""
    executors: tuple[str, ...]
    account: str = ""
    """Unix account of its agent. `root`: each job runs as its own user. Another: all jobs run as that one. Empty: an
    agent of an older version, which runs all as its own account."""
    allow_root: bool = False
    """Where the agent is root: do jobs run as root that name no user, or root?"""
    keeps_leases: bool = False
    """Does it surely end jobs by itself when it was cut off for too long? Only then are they started elsewhere."""
    health: NodeHealthView = NodeHealthView(state=HealthState.HEALTHY)
    clock_ahead_s: float = 0
    """By how much its clock is ahead of the control plane's, below 0 behind; 0: it is right, or hasn't told."""
    fault: str = ""
    """What keeps it from starting and ending jobs, in words. Until that is over it gets no new work. Empty: nothing."""
    limits: str = ""
    """Why it offers fewer CPUs or GPUs than it has, in words: too few open files or processes, or GPUs that its agent's
    environment hides. Empty: it doesn't."""
    gpu_fault: str = ""
    """Why not every GPU of it could be read, in the driver's words; its agent looks again. Empty: all could."""
    containers_fault: str = ""
    """Why it runs no containers although it is set up to."""
    shares_gpus: bool = True
    """False: its agent is of an older version, and lets no two tasks share a GPU."""
    mps: str = ""
    """Pipe folder of NVIDIA's MPS, which bounds what each sharer of a GPU takes. Empty: only programs themselves keep
    to their shares."""
    unenforced: str = ""
    """Limits that the node can't hold jobs to, in words, since it may make no cgroup or lacks a controller. Empty: it
    holds them to all."""
    simulated: bool
    version: str
    boot_id: str


class LabelsBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Labels to set, and keys of labels to take off. Labels that aren't named stay as they are."""

    labels: Annotated[dict[str, str], msgspec.Meta(max_length=CHANGES_MAX)] = {}
    """To set."""
    remove: Annotated[list[str], msgspec.Meta(max_length=CHANGES_MAX)] = []
    """Keys to take off."""


class TaintsBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Taints to put on, and keys of taints to take off. Taints that aren't named stay as they are."""

    taints: Annotated[list[str], msgspec.Meta(max_length=CHANGES_MAX)] = []
    """Each as `KEY=VALUE:NoSchedule` or `KEY:NoSchedule`."""
    remove: Annotated[list[str], msgspec.Meta(max_length=CHANGES_MAX)] = []
    """Keys to take off."""


class NodeListView(msgspec.Struct, frozen=True, kw_only=True):
    nodes: list[NodeView]
    total: int


class DrainBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    reason: Annotated[str, msgspec.Meta(max_length=REASON_MAX)] = ""
    """For people."""


class ForgetQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`force` settles what the node holds without proof that it is gone."""

    force: bool = False
