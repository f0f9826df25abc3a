"""`stoker quota`: how online and batch jobs share the GPUs."""

from typing import TYPE_CHECKING

import click

from stoker.cli.display.output import show_rows
from stoker.cli.display.table import Column
from stoker.cli.options import OnceGroup
from stoker.cli.server import answer_options, connect, table_answer_options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stoker.wire.rest.quota import PoolView, QuotaView

_Row = tuple[str, float, "PoolView"]


@click.group(cls=OnceGroup)
def quota() -> None:
    """Show and set how online and batch jobs share the GPUs.

    Each class is guaranteed a share of the GPUs in service, and borrows what the other leaves idle.

    \b
    Examples:
      stoker quota show
      stoker quota set --online-percent 0.6
    """


@quota.command()
@answer_options
def show(form: str) -> None:
    """Show what each class is guaranteed, uses, borrows and may take.

    FREE are idle GPUs that its jobs may take; WAITING is what its waiting jobs ask for, of
    arrays those members that may start.

    \b
    Examples:
      stoker quota show
    """
    _show(form, connect().quota())


@quota.command("set")
@click.option(
    "--online-percent",
    metavar="SHARE",
    help="Share of the GPUs that online jobs are guaranteed: 0.7, 70 or 70%. 1 is all of them.",
)
@click.option("--batch-percent", metavar="SHARE", help="The same of batch jobs. [default: the rest]")
@click.option("--strict/--no-strict", default=None, help="Let neither class borrow from the other.")
@click.option("--force", is_flag=True, help="Also below what is in use, where shares are strict. What runs goes on.")
@table_answer_options
def change(
    form: str, online_percent: str | None, batch_percent: str | None, strict: bool | None, *, force: bool
) -> None:
    """Share the GPUs anew, at once. What runs goes on.

    \b
    Examples:
      stoker quota set --online-percent 0.6
      stoker quota set --online-percent 0.5 --batch-percent 0.25 --strict
    """
    from stoker.wire.rest.quota import QuotaBody, parse_share

    if online_percent is None and batch_percent is None and strict is None:
        raise click.UsageError("nothing to change was given: --online-percent, --batch-percent or --strict")
    body = QuotaBody(
        online_percent=None if online_percent is None else parse_share("--online-percent", online_percent),
        batch_percent=None if batch_percent is None else parse_share("--batch-percent", batch_percent),
        strict=strict,
        force=force,
    )
    _show(form, connect().set_quota(body))


def _show(form: str, found: "QuotaView") -> None:
    rows: list[_Row] = [("online", found.online_percent, found.online), ("batch", found.batch_percent, found.batch)]
    show_rows(form, _columns(), rows, found, _summary(found))


def _columns() -> list[Column[_Row]]:
    return [
        Column("CLASS", lambda row: row[0]),
        Column("SHARE", lambda row: f"{100 * row[1]:.6g} %", right=True),
        Column("GUARANTEED", lambda row: row[2].guaranteed, right=True),
        Column("USED", lambda row: row[2].used, right=True),
        Column("BORROWED", lambda row: row[2].borrowed, right=True),
        Column("FREE", lambda row: row[2].free, right=True),
        Column("LIMIT NOW", lambda row: row[2].limit_now, right=True),
        Column("WAITING", lambda row: row[2].waiting_gpus, right=True),
    ]


def _summary(found: "QuotaView") -> "Iterator[tuple[str, object]]":
    yield "gpus", f"{found.total_gpus} in service, {found.free_gpus} free"
    yield "idle ones", "are not borrowed: shares are strict" if found.strict else "are borrowed by either class"
