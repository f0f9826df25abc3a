"""Alternatives of a waiting job: changes of what it asks for with which it would start now."""

from enum import StrEnum

import msgspec
from msgspec import UNSET

from stoker.brain.domain.demand import Demand
from stoker.brain.domain.job_changes import JobChanges
from stoker.brain.domain.units import counted, human_duration


class AlternativeKind(StrEnum):
    """Part of a job that an alternative changes; in the order in which they are shown, what changes least first."""

    SHORTER = "shorter"
    """A shorter time limit, by which it is over before what is free is needed by a job before it."""
    SPREAD = "spread"
    """As many of its tasks on a node as fit."""
    FEWER_CPUS = "fewer_cpus"
    LESS_MEMORY = "less_memory"
    MORE_TASKS = "more_tasks"
    """As many GPUs in all, in more tasks of fewer each; CPUs and memory are divided with them."""
    OTHER_MODEL = "other_model"
    FEWER_GPUS = "fewer_gpus"


class Alternative(msgspec.Struct, frozen=True, kw_only=True):
    """One change of a waiting job with which it would start now."""

    kind: AlternativeKind
    demand: Demand
    """Of the job as changed."""
    changes: JobChanges

    def __str__(self) -> str:
        """The words that follow `it would start now`."""
        demand, limit_ms = self.demand, self.changes.time_limit_ms
        match self.kind:
            case AlternativeKind.SHORTER:
                return f"with a time limit of {human_duration(0 if limit_ms is UNSET else limit_ms)}"
            case AlternativeKind.SPREAD:
                return f"with any number of its {demand.tasks} tasks on a node"
            case AlternativeKind.FEWER_CPUS:
                return f"with {counted(demand.cpus, 'CPU')} per task"
            case AlternativeKind.LESS_MEMORY:
                return f"with {demand.memory_mb} MiB of memory per task"
            case AlternativeKind.OTHER_MODEL:
                return f"on {demand.gpu_model}"
            case AlternativeKind.MORE_TASKS | AlternativeKind.FEWER_GPUS if demand.tasks > 1:
                gpus = "a share" if demand.shares else counted(demand.gpu_count, "GPU")
                return f"as {demand.tasks} tasks of {gpus} each"
            case AlternativeKind.MORE_TASKS | AlternativeKind.FEWER_GPUS:
                return "as one task" if demand.shares else f"with {counted(demand.gpu_count, 'GPU')}"
