"""REST shapes of the whole cluster, and of one of several control planes."""

from typing import Literal

import msgspec


class FreeGpusView(msgspec.Struct, frozen=True, kw_only=True):
    """Whole GPUs of one model that new work could have now. A quota or a reservation may still keep a job waiting."""

    model: str
    free_gpus: int
    """On all nodes that take new work."""
    most_on_node: int
    """On the one of them that has most: as many as a task can have."""


class ClusterView(msgspec.Struct, frozen=True, kw_only=True):
    """The MVP's seven numbers, and ours beside them. Jobs are those still remembered.

    `pending_jobs` and `running_jobs` use the MVP's words: what is held or starting waits, what is stopping runs.
    """

    total_gpus: int
    available_gpus: int
    busy_gpus: int
    offline_gpus: int
    quarantined_gpus: int = 0
    lost_gpus: int = 0
    shared_gpus: int = 0
    """Of the busy ones: held by jobs that ask for a share of one."""
    sharing_nodes_without_mps: int = 0
    """Nodes on which they are shared with nothing but the programs themselves to keep to the shares."""
    total_nodes: int
    online_nodes: int
    total_jobs: int
    pending_jobs: int
    running_jobs: int
    jobs: dict[str, int]
    nodes: dict[str, int]
    simulated: bool
    cluster_id: str
    epoch: int
    position: int
    version: str
    last_pass_age_s: float
    free_by_model: list[FreeGpusView] = []
    """By model; of models of which none is free, nothing."""
    longest_wait_s: int | None = None
    """For how long the oldest job has waited that may be placed: since it was submitted, or was told to begin. Null =
    none waits."""


class HealthView(msgspec.Struct, frozen=True, kw_only=True):
    """The process serves. Whether the cluster makes progress is `/ready`'s answer."""

    status: Literal["ok"] = "ok"
    version: str
    cluster_id: str
    epoch: int
    clock_ahead_ms: int = 0
    """How far the time of its log is ahead of its wall clock, which was set back."""


class ReadyView(msgspec.Struct, frozen=True, kw_only=True):
    status: Literal["ready"] = "ready"
    last_pass_age_s: float
    position: int


class ControlView(msgspec.Struct, frozen=True, kw_only=True):
    """One control plane, as it sees itself and the marker that they share."""

    name: str = ""
    """Empty = it is the only one."""
    role: Literal["active", "standby"]
    epoch: int
    """Of the marker, as it was last known; 0 = nothing is known of it yet, or there is none."""
    log_epoch: int = 0
    """Of the newest record in its log."""
    marker_reached: bool = True
    """Has its last look at the marker come back? If not, what is said of the marker is what was last known."""
    unchanged_ms: int = 0
    """For how long it has seen the newest version of the marker that it knows, which may be older than that. Whoever
    is active renews it."""
    silent: bool = False
    """Is the lease of `active` over, and nobody has renewed it?"""
    active: str = ""
    """Name of the one that holds the lease; empty = none does, or there is only this one."""
    active_http: str = ""
    in_sync: tuple[str, ...] = ()
    """Those whose disks hold all that was acknowledged: they may take over."""
    position: int
    """Of the newest record in its log."""
    lag_ms: int = 0
    """How old what it shows may be."""
    why: str = ""
    """Why a standby doesn't take over."""
    secret: str = ""
    """What is wrong with the secret by which control planes know each other. Empty = nothing, or they want none."""
    unlike: str = ""
    """Settings that must be the same on all control planes, and that the active one has otherwise, with both values;
    and those by which a take-over would change what is in force."""
