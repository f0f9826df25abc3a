"""Command `stoker audit`: the audit trail of commands, their principals and their outcomes."""

from typing import TYPE_CHECKING, Any

import click

from stoker.cli.clock import with_timestamps
from stoker.cli.completion import tenants
from stoker.cli.display.output import show_rows
from stoker.cli.display.table import Column, fields
from stoker.cli.options import OnceCommand
from stoker.cli.server import connect, table_answer_options

if TYPE_CHECKING:
    from stoker.wire.client import Client
    from stoker.wire.rest.audit import AuditListView, AuditRowView

LIMIT = 100


@click.command(cls=OnceCommand)
@click.option("--since", metavar="MOMENT", help="Only rows from then on: `1d` ago, a date, a time.")
@click.option("--until", metavar="MOMENT", help="Only rows before then, said in the same ways.")
@click.option("--by", metavar="P", help="Only what this principal told: `user:ada`, `token:ID`, `nobody`.")
@click.option("--action", metavar="A", help="Only this action: `submit`, `cancel`, `node_drain`.")
@click.option("--outcome", metavar="O", help="`ok`, `unchanged`, `refused`, or the code of a refusal.")
@click.option("--tenant", metavar="T", shell_complete=tenants, help="Only what concerned this tenant, or a job of it.")
@click.option("--job", metavar="ID", help="Only what concerned this job, array or member.")
@click.option("--limit", type=click.IntRange(1), default=LIMIT, show_default=True, help="The newest so many rows.")
@table_answer_options
def audit(form: str, limit: int, **given: str | None) -> None:
    """List what people told the cluster, newest first, and what came of it.

    For admins. What was refused is there too, counted by the minute, and who showed no good token under `nobody`.

    \b
    Examples:
      stoker audit
      stoker audit --since 1d --by user:ada
      stoker audit --job 7 --outcome refused --json
    """
    page = _gathered(connect(), with_timestamps(given, "since", "until"), limit)
    show_rows(form, _columns(), page.rows, page)


def _gathered(client: "Client", asked: dict[str, Any], limit: int) -> "AuditListView":
    """Return up to `limit` rows as one page, however many pages that takes."""
    from stoker.wire.rest.audit import AUDIT_MAX, AuditListQuery, AuditListView

    rows: list[AuditRowView] = []
    after: str | None = ""
    while after is not None and len(rows) < limit:
        page = client.audit(AuditListQuery(**asked, limit=min(AUDIT_MAX, limit - len(rows)), after=after))
        rows += page.rows
        after = page.next
    return AuditListView(rows=rows, limit=limit, next=after)


def _columns() -> "list[Column[AuditRowView]]":
    return [
        Column("AT", lambda row: row.at, instant=True),
        *fields("BY", "ACTION", "OUTCOME"),
        Column("ABOUT", _about),
        Column("DETAILS", lambda row: row.details, elastic=True),
        Column("COUNT", lambda row: row.count or None, right=True, wide=True),
        Column("TIMES", lambda row: row.times, right=True, wide=True),
        Column("TENANT", lambda row: row.tenant, wide=True),
    ]


def _about(row: "AuditRowView") -> str | None:
    if row.job and row.last_job:
        return f"{row.job} to {row.last_job}"
    return row.job or row.target
