"""Suggestion of a known name for one that isn't known."""

from collections.abc import Iterable
from difflib import get_close_matches
from itertools import islice
from typing import Final

COMPARED_MAX: Final = 1_000
"""Names compared: about ten milliseconds. Those beyond aren't suggested."""
LISTED_MAX: Final = 8
_SHOWN_MAX: Final = 80


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known name that is most like `name`; empty = none is like it."""
    close = get_close_matches(name[:_SHOWN_MAX], islice(known, COMPARED_MAX), n=1, cutoff=0.6)
    return close[0] if close else ""


def did_you_mean(name: str, known: list[str], nothing: str) -> str:
    """Return a hint: the nearest known name, else the first known names, else `nothing`."""
    near = nearest(name, known)
    if near:
        return f"did you mean `{near}`?"
    if not known:
        return nothing
    more = f" and {len(known) - LISTED_MAX} more" if len(known) > LISTED_MAX else ""
    return f"known are: {', '.join(known[:LISTED_MAX])}{more}"
