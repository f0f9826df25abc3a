"""Demand of one task of a job, and the shape that jobs of equal demand share.

Units: GPUs are whole devices, memory is MiB, `gpu_memory_mb` is per GPU.
"""

from enum import StrEnum

import msgspec

from stoker.brain.domain.ids import PartitionName, TenantName
from stoker.brain.domain.where import ANYWHERE, Where


class JobClass(StrEnum):
    """The class pool that a job draws on."""

    ONLINE = "online"
    BATCH = "batch"


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """Resources that one task needs, and the number of such tasks in the gang.

    Rules: total GPUs = `gpu_count` x `tasks`; tasks may share a node; a task never spans nodes.
    """

    gpu_count: int = 0
    gpu_memory_mb: int = 0
    """A GPU must have at least this much memory. 0 = any."""
    gpu_model: str = ""
    """Matches as `domain.gpu.model_matches` says. Empty = any."""
    cpus: int = 1
    memory_mb: int = 0
    """Host memory reserved and, where the node can, enforced. 0 = no reservation and no limit."""
    tasks: int = 1
    tasks_per_node: int = 0
    """At most so many tasks share a node. 0 = no bound."""

    @property
    def total_gpus(self) -> int:
        """GPUs of the whole gang."""
        return self.gpu_count * self.tasks


class Shape(msgspec.Struct, frozen=True, cache_hash=True):
    """All of a job that the engine's verdict may depend on, except priority and age.

    Jobs of one shape share one verdict per pass, so everything that a filter reads must be part of it.
    """

    tenant: TenantName
    job_class: JobClass
    demand: Demand
    where: Where = ANYWHERE
    partition: PartitionName = PartitionName("")
