"""Lines on stderr: refusals with their hints, and notices about the servers, so that stdout holds answers only.

A refusal reads `error: MESSAGE [CODE]`, then `hint: WHAT TO DO`; a fault of the command line has no code.

Rules: N1  a notice is a line on stderr, whatever the form of the answer; a command that redraws a picture shows the
           notice in the picture instead
       N2  that answers come from a standby is said once by a command
"""

from typing import TYPE_CHECKING

import click

from stoker.cli.display.safe_text import visible

if TYPE_CHECKING:
    from stoker.brain.domain.errors import StokerError
    from stoker.wire.client.staleness import Notice


def refused() -> "type[StokerError]":
    """Return the exception class to catch. It is imported when something was raised: `--help` needn't pay for it."""
    from stoker.brain.domain.errors import StokerError

    return StokerError


def show_problem(fault: "StokerError") -> int:
    """Print a refusal and return the exit status of its code."""
    from stoker.wire.status import status_of
    from stoker.wire.token import without_secrets

    refusal = fault.refusal
    # Some messages list several faults, a line each; their lines are kept, their control characters aren't.
    message = "\n".join(map(visible, without_secrets(refusal.message).splitlines()))
    click.echo(f"error: {message} [{refusal.code}]", err=True)
    if refusal.hint:
        click.echo(f"hint: {visible(without_secrets(refusal.hint))}", err=True)
    return status_of(refusal.code).exit


def show_usage_fault(fault: click.ClickException) -> None:
    """Print what was wrong with a command line, and where its options are listed."""
    said, _, hint = fault.format_message().rstrip().partition("\nhint: ")
    message = visible(said).rstrip()
    first = message[:2]
    message = first.lower() + message[2:] if first[:1].isupper() and not first[1:].isupper() else message
    click.echo(f"error: {message}", err=True)
    ctx = getattr(fault, "ctx", None)
    if hint:
        click.echo(f"hint: {visible(hint)}", err=True)
    elif isinstance(fault, click.UsageError) and ctx is not None:
        click.echo(f"hint: `{ctx.command_path} --help` lists what it takes", err=True)


class NoticePrinter:
    """Listener of a client that prints each notice at once."""

    def __init__(self) -> None:
        self._stale = False

    def __call__(self, notice: "Notice") -> None:
        from stoker.wire.client.staleness import Stale

        if isinstance(notice, Stale):
            if self._stale:
                return
            self._stale = True
        click.echo(visible(str(notice)), err=True)


class NoticeBuffer:
    """Listener of a client that keeps the newest notice of a stale answer for the picture that is redrawn."""

    def __init__(self) -> None:
        self._stale = ""

    def __call__(self, notice: "Notice") -> None:
        from stoker.wire.client.staleness import Stale

        if isinstance(notice, Stale):  # that it waits is seen by its answer, which doesn't come
            self._stale = str(notice)

    def take(self) -> str:
        """Return the notice about the answers since the last call; empty = they come from the active control plane."""
        told, self._stale = self._stale, ""
        return told
