"""`stoker usage`: who used how much of the cluster?"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from stoker.cli.output import for_people, output_options, show_pairs, show_rows, show_value
from stoker.cli.server import connect, server_option
from stoker.cli.table import Column

if TYPE_CHECKING:
    from stoker.wire.rest.usage import UsageLineView, UsageView


@click.command()
@click.option(
    "--from", "since", metavar="MOMENT", help="Beginning of the span: `7d` ago, a date, a time. [default: 7d]"
)
@click.option("--to", metavar="MOMENT", help="End, said in the same ways. [default: now]")
@click.option(
    "--by",
    type=click.Choice(["tenant", "user", "job", "node"]),
    default="tenant",
    show_default=True,
    help="What to have a line for.",
)
@click.option("--tenant", help="Only jobs of this tenant.")
@click.option("--user", help="Only jobs of this user.")
@output_options
@server_option
def usage(form: str, since: str | None, to: str | None, by: str, tenant: str | None, user: str | None) -> None:
    """Sum up GPU and CPU hours by tenant, user, job or node.

    What still runs counts up to now. An array is one job.

    \b
    Examples:
      stoker usage
      stoker usage --by user --from 30d
      stoker usage --from 2026-11-01 --to 2026-12-01 --by job --tenant vision --json
    """
    from stoker.cli.local_zone import moment
    from stoker.wire.rest.usage import FROM_DEFAULT, TO_DEFAULT, UsageAsked

    asked = UsageAsked(
        since=moment(since) if since else FROM_DEFAULT,
        to=moment(to) if to else TO_DEFAULT,
        by=by,
        tenant=tenant or "",
        user=user or "",
    )
    report = connect().usage(asked)
    if not for_people(form):
        show_value(form, report)
        return
    show_rows(form, _columns(report), report.lines, report)
    click.echo()
    show_pairs(form, _summary(report), report)


def _columns(report: "UsageView") -> "list[Column[UsageLineView]]":
    return [
        Column(report.by.value.upper(), lambda line: line.key, elastic=True),
        Column("JOBS", lambda line: line.jobs, right=True),
        Column("GPU-HOURS", lambda line: f"{line.gpu_hours:.2f}", right=True),
        Column("SHARE", lambda line: _percent(line.gpu_ms, report.total.gpu_ms), right=True),
        Column("CPU-HOURS", lambda line: f"{line.cpu_hours:.2f}", right=True),
        Column("GPU-MS", lambda line: line.gpu_ms, right=True, wide=True),
        Column("CPU-MS", lambda line: line.cpu_ms, right=True, wide=True),
    ]


def _percent(part: int, whole: int) -> str | None:
    return f"{100 * part / whole:.1f} %" if whole else None


def _summary(report: "UsageView") -> Iterator[tuple[str, object]]:
    cluster = report.cluster
    yield "from", report.since
    yield "to", report.to
    if report.more:
        yield "lines", f"the {len(report.lines)} largest; smaller ones are left out, and are in the total"
    yield "total", f"{report.total.gpu_hours:.2f} GPU-hours, {report.total.cpu_hours:.2f} CPU-hours, {_jobs(report)}"
    yield "cluster", f"{cluster.capacity_gpu_hours:.2f} GPU-hours to be had"
    used = f" ({cluster.used_percent:.1f} %)" if cluster.used_percent is not None else ""
    yield "  allocated", f"{cluster.allocated_gpu_hours:.2f}{used}"
    yield "  idle", f"{cluster.idle_gpu_hours:.2f}"


def _jobs(report: "UsageView") -> str:
    return f"{report.total.jobs} job{'s' * (report.total.jobs != 1)}"
