"""What does a person hear of the servers beside their answer?

Rules: N1  a line on stderr, so that stdout holds answers only, in every form; what repeats the same picture shows it
           there instead
       N2  that answers come from a standby is said once by a command
"""

from contextlib import suppress
from typing import TYPE_CHECKING

import click

from stoker.cli.display.safe_text import visible

if TYPE_CHECKING:
    from stoker.wire.client.staleness import Notice


class NoticePrinter:
    """Told by a client; says it at once."""

    def __init__(self) -> None:
        self._stale = False

    def __call__(self, notice: "Notice") -> None:
        from stoker.wire.client.staleness import Stale

        if isinstance(notice, Stale):
            if self._stale:
                return
            self._stale = True
        with suppress(OSError):  # a stderr that is full or gone doesn't change the answer
            click.echo(visible(str(notice)), err=True)


class NoticeBuffer:
    """Told by a client whose answers are looked at again and again; says it to whoever draws them."""

    def __init__(self) -> None:
        self._stale = ""

    def __call__(self, notice: "Notice") -> None:
        from stoker.wire.client.staleness import Stale

        if isinstance(notice, Stale):  # that it waits is seen by its answer, which doesn't come
            self._stale = str(notice)

    def take(self) -> str:
        """About the answers since it was last asked; empty = they come from the active."""
        told, self._stale = self._stale, ""
        return told
