"""Exit status of commands that wait for a job, and the line that they say on stderr about its end.

The job's own, as a shell would report it: its exit code, or 128 + the signal that killed it. What has neither has a
status of its own in `EXIT_OF_STATE`. Polling stops without harm: the job goes on.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Final

import click

from stoker.cli.clock import mono_s, time_of_day
from stoker.cli.display.formatting import duration

if TYPE_CHECKING:
    from stoker.wire.rest.job import JobView

EXIT_OF_STATE: Final = {
    "succeeded": 0,
    "timeout": 124,  # as timeout(1) says it
    "failed": 126,  # could not start: what a shell says of a command that it can't execute
    "node_failed": 125,
    "out_of_memory": 137,  # 128 + SIGKILL, which is how the kernel ends it
    "cancelled": 143,  # 128 + SIGTERM, which is how we end it
}
"""For a job that ended with neither an exit code other than 0 nor a signal of its own."""
EXIT_MEMBER_FAILED: Final = 1
"""For an array: its members have statuses of their own."""
EXIT_STILL_GOES_ON: Final = 75
"""Of `wait --timeout`, whose time is up: EX_TEMPFAIL of sysexits.h, which says to try again later."""
LOOK_S: Final = 20
"""How often a wait looks whether something is to be said meanwhile."""
_OWN: Final = frozenset({"failed", "succeeded"})
"""States that the job's own doing decides; in the others a signal was our way to end it."""


def exit_of(job: "JobView") -> int:
    """The exit status for a job that is final."""
    if job.members is not None and job.state == "failed":
        return EXIT_MEMBER_FAILED
    if job.state in _OWN:
        if job.exit_code:
            return job.exit_code
        tasks = job.attempts[-1].tasks if job.attempts else ()
        signal = next((task.signal for task in tasks if task.signal), 0)
        if signal:
            return 128 + signal
    return EXIT_OF_STATE[job.state]


def is_over(job: "JobView") -> bool:
    """Return whether a job is final."""
    return job.state in EXIT_OF_STATE


def end_line(job: "JobView") -> str:
    """Return in one line how a job ended, what ended it, and where its last lines are."""
    from stoker.cli.clock import now_ms
    from stoker.cli.display.formatting import ran
    from stoker.cli.display.safe_text import visible

    span = ran(job, now_ms()) if job.ended_at is not None and job.attempts else None
    line = f"job {job.id} {job.state.value}{f' after {span}' if span else ''}"
    if job.reason is not None and job.state != "succeeded":
        line += f": {visible(job.reason.message)}"
    if job.state == "succeeded" or job.reduced or job.outline:
        return line
    if job.members is not None:
        return f"{line}; see `stoker list {job.id} --state {job.state.value}`"
    if not _wrote(job):
        return f"{line}; see `stoker status {job.id}`"
    rank = job.reason.facts.get("rank", 0) if job.reason is not None else 0
    return f"{line}; logs: `stoker logs {job.id}{f'.{rank}' if job.tasks > 1 else ''}`"


def _wrote(job: "JobView") -> bool:
    """Return whether a task of the newest attempt had a process, and may have written something."""
    return any(task.started_at for attempt in job.attempts[-1:] for task in attempt.tasks)


def tell_end(job: "JobView") -> None:
    """Say on stderr how a job ended."""
    click.echo(end_line(job), err=True)


@contextmanager
def _when_interrupted(told: str) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        click.echo(told, err=True)
        raise


def perhaps_submitted() -> AbstractContextManager[None]:
    """Say around a submit, when it is interrupted, that it may have been carried out."""
    return _when_interrupted("\nno answer came: it may have been submitted; look with `stoker list`")


def wait_for(job_id: str, at_most_s: float = float("inf")) -> "JobView":
    """Return the job once it is final, or as it is when the time is up, whichever control plane is active meanwhile.

    Ctrl-C says that the job goes on, and is raised.
    """
    from stoker.cli.server import FOLLOW_PATIENCE_S, connect

    with goes_on(job_id):
        client, notice = connect(FOLLOW_PATIENCE_S), LimitNotice()
        deadline_s = mono_s() + at_most_s
        while True:
            left_s = max(0.0, min(LOOK_S, deadline_s - mono_s()))
            job = client.wait(job_id, at_most_s=left_s)
            if job.state in EXIT_OF_STATE or left_s < LOOK_S:
                return job
            notice.look(job)


class LimitNotice:
    """Printer of the one line that says that a job is near its time limit, once for each limit that it is given."""

    def __init__(self) -> None:
        self._said = ""

    def look(self, job: "JobView") -> None:
        """Print the line to stderr if it is due."""
        at = job.time_limit_at or ""
        if not job.time_limit_near or at == self._said:
            return
        self._said = at
        click.echo(
            f"note: job {job.id} reaches its time limit of {duration(job.time_limit_ms)} at {time_of_day(at)}; "
            f"`stoker update {job.id} --time ...` gives it longer",
            err=True,
        )


def goes_on(job_id: str) -> AbstractContextManager[None]:
    """Say around a wait, when it is interrupted, that nothing else stops. The job may have ended before."""
    return _when_interrupted(f"\nonly the waiting has ended; `stoker cancel {job_id}` ends job {job_id}")
