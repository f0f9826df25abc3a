"""Placement of one task, and the claim of a waiting job on resources that are being taken back for it."""

import msgspec

from stoker.brain.domain.gpu import WHOLE_GPU
from stoker.brain.domain.ids import GpuUuid, JobId, NodeName
from stoker.brain.domain.units import Instant


class TaskPlacement(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Node, GPUs, CPUs and memory that one rank holds until its end is proved.

    Rules: ranks count from 0 in (node, device) order; `gpus` are in the node's device order.
    """

    rank: int
    node: NodeName
    gpus: tuple[GpuUuid, ...]
    cpus: int
    memory_mb: int
    gpu_share: int = WHOLE_GPU
    """Thousandths that it holds of its one GPU. WHOLE_GPU = each of its GPUs is its own, as in every log from before
    there were shares."""
    gpu_memory_mb: int = 0
    """Bound of its GPU memory, where it shares the device. 0 = all that the device has."""

    @property
    def gpu_milli(self) -> int:
        """Thousandths of GPUs that it holds."""
        return len(self.gpus) * self.gpu_share


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """Placements that are kept for a pending job until those who hold the resources there are gone."""

    job: JobId
    tasks: tuple[TaskPlacement, ...]
    """In rank order."""
    at: Instant
