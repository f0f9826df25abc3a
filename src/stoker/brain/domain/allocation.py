"""What does a task hold, and on which node?"""

import msgspec

from stoker.brain.domain.ids import GpuUuid, NodeName


class TaskPlacement(msgspec.Struct, frozen=True, kw_only=True):
    """Where one rank runs and what it holds there until its end is proved.

    Rules: ranks count from 0 in (node, device) order; `gpus` are in the node's device order.
    """

    rank: int
    node: NodeName
    gpus: tuple[GpuUuid, ...]
    cpus: int
    memory_mb: int
