"""How does a person read that something was refused?

`error: MESSAGE [CODE]`, then `hint: WHAT TO DO`, both on stderr, so that stdout holds answers only. What comes back is
the exit status of the code.
"""

from contextlib import suppress
from typing import TYPE_CHECKING

import click

from stoker.cli.display.safe_text import visible

if TYPE_CHECKING:
    from stoker.brain.domain.errors import StokerError


def refused() -> "type[StokerError]":
    """The exception to catch. Imported when something was raised, so that `--help` needn't pay for it."""
    from stoker.brain.domain.errors import StokerError

    return StokerError


def show_problem(fault: "StokerError") -> int:
    """Print it and answer the exit status."""
    from stoker.wire.status import exit_status
    from stoker.wire.token import without_secrets

    refusal = fault.refusal
    # Some messages list several faults, a line each; their lines are kept, their control characters aren't.
    message = "\n".join(map(visible, without_secrets(refusal.message).splitlines()))
    with suppress(OSError):  # a stderr that is full or gone doesn't change how it ended
        click.echo(f"error: {message} [{refusal.code}]", err=True)
        if refusal.hint:
            click.echo(f"hint: {visible(without_secrets(refusal.hint))}", err=True)
    return exit_status(refusal.code)
