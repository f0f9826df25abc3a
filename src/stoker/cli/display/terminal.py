"""Capabilities of standard output: colours and width.

Rules: V1  colours only on a terminal that knows them: not into a pipe, not with NO_COLOR, not where TERM is `dumb`
       V2  COLUMNS and LINES, where they are set, are the size of the window

Source: no-color.org; the environment is read here and nowhere else, without a library that would cost more than the
command.
"""

import os
import sys
from typing import Final

_DUMB: Final = frozenset({"dumb", "unknown"})


def is_terminal() -> bool:
    return sys.stdout.isatty()


def paints() -> bool:
    """Return whether standard output may be coloured (V1)."""
    return is_terminal() and not os.environ.get("NO_COLOR") and not is_dumb()


def is_dumb() -> bool:
    """Return whether the terminal can't move its cursor."""
    return os.environ.get("TERM", "") in _DUMB


def size() -> os.terminal_size:
    """Of the window; 80 x 24 where nobody tells."""
    try:
        seen = os.get_terminal_size(sys.__stdout__.fileno() if sys.__stdout__ is not None else 1)
    except (OSError, ValueError):
        seen = os.terminal_size((0, 0))
    return os.terminal_size((_said("COLUMNS") or seen.columns or 80, _said("LINES") or seen.lines or 24))


def _said(name: str) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 5 else 0
