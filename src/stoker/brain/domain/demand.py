"""Demand of one task of a job, and the shape that jobs of equal demand share.

Units: GPUs are whole devices or a share of one in thousandths, memory is MiB, `gpu_memory_mb` is per GPU.
"""

from enum import StrEnum
from functools import cached_property

import msgspec

from stoker.brain.domain.gpu import WHOLE_GPU
from stoker.brain.domain.ids import PartitionName, TenantName
from stoker.brain.domain.where import ANYWHERE, Where


class JobClass(StrEnum):
    """The class pool that a job draws on."""

    ONLINE = "online"
    BATCH = "batch"


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """Resources that one task needs, and the number of such tasks in the gang.

    Rules: total GPUs = `gpu_count` x `tasks`; tasks may share a node; a task never spans nodes; a share is of one GPU
    per task, so `gpu_count` is 1 wherever `gpu_share` isn't WHOLE_GPU.
    """

    gpu_count: int = 0
    gpu_memory_mb: int = 0
    """A GPU must have at least this much memory; of a share it is the bound too. 0 = any, and the bound of a share is
    its part of the device's memory, rounded down."""
    gpu_model: str = ""
    """Matches as `domain.gpu.model_matches` says. Empty = any."""
    cpus: int = 1
    memory_mb: int = 0
    """Host memory reserved and, where the node can, enforced. 0 = no reservation and no limit."""
    tasks: int = 1
    tasks_per_node: int = 0
    """At most so many tasks share a node. 0 = no bound."""
    gpu_share: int = WHOLE_GPU
    """Thousandths of its GPU that a task needs. WHOLE_GPU = its GPUs are its own."""

    @property
    def total_gpus(self) -> int:
        """GPUs of the whole gang, each of which may be shared."""
        return self.gpu_count * self.tasks

    @property
    def total_milli(self) -> int:
        """Thousandths of GPUs of the whole gang."""
        return self.gpu_count * self.tasks * self.gpu_share

    @property
    def shares(self) -> bool:
        """Whether its tasks share their GPUs with others."""
        return self.gpu_share != WHOLE_GPU

    def memory_bound_mb(self, device_mb: int) -> int:
        """Return the MiB of a device's `device_mb` that one task may use."""
        return self.gpu_memory_mb or device_mb * self.gpu_share // WHOLE_GPU


GpusPerTask = tuple[str, int, int, int, int]
"""Model, memory in MiB, number and share of the GPUs of a task, and tasks per node."""


class GpuDemand(msgspec.Struct, frozen=True, cache_hash=True):
    """Demand for GPUs that many shapes have in common, by which each pass looks for them."""

    where: Where
    partition: PartitionName
    asked: GpusPerTask


class QuotaGroup(msgspec.Struct, frozen=True, cache_hash=True):
    """Tenant, class and GPUs, by which shapes have one standing by quota: few, also where ten thousand wait."""

    tenant: TenantName
    job_class: JobClass
    milli: int
    """Thousandths of GPUs of the whole gang."""


class Shape(msgspec.Struct, frozen=True, cache_hash=True, dict=True):
    """All of a job that the engine's verdict may depend on, except priority and age.

    Jobs of one shape share one verdict per pass, so everything that a filter reads must be part of it.
    """

    tenant: TenantName
    job_class: JobClass
    demand: Demand
    where: Where = ANYWHERE
    partition: PartitionName = PartitionName("")

    # Found once for as long as jobs of it wait, since each pass asks for that of each shape.
    @cached_property
    def quota_group(self) -> QuotaGroup:
        """Its quota group."""
        return QuotaGroup(self.tenant, self.job_class, self.demand.total_milli)

    @cached_property
    def gpu_demand(self) -> GpuDemand:
        """Its demand for GPUs."""
        each = self.demand
        asked = each.gpu_model, each.gpu_memory_mb, each.gpu_count, each.gpu_share, each.tasks_per_node
        return GpuDemand(self.where, self.partition, asked)
