"""Placement of one task: its node and the resources that it holds there."""

import msgspec

from stoker.brain.domain.gpu import WHOLE_GPU
from stoker.brain.domain.ids import GpuUuid, NodeName


class TaskPlacement(msgspec.Struct, frozen=True, kw_only=True):
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
