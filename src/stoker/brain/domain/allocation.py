"""Placement of one task: its node and the resources that it holds there."""

import msgspec

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
