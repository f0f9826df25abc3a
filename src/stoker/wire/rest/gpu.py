"""How is a GPU shown?"""

from typing import Literal

import msgspec

GpuStatus = Literal["idle", "busy", "offline"]


class GpuView(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU. `id` is for people and the dgpu dialect; `uuid` is its name. `memory` and `memory_mb` are MiB.

    `offline`: its node takes no new work, or something that isn't a job of ours holds it.
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


class GpuListView(msgspec.Struct, frozen=True, kw_only=True):
    """Every GPU of every node that wasn't forgotten. total = idle + busy + offline."""

    total: int
    idle: int
    busy: int
    offline: int
    gpus: list[GpuView]


def gpu_id(node: str, index: int) -> str:
    """The dgpu dialect's name of a GPU. It is never taken apart again: node names may hold dashes."""
    return f"{node}-gpu-{index}"
