"""REST shape of an attempt."""

import msgspec

from stoker.brain.domain.job import Attempt, EndCause, StopCause, Task
from stoker.brain.domain.lifecycle import Outcome
from stoker.wire.rest.instant import iso, iso_or_none


class TaskRunView(msgspec.Struct, frozen=True, kw_only=True):
    """One rank of an attempt. `gpus` are UUIDs; `cause` to `error` are null or empty until it has ended."""

    rank: int
    node: str
    gpus: tuple[str, ...]
    cpus: int
    memory_mb: int
    started_at: str | None
    ended_at: str | None = None
    cause: EndCause | None = None
    exit_code: int | None = None
    signal: int = 0
    oom: bool = False
    peak_memory_mb: int = 0
    """0 = not measured."""
    error: str = ""


class AttemptView(msgspec.Struct, frozen=True, kw_only=True):
    """One try. `outcome` is null while it is live; `stopping` says why we told it to end."""

    number: int
    epoch: int
    outcome: Outcome | None
    exit_code: int | None
    placed_at: str
    started_at: str | None
    ended_at: str | None
    stopping: StopCause | None
    master_addr: str
    master_port: int
    tasks: list[TaskRunView]
    lease_ms: int = 0
    """Silence after which its nodes end it by themselves, so that it can be started elsewhere; 0 = never."""


def attempt_view(attempt: Attempt) -> AttemptView:
    return AttemptView(
        number=attempt.number,
        epoch=attempt.epoch,
        outcome=attempt.outcome,
        exit_code=attempt.exit_code,
        placed_at=iso(attempt.placed_at),
        started_at=iso_or_none(attempt.started_at),
        ended_at=iso_or_none(attempt.ended_at),
        stopping=attempt.stop.cause if attempt.stop else None,
        master_addr=attempt.master_addr,
        master_port=attempt.master_port,
        tasks=[_task_view(task) for task in attempt.tasks],
        lease_ms=attempt.lease_ms,
    )


def _task_view(task: Task) -> TaskRunView:
    placement, end = task.placement, task.end
    return TaskRunView(
        rank=placement.rank,
        node=placement.node,
        gpus=placement.gpus,
        cpus=placement.cpus,
        memory_mb=placement.memory_mb,
        started_at=iso_or_none(task.started_at),
        ended_at=iso(end.at) if end else None,
        cause=end.cause if end else None,
        exit_code=end.exit_code if end else None,
        signal=end.signal if end else 0,
        oom=end.oom if end else False,
        peak_memory_mb=end.peak_memory_mb if end else 0,
        error=end.error if end else "",
    )
