"""`stoker doctor`: checks of settings, this machine and a control plane, each with its remedy."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from stoker.cli.display.output import for_people, show_rows, show_value
from stoker.cli.display.safe_text import visible
from stoker.cli.display.table import Column
from stoker.cli.display.terminal import paints
from stoker.cli.options import OnceCommand
from stoker.cli.server import answer_options, credentials_of, server_was_spoken, servers_of
from stoker.cli.setting_options import set_option

if TYPE_CHECKING:
    from stoker.cli.doctor.effective import Effective
    from stoker.cli.doctor.finding import Finding

_COLOURS: Final = {"ok": "green", "warning": "yellow", "error": "red"}
_MARGIN: Final = 9
_NAME: Final = 16


@click.command(cls=OnceCommand)
@click.option(
    "-c",
    "--config",
    "path",
    type=click.Path(path_type=Path),
    help="Settings file to check, and this machine for the daemon that it is of.",
)
@click.option(
    "--kind",
    type=click.Choice(["control", "agent"]),
    help="Of which daemon the settings are. [default: as the file's keys say; control without a file]",
)
@click.option("--settings", "show_settings", is_flag=True, help="Only print every setting that holds, and its source.")
@set_option
@answer_options
def doctor(path: Path | None, kind: str | None, show_settings: bool, flags: dict[str, object], form: str) -> None:
    """Say what is wrong, and what to do about it.

    With -c: the settings, and this machine as the place where that daemon will run. Without, or with --server: a
    control plane that serves, and its nodes. Nothing is changed; the one file that is written, to time the disk, has
    no name and is gone at once.

    Ends with status 1 when something is in error, else with 0.

    \b
    Examples:
      stoker doctor
      stoker doctor -c control.yaml
      stoker doctor -c agent.yaml -o json
      stoker doctor --settings -c control.yaml
    """
    from stoker.cli.doctor.effective import kind_of

    local = bool(path or kind or flags or show_settings)
    daemon = kind_of(path, kind) if local else ""
    if show_settings:
        _print_settings(form, path, daemon, flags)
        return
    found = list(_shown(form, _findings(path, daemon, flags, local=local)))
    counts = {level: sum(finding.level == level for finding in found) for level in _COLOURS}
    if for_people(form):
        warnings, errors = (f"{counts[word]} {word}{'s' * (counts[word] != 1)}" for word in ("warning", "error"))
        click.echo(f"{counts['ok']} ok, {warnings}, {errors}")
    else:
        show_value(form, {**counts, "findings": found})
    if counts["error"]:
        click.get_current_context().exit(1)


def _findings(path: Path | None, daemon: str, flags: dict[str, object], *, local: bool) -> "Iterator[Finding]":
    from stoker.cli.doctor.bounded_check import run_check
    from stoker.cli.doctor.examination import of_file, of_server
    from stoker.cli.doctor.serving import Server

    if local:
        yield from of_file(run_check, path, daemon, os.environ, flags)
    if not local or server_was_spoken():
        ctx = click.get_current_context()
        yield from of_server(run_check, Server(servers_of(ctx), credentials_of(ctx)))


def _shown(form: str, findings: "Iterable[Finding]") -> "Iterator[Finding]":
    """Pass them on; for people print each as it comes, since some take seconds."""
    for finding in findings:
        if for_people(form):
            level = f"{finding.level.value:{_MARGIN}}"
            painted = click.style(level, _COLOURS[finding.level]) if paints() else level
            click.echo(f"{painted}{finding.check:{_NAME}}{visible(finding.what)}", color=paints())
            if finding.fix:
                click.echo(" " * (_MARGIN + _NAME) + f"fix: {visible(finding.fix)}")
        yield finding


def _print_settings(form: str, path: Path | None, daemon: str, flags: dict[str, object]) -> None:
    """Raises: StokerError `bad_settings`."""
    from stoker.cli.doctor.effective import one_line, read, rows
    from stoker.cli.wiring.settings import require

    seen = require(read(daemon, path, os.environ, flags))
    columns: list[Column[Effective]] = [
        Column("KEY", lambda row: row.key),
        Column("VALUE", lambda row: one_line(row.value)),
        Column("FROM", lambda row: row.origin),
    ]
    found = rows(seen.value, seen.origin)
    show_rows(form, columns, found, found)
