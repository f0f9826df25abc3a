"""`stoker list`, `why` and `cancel`: which jobs are there, what keeps one, and how is one ended?"""

from typing import TYPE_CHECKING, Any, Final

import click

from stoker.cli.output import output_options, show_rows, show_value
from stoker.cli.problem import refused, show_problem
from stoker.cli.server import connect, server_option
from stoker.cli.table import Column, cell_text
from stoker.cli.words import ran, reason_line, user_of, waited

if TYPE_CHECKING:
    from stoker.wire.rest.job import JobView

NAME_CELLS_MAX: Final = 40


def job_columns(now_ms: int) -> "list[Column[JobView]]":
    """The columns of a list of jobs. `now_ms` is where a span that hasn't ended is measured to."""
    return [
        Column("ID", lambda job: job.id, right=True),
        Column("NAME", lambda job: short_name(job.name), elastic=True),
        Column("STATE", lambda job: job.state.value, coloured=True),
        Column("GPUS", lambda job: job.total_gpus, right=True),
        Column("PRIO", lambda job: job.priority, right=True),
        Column("TENANT", lambda job: job.tenant, wide=True),
        Column("CLASS", lambda job: job.job_class.value, wide=True),
        Column("USER", user_of, wide=True),
        Column("TASKS", lambda job: job.tasks, right=True, wide=True),
        Column("ATTEMPTS", lambda job: len(job.attempts), right=True, wide=True),
        Column("SUBMITTED", lambda job: job.submitted_at, wide=True),
        Column("WAITED", lambda job: waited(job, now_ms), right=True),
        Column("RAN", lambda job: ran(job, now_ms), right=True),
        Column("EXIT", lambda job: job.exit_code, right=True),
        Column("NODES", nodes_of, wide=True),
        Column("REASON", lambda job: reason_line(job.reason), elastic=True),
    ]


def short_name(name: str) -> str:
    from stoker.cli.safe_text import cut, visible

    return cut(visible(name), NAME_CELLS_MAX)


def nodes_of(job: "JobView") -> str:
    """Where its newest attempt is or was."""
    tasks = job.attempts[-1].tasks if job.attempts else []
    return ",".join(dict.fromkeys(task.node for task in tasks))


@click.command("list")
@click.option("--state", metavar="STATE[,STATE]", help="Only these states; words of any dialect are read.")
@click.option("--name", help="Only jobs of this name.")
@click.option("--user", help="Only jobs of this user.")
@click.option("--tenant", help="Only jobs of this tenant.")
@click.option("--class", "job_class", type=click.Choice(["online", "batch"]), help="Only jobs of this class.")
@click.option("--limit", type=click.IntRange(1, 1_000), default=50, show_default=True, help="At most this many.")
@click.option("--all", "every", is_flag=True, help="Every job that matches, however many.")
@output_options
@server_option
def list_jobs(form: str, every: bool, **given: Any) -> None:  # noqa: ANN401  # click gives each option its own type
    """Show jobs, newest first. `ps` is the same.

    \b
    Examples:
      stoker list
      stoker list --state pending,running -o wide
      stoker list --all --json
    """
    client = connect()
    from stoker.wire.client import JobListQuery

    value: object
    query = JobListQuery(**{name: value for name, value in given.items() if value is not None})
    if every:
        jobs = list(client.each_job(query))
        value, left_out = {"jobs": jobs, "total": len(jobs)}, 0
    else:
        page = client.jobs(query)
        jobs, value, left_out = page.jobs, page, page.total - len(page.jobs)
    show_rows(form, job_columns(_now_ms(form)), jobs, value)
    if left_out > 0 and form in ("table", "wide"):
        click.echo(f"{left_out} more; --all shows them", err=True)


def _now_ms(form: str) -> int:
    """Only tables measure spans, and only they pay for a clock."""
    if form not in ("table", "wide"):
        return 0
    from stoker.cli.pause import now_ms

    return now_ms()


@click.command()
@click.argument("job_id", metavar="ID")
@output_options
@server_option
def why(job_id: str, form: str) -> None:
    """Say what keeps a job from running, or what ended it.

    \b
    Examples:
      stoker why 7
      stoker why 7 --json
    """
    answer = connect().why(job_id)
    if form not in ("table", "wide"):
        show_value(form, answer)
        return
    click.echo(f"job {answer.id} is {answer.state.value}: {cell_text(answer.message)}")
    if answer.position is not None and answer.waiting is not None:
        alike = f", {answer.similar_ahead} before it ask for the same" if answer.similar_ahead else ""
        click.echo(f"queue: {answer.position} of {answer.waiting}{alike}")
    if answer.hint:
        click.echo(f"hint: {cell_text(answer.hint)}")


@click.command()
@click.argument("job_ids", metavar="ID...", nargs=-1, required=True)
@output_options
@server_option
@click.pass_context
def cancel(ctx: click.Context, job_ids: tuple[str, ...], form: str) -> None:
    """Cancel jobs: terminate, wait a grace time, kill.

    A job is `cancelled` once its processes are gone; until then it is `stopping`. Every id is tried; the exit status
    is that of the first refusal.

    \b
    Examples:
      stoker cancel 7
      stoker cancel 7 8 9
    """
    client = connect()
    done, worst = [], 0
    for job_id in job_ids:
        try:
            done.append(client.cancel(job_id))
        except refused() as fault:
            worst = worst or show_problem(fault)
    if form in ("table", "wide"):
        for job in done:
            click.echo(f"job {job.id} is {job.state.value}")
    else:
        show_value(form, done)
    ctx.exit(worst)
