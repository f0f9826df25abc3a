"""REST shape of a GPU."""

import msgspec

from stoker.brain.domain.gpu import GpuStatus


class GpuView(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU. `id` is for people and the dgpu dialect; `uuid` is its name. `memory` and `memory_mb` are MiB.

    `offline`: its node takes no new work, or something that isn't a job of ours holds it.
    `quarantined`: its node was silent for so long that the job that had it was started elsewhere; it isn't offered, and
    charged to nobody, until the node says that it is clean.
    """

    id: str
    uuid: str
    node_id: str
    node: str
    device_index: int
    model: str
    memory: int
    memory_mb: int
    status: GpuStatus
    current_task: str | None
    simulated: bool
    updated_at: str
    note: str = ""
    """Of one in quarantine: because of which job, since when, and what ends it."""


class GpuListView(msgspec.Struct, frozen=True, kw_only=True):
    """Every GPU of every node that wasn't forgotten. total = idle + busy + offline + quarantined."""

    total: int
    idle: int
    busy: int
    offline: int
    quarantined: int = 0
    gpus: list[GpuView]


def gpu_id(node: str, index: int) -> str:
    """The dgpu dialect's name of a GPU. It is never taken apart again: node names may hold dashes."""
    return f"{node}-gpu-{index}"
