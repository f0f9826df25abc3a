"""Which known name did a person probably mean?"""

from collections.abc import Iterable
from difflib import get_close_matches
from itertools import islice
from typing import Final

COMPARED_MAX: Final = 1_000
"""Names looked at: about ten milliseconds. Those beyond aren't suggested."""
LISTED_MAX: Final = 8
_SHOWN_MAX: Final = 80


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that is most like `name`. Empty = none is like it."""
    close = get_close_matches(name[:_SHOWN_MAX], islice(known, COMPARED_MAX), n=1, cutoff=0.6)
    return close[0] if close else ""


def did_you_mean(name: str, known: list[str], nothing: str) -> str:
    """A hint: the nearest name, else the first known ones, else `nothing`."""
    near = nearest(name, known)
    if near:
        return f"did you mean `{near}`?"
    if not known:
        return nothing
    more = f" and {len(known) - LISTED_MAX} more" if len(known) > LISTED_MAX else ""
    return f"known are: {', '.join(known[:LISTED_MAX])}{more}"
