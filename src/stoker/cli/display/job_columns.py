"""Columns of a list of jobs.

The same for `stoker list`, its `--watch`, and the queue of `stoker top`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from stoker.cli.display.formatting import note_line, ran, user_of, waited
from stoker.cli.display.safe_text import cut, visible
from stoker.cli.display.table import Column, fields

if TYPE_CHECKING:
    from stoker.wire.rest.job import JobView

NAME_CELLS_MAX: Final = 40


def job_columns(now_ms: int, titles: Sequence[str] = ()) -> "list[Column[JobView]]":
    """Return the columns with these titles, or all. `now_ms` is where a span that hasn't ended is measured to."""
    columns: list[Column[JobView]] = [
        Column("ID", lambda job: job.id, right=True),
        Column("NAME", lambda job: short_name(job.name), elastic=True),
        Column("STATE", lambda job: job.state.value, coloured=True),
        Column("GPUS", lambda job: job.total_gpus, right=True),
        Column("PRIO", lambda job: job.priority, right=True),
        Column("TENANT", lambda job: job.tenant, wide=True),
        Column("CLASS", lambda job: job.job_class.value, wide=True),
        Column("USER", user_of, wide=True),
        *fields("PARTITION", "ARRAY", wide=True),
        Column("TASKS", lambda job: job.tasks, right=True, wide=True),
        Column("ATTEMPTS", lambda job: len(job.attempts), right=True, wide=True),
        Column("SUBMITTED", lambda job: job.submitted_at, wide=True),
        Column("STARTED", lambda job: job.started_at, wide=True),
        Column("ENDED", lambda job: job.ended_at, wide=True),
        Column("WAITED", lambda job: waited(job, now_ms), right=True),
        Column("RAN", lambda job: ran(job, now_ms), right=True),
        Column("EXIT", lambda job: job.exit_code, right=True),
        Column("AFTER", lambda job: ",".join(job.after), wide=True),
        Column("COMMENT", lambda job: job.comment, wide=True, elastic=True),
        Column("REASON", note_line, elastic=True),
        # What is long stands last, so that it pushes nothing out of sight.
        Column("NODES", nodes_of, wide=True),
        Column("GPU UUIDS", gpus_of, wide=True),
    ]
    by_title = {column.title: column for column in columns}
    return [by_title[title] for title in titles or by_title]


def short_name(name: str) -> str:
    return cut(visible(name), NAME_CELLS_MAX)


def nodes_of(job: "JobView") -> str:
    """Return the nodes of a job's newest attempt."""
    tasks = job.attempts[-1].tasks if job.attempts else []
    return ",".join(dict.fromkeys(task.node for task in tasks))


def gpus_of(job: "JobView") -> str:
    """Return the GPUs of a job's newest attempt."""
    tasks = job.attempts[-1].tasks if job.attempts else []
    return ",".join(uuid for task in tasks for uuid in task.gpus)
