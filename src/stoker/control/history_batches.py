"""Notes of what ended, and the batches in which they are written to the history.

A note refers to the frozen record that the state holds anyway, so it costs little while it waits.
"""

from collections.abc import Sequence
from typing import NamedTuple

from stoker.brain.domain.audit import AuditRow
from stoker.brain.domain.ids import Epoch, JobId, Position
from stoker.brain.domain.job import Attempt, Job, TaskEnd
from stoker.brain.domain.units import Instant
from stoker.brain.domain.usage import CapacityChange, Holding, held_by
from stoker.ports import HistoryBatch, HistoryMark


class EndedJob(NamedTuple):
    """A job that ended, as the fact at `position` left it."""

    position: Position
    job: Job


class EndedAttempt(NamedTuple):
    """An attempt that ended while its job goes on, by the fact at `position`."""

    position: Position
    job: JobId
    attempt: Attempt


Note = EndedJob | EndedAttempt | Holding | CapacityChange


def batch_of(mark: HistoryMark, notes: Sequence[Note], rows: Sequence[AuditRow], epoch: Epoch | None) -> HistoryBatch:
    return HistoryBatch(
        mark=mark,
        epoch=epoch,
        audit=rows,
        jobs=[note for note in notes if isinstance(note, EndedJob)],
        attempts=[note for note in notes if isinstance(note, EndedAttempt)],
        holdings=[note for note in notes if isinstance(note, Holding)],
        offers=[note for note in notes if isinstance(note, CapacityChange)],
    )


def known_batch(mark: HistoryMark, jobs: Sequence[Job], position: Position, epoch: Epoch | None) -> HistoryBatch:
    """The batch of what the records themselves say. When each rank was settled isn't in them; its own end is close."""
    tries = [(job, attempt) for job in jobs for attempt in job.attempts]
    return HistoryBatch(
        mark=mark,
        epoch=epoch,
        jobs=[(position, job) for job in jobs if job.is_final],
        attempts=[(position, job.id, attempt) for job, attempt in tries if attempt.outcome and not job.is_final],
        holdings=[
            held_by(job, attempt.number, task, _settled_at(attempt, task.end), position)
            for job, attempt in tries
            for task in attempt.tasks
            if task.end is not None
        ],
    )


def _settled_at(attempt: Attempt, end: TaskEnd) -> Instant:
    return attempt.ended_at if attempt.outcome and len(attempt.tasks) == 1 else end.at
