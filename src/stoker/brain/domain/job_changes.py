"""Changes of a job after its submit: the fields that may change, with their new values.

A field that is unset isn't changed. Demand and selection are changed part by part, so that `--gpus 2` leaves the memory
as it was.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from stoker.brain.domain.demand import Demand
from stoker.brain.domain.dependency import Dependency
from stoker.brain.domain.ids import NodeName, PartitionName
from stoker.brain.domain.job import JobSpec, WarnSignal
from stoker.brain.domain.units import NEVER, SECOND_MS, Instant, human_duration, utc_text
from stoker.brain.domain.where import ANYWHERE, Requirement, Toleration, Where, selector_text, toleration_text

MAY_CHANGE_LIVE: Final = (
    "name",
    "comment",
    "priority",
    "time_limit_ms",
    "retries_max",
    "requeue",
    "preemptible",
    "checkpoint_ms",
    "warn",
)
"""Fields that may change while a job runs; the others say how it is placed and when, which is decided by then."""


class JobChanges(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """New values of some fields of a job, by the names of its spec, its demand and its selection."""

    name: str | UnsetType = UNSET
    comment: str | UnsetType = UNSET
    priority: int | UnsetType = UNSET
    time_limit_ms: int | UnsetType = UNSET
    retries_max: int | UnsetType = UNSET
    requeue: bool | UnsetType = UNSET
    preemptible: bool | UnsetType = UNSET
    checkpoint_ms: int | UnsetType = UNSET
    warn: WarnSignal | UnsetType | None = UNSET
    after: tuple[Dependency, ...] | UnsetType = UNSET
    begin: Instant | UnsetType = UNSET
    """NEVER = at once."""
    lost_after_ms: int | UnsetType | None = UNSET
    partition: PartitionName | UnsetType = UNSET
    gpu_count: int | UnsetType = UNSET
    gpu_memory_mb: int | UnsetType = UNSET
    gpu_model: str | UnsetType = UNSET
    cpus: int | UnsetType = UNSET
    memory_mb: int | UnsetType = UNSET
    tasks: int | UnsetType = UNSET
    tasks_per_node: int | UnsetType = UNSET
    require: tuple[Requirement, ...] | UnsetType = UNSET
    exclude: tuple[NodeName, ...] | UnsetType = UNSET
    tolerate: tuple[Toleration, ...] | UnsetType = UNSET

    @property
    def given(self) -> dict[str, Any]:
        """The fields that are set."""
        fields = ((name, getattr(self, name)) for name in self.__struct_fields__)
        return {name: value for name, value in fields if value is not UNSET}

    def on(self, spec: JobSpec) -> JobSpec:
        """Return the job as it is with these changes."""
        given = self.given
        demand = {name: given.pop(name) for name in _DEMAND if name in given}
        where = {name: given.pop(name) for name in _WHERE if name in given}
        if demand:
            given["demand"] = replace(spec.demand, **demand)
        if where:
            changed = replace(spec.where, **where)
            given["where"] = changed if changed != ANYWHERE else ANYWHERE
        return replace(spec, **given) if given else spec


_WHERE: Final = Where.__struct_fields__
_DEMAND: Final = Demand.__struct_fields__


def changes_between(old: JobSpec, new: JobSpec) -> JobChanges:
    """Return the changes that make `new` of `old`; other fields than those of JobChanges must be the same."""
    before, after = _flat(old), _flat(new)
    return JobChanges(**{name: value for name, value in after.items() if value != before[name]})


def values_before(old: JobSpec, changes: JobChanges) -> JobChanges:
    """Return the values that the changed fields had."""
    before = _flat(old)
    return JobChanges(**{name: before[name] for name in changes.given})


def _flat(spec: JobSpec) -> dict[str, Any]:
    of = {**dict.fromkeys(_DEMAND, spec.demand), **dict.fromkeys(_WHERE, spec.where)}
    return {name: getattr(of.get(name, spec), name) for name in JobChanges.__struct_fields__}


def changes_text(before: JobChanges, changes: JobChanges) -> str:
    """Return the changes in words: `time limit 1h -> 2h, priority 500 -> 600`.

    Of texts that only the job's owner may read it says that they changed.
    """
    was = before.given
    return ", ".join(
        f"{called(name)} changed"
        if name in _PRIVATE
        else f"{called(name)} {_value_text(name, was[name])} -> {_value_text(name, value)}"
        for name, value in changes.given.items()
    )


def called(name: str) -> str:
    """Return what people call a field of JobChanges."""
    return _CALLED.get(name, name)


_PRIVATE: Final = ("comment",)
_CALLED: Final = {
    "time_limit_ms": "time limit",
    "retries_max": "retries",
    "checkpoint_ms": "checkpoint",
    "warn": "signal",
    "lost_after_ms": "lost after",
    "gpu_count": "GPUs of each task",
    "gpu_memory_mb": "GPU memory",
    "gpu_model": "GPU model",
    "cpus": "CPUs",
    "memory_mb": "memory",
    "tasks_per_node": "tasks per node",
    "require": "where",
}
_TEXTS: Final[Mapping[str, Callable[[Any], str]]] = {
    "time_limit_ms": human_duration,
    "after": lambda after: ",".join(map(str, after)),
    "begin": lambda begin: "at once" if begin == NEVER else utc_text(begin),
    "lost_after_ms": lambda ms: "as set here" if ms is None else human_duration(ms) if ms else "never",
    "require": selector_text,
    "exclude": ",".join,
    "tolerate": lambda all_of: ",".join(map(toleration_text, all_of)),
    "requeue": lambda requeue: "yes" if requeue else "no",
    "preemptible": lambda preemptible: "yes" if preemptible else "no",
    "checkpoint_ms": lambda ms: f"every {human_duration(ms)}" if ms else "none",
    "warn": lambda warn: f"{warn.signal}@{warn.lead_ms // SECOND_MS}" if warn else "none",
    "gpu_memory_mb": lambda mb: f"{mb} MiB",
    "memory_mb": lambda mb: f"{mb} MiB",
}


def _value_text(name: str, value: object) -> str:
    return _TEXTS.get(name, str)(value) or "none"
