"""Picture of text that is drawn again and again in one place of a terminal, without flicker.

Rules: K1  nothing is cleared before it is drawn over: each line is overwritten and the rest of it erased, in one write
       K2  what doesn't fit the window is cut, never folded, and the last line says how much is missing
       K3  however it ends, the terminal is as it was, with the last picture below the command

Source: ECMA-48; private modes 25 (cursor), 7 (fold), 1049 (second screen) of xterm, 2026 (synchronized output), which
terminals that don't know it ignore.
"""

import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Final

from stoker.cli.display.terminal import size

_ENTER: Final = "\x1b[?1049h\x1b[?25l\x1b[?7l"
_LEAVE: Final = "\x1b[?7h\x1b[?25h\x1b[?1049l"
EXIT_TERMINATED: Final = 143
"""128 + SIGTERM."""


class Canvas:
    """Second screen of the terminal, on which lines are drawn."""

    def __init__(self) -> None:
        self.last: Sequence[str] = ()
        """The last picture."""

    def draw(self, lines: Sequence[str]) -> None:
        """Show these lines, from the top of the window."""
        self.last = lines
        height = size().lines
        if len(lines) > height:
            lines = [*lines[: height - 1], f"… {len(lines) - height + 1} more"]
        rows = "\x1b[K\r\n".join(lines)
        _write(f"\x1b[?2026h\x1b[H{rows}\x1b[K\x1b[J\x1b[?2026l")


@contextmanager
def open_canvas(*, keep: bool = True) -> Iterator[Canvas]:
    """Take the terminal and give it back as it was, with the last picture below the command if `keep` (K3).

    SIGTERM ends the program as Ctrl-C does, with 143, unless the program handles it already.
    """
    canvas = Canvas()
    before = signal.getsignal(signal.SIGTERM)
    if before is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminated)
    _write(_ENTER)
    try:
        yield canvas
    finally:
        _write(_LEAVE + "".join(f"{line}\n" for line in canvas.last if keep))
        signal.signal(signal.SIGTERM, before)


def _terminated(number: int, frame: FrameType | None) -> None:
    raise SystemExit(EXIT_TERMINATED)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
