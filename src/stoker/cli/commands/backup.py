"""Commands `stoker backup` and `stoker restore`: the whole cluster as one file."""

import os
import sys
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stoker.cli.display.output import output_options, show_lines
from stoker.cli.display.terminal import is_terminal
from stoker.cli.options import AddOption, OnceCommand
from stoker.cli.server import answer_options, transport
from stoker.cli.setting_options import asked_there_option, data_dir_option

if TYPE_CHECKING:
    from stoker.wire.backup import BackupHead

_STDOUT = "-"


def _config_option(help_text: str) -> AddOption:
    return click.option("-c", "--config", type=click.Path(path_type=Path, exists=True, dir_okay=False), help=help_text)


@click.command(cls=OnceCommand)
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False))
@asked_there_option
@_config_option("Its settings file instead, which also names the database of one whose log is there.")
@click.option("--force", is_flag=True, help="Replace FILE if it is there.")
@answer_options
def backup(file: Path, data_dir: Path | None, config: Path | None, force: bool, form: str) -> None:
    """Write all that the cluster is into FILE, while it goes on.

    Jobs, nodes, tenants, the digests of tokens, the history and the audit trail, as they are at one moment. FILE is
    there whole or not at all, and readable by you alone: it holds the environment of every job. `-` is standard output.

    \b
    Examples:
      stoker backup /backup/stoker-monday.tar
      stoker backup --data-dir /var/lib/stoker /backup/stoker.tar --force
      stoker backup -c /etc/stoker/control.yaml /backup/stoker.tar
      stoker backup - | gzip > stoker.tar.gz
    """
    from stoker.cli.wiring.backup import backup_in, backup_of, file_to_be

    to_stdout = str(file) == _STDOUT
    if to_stdout and is_terminal():
        raise click.UsageError("a backup isn't for reading: name a file, or send standard output to one")
    if data_dir is not None and config is not None:
        raise click.UsageError("name the folder by --data-dir or by -c, and not by both")
    folder, store_url = _named_by(config) if config else (data_dir, "")
    with ExitStack() as stack:
        out = sys.stdout.buffer if to_stdout else stack.enter_context(file_to_be(file, force=force))
        head = (
            backup_in(folder, out, store_url) if folder else backup_of(stack.enter_context(closing(transport())), out)
        )
        out.flush()
    if not to_stdout:
        show_lines(form, [f"backup of position {head.position} ({_held(head)}) is in {file}"], head)


@click.command(cls=OnceCommand)
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@data_dir_option("Data folder to make. It mustn't be there yet, or be empty.")
@_config_option("Settings file of a control plane: its data_dir is meant, and its store.url.")
@click.option("--force", is_flag=True, help="Move aside what is in the folder, and keep it.")
@output_options
def restore(file: Path, data_dir: Path | None, config: Path | None, force: bool, form: str) -> None:
    """Make a control plane's data folder from a backup, all or nothing; with a store.url also what its database holds.

    Start a control plane on it then. What happened after the backup is not known to it: jobs that were submitted since
    are gone, what runs of them is stopped when agents come back, and what ended since may run again. Ids of jobs go on
    a million higher, so that none is ever given twice. A database must be empty: what is in one is never replaced.

    \b
    Examples:
      stoker restore /backup/stoker-monday.tar --data-dir /var/lib/stoker
      stoker restore /backup/stoker-monday.tar -c /etc/stoker/control.yaml --force
    """
    from stoker.cli.wiring.restore import restore_backup

    if (data_dir is None) == (config is None):
        raise click.UsageError("name the folder, by --data-dir or by -c, and not by both")
    folder, store_url = _named_by(config) if config else (data_dir or Path(), "")
    head, _, state = restore_backup(file, folder, force=force, store_url=store_url)
    held_by = f"{folder} and the database of store.url hold" if store_url else f"{folder} holds"
    lines = [
        f"{held_by} the cluster as it was at position {head.position} ({_held(head)})",
        f"the next job is {state.next_job_id}; what happened after the backup is not known here",
    ]
    show_lines(form, lines, head)


def _named_by(config: Path) -> tuple[Path, str]:
    """Data folder and store.url of a control plane. Raises: StokerError `bad_settings` or `which_daemon`."""
    from stoker.agent.settings import AgentSettings
    from stoker.cli.wiring.settings import load
    from stoker.live.settings.control import ControlSettings

    settings = load(ControlSettings, config, os.environ, {}, others=(AgentSettings,)).value
    return settings.data_dir, settings.store.url


def _held(head: "BackupHead") -> str:
    counts = head.counts
    return f"{counts.jobs} jobs, {counts.nodes} nodes, {counts.tenants} tenants, {counts.tokens} tokens"
