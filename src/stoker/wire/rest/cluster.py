"""REST shape of the whole cluster."""

from typing import Literal

import msgspec


class ClusterView(msgspec.Struct, frozen=True, kw_only=True):
    """The MVP's seven numbers, and ours beside them. Jobs are those still remembered.

    `pending_jobs` and `running_jobs` use the MVP's words: what is held or starting waits, what is stopping runs.
    """

    total_gpus: int
    available_gpus: int
    busy_gpus: int
    offline_gpus: int
    quarantined_gpus: int = 0
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


class HealthView(msgspec.Struct, frozen=True, kw_only=True):
    """The process serves. Whether the cluster makes progress is `/ready`'s answer."""

    status: Literal["ok"] = "ok"
    version: str
    cluster_id: str
    epoch: int


class ReadyView(msgspec.Struct, frozen=True, kw_only=True):
    status: Literal["ready"] = "ready"
    last_pass_age_s: float
    position: int
