"""Files have at most 500 lines and functions at most 60, beyond what the ratchet still forgives.

Rule 6 of the house style. `tools/ratchet.txt` lists today's offenders, each with a number that may only fall.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from tools.tidy_rules.source import Fault, Source, rows_of

RATCHET: Final = "tools/ratchet.txt"
FILE_LINES_MAX: Final = 500
FUNCTION_LINES_MAX: Final = 60


def sizes(sources: Sequence[Source]) -> dict[str, tuple[int, int, int]]:
    """For each file and each function `PATH::NAME`: its lines, its bound, the line where it begins."""
    found: dict[str, tuple[int, int, int]] = {}
    for source in sources:
        if not source.is_python:
            continue
        found[source.path] = (len(source.lines), FILE_LINES_MAX, 1)
        for name, function in source.functions():
            length = (function.end_lineno or function.lineno) - function.lineno + 1
            found[f"{source.path}::{name}"] = (length, FUNCTION_LINES_MAX, function.lineno)
    return found


def nothing_outgrows_the_ratchet(sources: Sequence[Source]) -> Iterator[Fault]:
    """A new offender fails, a grown one fails, and one that shrank must have its number lowered."""
    forgiven = {row.key: int(row.rest) for row in rows_of(sources, RATCHET)}
    measured = sizes(sources)
    for name, (lines, bound, begins) in measured.items():
        path = name.partition("::")[0]
        limit = max(bound, forgiven.get(name, 0))
        if lines > limit:
            yield Fault(path, begins, "size", f"{name} has {lines} lines, {limit} are allowed: split it by theme")
    for name, limit in forgiven.items():
        lines, bound, _ = measured.get(name, (0, 0, 1))
        if lines <= bound:
            yield Fault(RATCHET, 1, "size", f"{name} needs no forgiveness any more: delete its line")
        elif lines < limit:
            yield Fault(RATCHET, 1, "size", f"{name} fell to {lines} lines: lower its number from {limit}")
