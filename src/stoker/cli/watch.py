"""Repetition of a command's output until Ctrl-C.

Rules: W1  on a terminal that can move its cursor the picture is redrawn in place; elsewhere each look is printed, with
           a blank line between two
       W2  a control plane that goes away is waited for: on a terminal below the last picture, elsewhere with one line
           on stderr; but the first look must succeed, for a wrong address never heals
       W3  a refusal that time doesn't lift ends it
       W4  a picture that comes from a standby is shown, and said to be one, in the same place
"""

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NoReturn

import click

from stoker.cli.clock import clock_text, sleep_blocking
from stoker.cli.display.canvas import open_canvas
from stoker.cli.display.messages import refused
from stoker.cli.display.safe_text import visible
from stoker.cli.display.terminal import is_dumb, is_terminal, paints

if TYPE_CHECKING:
    from stoker.brain.domain.errors import StokerError

Refresh = Callable[[], tuple[Sequence[str], str]]
"""What there is to see now, as lines without line ends, and what to say of it; mostly nothing. Raises: StokerError."""
WATCH_S: Final = 2.0
WATCH_MIN_S: Final = 0.1
WATCH_MAX_S: Final = 86_400.0


def watch(look: Refresh, every_s: float, title: str) -> NoReturn:
    """Look every `every_s` seconds. `title` says at what, on a terminal."""
    first = look()
    if is_terminal() and not is_dumb():
        _redraw(look, every_s, title, first)
    _print_on(look, every_s, first)


def _redraw(look: Refresh, every_s: float, title: str, first: tuple[Sequence[str], str]) -> NoReturn:
    seen, trouble = first
    with open_canvas() as canvas:
        while True:
            head = _dim(f"{clock_text()}  {visible(title)}, every {every_s:g}s; Ctrl-C ends it")
            canvas.draw([head, *_trouble_line(trouble), *seen])
            sleep_blocking(every_s)
            try:
                seen, trouble = look()
            except refused() as fault:
                trouble = _waits(fault)


def _print_on(look: Refresh, every_s: float, first: tuple[Sequence[str], str]) -> NoReturn:
    seen: Sequence[str] | None
    (seen, told), said = first, ""
    while True:
        if told and _kind(told) != _kind(said):
            click.echo(visible(told), err=True)
        said = told
        if seen is not None:
            click.echo("\n".join([*seen, ""]))
            sys.stdout.flush()
        sleep_blocking(every_s)
        try:
            seen, told = look()
        except refused() as fault:
            seen, told = None, _waits(fault)


def _kind(told: str) -> str:
    """What is said once, whatever numbers are in it."""
    return told.partition(" ")[0]


def _waits(fault: "StokerError") -> str:
    """Why to wait. Raises: the fault again where waiting is of no use (W3)."""
    from stoker.wire.status import status_of

    if status_of(fault.refusal.code).http not in (503, 504):
        raise fault
    return f"waiting: {visible(fault.refusal.message)} [{fault.refusal.code}]"


def _trouble_line(trouble: str) -> list[str]:
    trouble = visible(trouble)
    return [click.style(trouble, fg="red") if paints() else trouble] if trouble else []


def _dim(text: str) -> str:
    return click.style(text, dim=True) if paints() else text
