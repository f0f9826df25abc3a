"""`stoker usage`: reports of usage by tenant, user, job or node."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from stoker.cli.clock import local_text, with_timestamps
from stoker.cli.completion import tenants
from stoker.cli.display.formatting import duration
from stoker.cli.display.output import show_rows
from stoker.cli.display.table import Column
from stoker.cli.options import OnceCommand
from stoker.cli.server import connect, table_answer_options

if TYPE_CHECKING:
    from stoker.wire.rest.usage import ShareLineView, SharesView, UsageLineView, UsageView


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
@click.option("--shares", is_flag=True, help="Fair shares of tenants as they are now, and whose job is next and why.")
@click.option("--tenant", shell_complete=tenants, help="Only jobs of this tenant; of its tree with --tree.")
@click.option("--user", help="Only jobs of this user.")
@table_answer_options
def usage(form: str, **given: Any) -> None:  # noqa: ANN401  # click gives each option its own type
    """Sum up GPU and CPU hours by tenant, user, job or node.

    What still runs counts up to now. JOBS are those that held something, members of
    arrays one by one; --by job has one line for an array.

    --shares tells of each tenant with all beneath it what its weight entitles it to, what it
    has used of the cluster, where old use counts less, and the points of priority that it gains.

    \b
    Examples:
      stoker usage
      stoker usage --by user --from 30d
      stoker usage --by tenant --tree
      stoker usage --shares
      stoker usage --from 2026-11-01 --to 2026-12-01 --by job --tenant vision
    """
    from stoker.wire.rest.usage import UsageReportQuery

    if given["tree"] and given["by"] != "tenant":
        raise click.UsageError(
            f"--tree goes with --by tenant, and not with --by {given['by']}: only tenants form a tree"
        )
    if given["shares"]:
        _refuse_beside_shares()
        found = connect().usage(UsageReportQuery(shares=True, tenant=given["tenant"] or "")).shares
        assert found is not None, "what was asked for is answered: a control plane without it refuses the question"
        show_rows(form, _share_columns(), found.lines, found, _share_summary(found))
        return
    report = connect().usage(UsageReportQuery(**with_timestamps(given, "since", "to")))
    show_rows(form, _columns(report), report.lines, report, _summary(report))


def _refuse_beside_shares() -> None:
    """Raise a usage error for an option that means nothing beside --shares."""
    context = click.get_current_context()
    for option in ("since", "to", "by", "tree", "user"):
        if context.get_parameter_source(option) is ParameterSource.COMMANDLINE:
            said = "from" if option == "since" else option
            raise click.UsageError(f"--shares tells how it is now, by tenant: leave --{said} out")


def _share_columns() -> "list[Column[ShareLineView]]":
    return [
        Column("TENANT", lambda line: "  " * line.path.count("/") + line.tenant, elastic=True),
        Column("WEIGHT", lambda line: line.weight, right=True),
        Column("ENTITLED", lambda line: f"{line.entitled_percent:.1f} %", right=True),
        Column("USED", lambda line: f"{line.used_percent:.1f} %", right=True),
        Column("OF", lambda line: line.resource.replace("_", " ")),
        Column("POINTS", lambda line: line.fair_share, right=True),
        Column("GPUS", lambda line: line.running_gpus, right=True),
        Column("RUNNING", lambda line: line.running_jobs, right=True),
        Column("PENDING", lambda line: line.pending_jobs, right=True),
    ]


def _share_summary(found: "SharesView") -> Iterator[tuple[str, object]]:
    yield "points", f"{found.points} at most" if found.points else "fair share is off"
    yield "half-life", duration(found.half_life_s * 1_000)
    if found.more:
        yield "lines", f"the first {len(found.lines)}; --tenant narrows them down"
    if found.next is not None:
        sums = found.next.priority
        parts = f"{sums.effective} = {sums.base} + {sums.aging} for waiting + {sums.fair_share} fair share"
        yield "next", f"job {found.next.job_id} of {found.next.tenant}, priority {parts}"
    yield "  because" if found.next is not None else "next", found.message


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
