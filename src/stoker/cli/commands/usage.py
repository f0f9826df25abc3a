"""`stoker usage`: reports of usage by tenant, user, job or node."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from stoker.cli.clock import local_text, with_timestamps
from stoker.cli.completion import tenants
from stoker.cli.display.output import show_rows
from stoker.cli.display.table import Column
from stoker.cli.options import OnceCommand
from stoker.cli.server import connect, table_answer_options

if TYPE_CHECKING:
    from stoker.wire.rest.usage import UsageLineView, UsageView


@click.command(cls=OnceCommand)
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
@click.option("--tree", is_flag=True, help="Tenants as a tree: each with all beneath it, and what its own jobs used.")
@click.option("--tenant", shell_complete=tenants, help="Only jobs of this tenant; of its tree with --tree.")
@click.option("--user", help="Only jobs of this user.")
@table_answer_options
def usage(form: str, **given: Any) -> None:  # noqa: ANN401  # click gives each option its own type
    """Sum up GPU and CPU hours by tenant, user, job or node.

    What still runs counts up to now. JOBS are those that held something, members of
    arrays one by one; --by job has one line for an array.

    \b
    Examples:
      stoker usage
      stoker usage --by user --from 30d
      stoker usage --by tenant --tree
      stoker usage --from 2026-11-01 --to 2026-12-01 --by job --tenant vision
    """
    from stoker.wire.rest.usage import UsageReportQuery

    if given["tree"] and given["by"] != "tenant":
        raise click.UsageError(
            f"--tree goes with --by tenant, and not with --by {given['by']}: only tenants form a tree"
        )
    report = connect().usage(UsageReportQuery(**with_timestamps(given, "since", "to")))
    show_rows(form, _columns(report), report.lines, report, _summary(report))


def _columns(report: "UsageView") -> "list[Column[UsageLineView]]":
    return [
        Column(report.by.value.upper(), _name, elastic=True),
        Column("JOBS", lambda line: line.jobs, right=True),
        Column("GPU-HOURS", lambda line: f"{line.gpu_hours:.2f}", right=True),
        Column("SHARE", lambda line: _percent(line.gpu_ms, report.total.gpu_ms), right=True),
        *([Column("OWN", _own_hours, right=True)] if report.tree else []),
        Column("CPU-HOURS", lambda line: f"{line.cpu_hours:.2f}", right=True),
        Column("GPU-MS", lambda line: line.gpu_ms, right=True, wide=True),
        Column("CPU-MS", lambda line: line.cpu_ms, right=True, wide=True),
    ]


def _name(line: "UsageLineView") -> str:
    return "  " * (line.path or "").count("/") + line.key


def _own_hours(line: "UsageLineView") -> str | None:
    return f"{line.own.gpu_hours:.2f}" if line.own else None


def _percent(part: int, whole: int) -> str | None:
    return f"{100 * part / whole:.1f} %" if whole else None


def _summary(report: "UsageView") -> Iterator[tuple[str, object]]:
    cluster = report.cluster
    yield "from", local_text(report.since)
    yield "to", local_text(report.to)
    if report.more:
        yield "lines", f"the {len(report.lines)} largest; smaller ones are left out, and are in the total"
    yield "total", f"{report.total.gpu_hours:.2f} GPU-hours, {report.total.cpu_hours:.2f} CPU-hours, {_jobs(report)}"
    yield "cluster", f"{cluster.capacity_gpu_hours:.2f} GPU-hours to be had"
    used = f" ({cluster.used_percent:.1f} %)" if cluster.used_percent is not None else ""
    yield "  allocated", f"{cluster.allocated_gpu_hours:.2f}{used}"
    yield "  idle", f"{cluster.idle_gpu_hours:.2f}"


def _jobs(report: "UsageView") -> str:
    return f"{report.total.jobs} job{'s' * (report.total.jobs != 1)}"
