"""Command `stoker events`: the history of one job, with the principals of the commands to it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from stoker.cli.completion import ANY_JOB
from stoker.cli.display.output import show_rows
from stoker.cli.display.table import Column, fields
from stoker.cli.options import OnceCommand
from stoker.cli.server import connect, table_answer_options

if TYPE_CHECKING:
    from stoker.wire.client import Client
    from stoker.wire.rest.audit import JobEventsView, JobEventView


@click.command(cls=OnceCommand)
@click.argument("job_id", metavar="ID", type=ANY_JOB)
@table_answer_options
def events(job_id: str, form: str) -> None:
    """Tell what happened to a job, newest last, and who told it what.

    From its submit over each attempt to its end; also of jobs that ended long ago. Of a member of an array what was
    told to the whole array is there too.

    \b
    Examples:
      stoker events 7
      stoker events 7_3
      stoker events 7 --json
    """
    story = _whole(connect(), job_id)
    show_rows(form, _columns(), story.events, story)


def _whole(client: "Client", job_id: str) -> "JobEventsView":
    """Return the job's events as one page, however many pages it takes."""
    from msgspec.structs import replace

    from stoker.wire.rest.audit import AUDIT_MAX, JobEventsQuery

    story = client.job_events(job_id, JobEventsQuery(limit=AUDIT_MAX))
    page = story
    while page.next is not None:
        page = client.job_events(job_id, JobEventsQuery(limit=AUDIT_MAX, after=int(page.next)))
        story = replace(story, events=[*story.events, *page.events], total=page.total, next=page.next)
    return story


def _columns() -> "list[Column[JobEventView]]":
    return [
        Column("AT", lambda event: event.at, instant=True),
        *fields("EVENT", "BY"),
        Column("ATTEMPT", lambda event: event.attempt or None, right=True),
        Column("DETAILS", lambda event: "; ".join(_said(event)) or None, elastic=True),
        Column("NUMBER", lambda event: event.number, right=True, wide=True),
    ]


def _said(event: "JobEventView") -> Iterator[str]:
    if event.nodes:
        gpus = f"{event.gpus} GPU{'s' * (event.gpus != 1)}"
        yield f"{gpus} on {', '.join(event.nodes)}"
    yield from filter(None, (event.state, event.outcome))
    if event.exit_code is not None and not event.details:
        yield f"exit code {event.exit_code}"
    yield from filter(None, (event.cause, event.details))
