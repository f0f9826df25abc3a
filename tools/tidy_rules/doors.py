"""Each third-party library enters `src` through one door, and one without a door is refused.

Rule 8 of the house style. `tools/third_party.txt` lists the doors. An import contract can only refuse the libraries
that it names; this rule refuses every library that has no row. A module of the standard library that has a row, such as
`sqlite3`, may only be imported by its doors as well.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from tools.tidy_rules.source import Fault, Source, rows_of

THIRD_PARTY: Final = "tools/third_party.txt"
_OURS: Final = ("stoker",)


class Door(NamedTuple):
    """One row of the list: the modules that match `pattern` may import `library`."""

    line: int
    library: str
    pattern: str

    def admits(self, module: str) -> bool:
        """True if a module matches: `*` is one part of a name, a last `.**` a package with everything beneath it."""
        text = re.escape(self.pattern.removesuffix(".**")).replace(r"\*", r"[^.]*")
        beneath = r"(?:\..+)?" if self.pattern.endswith(".**") else ""
        return re.fullmatch(text + beneath, module) is not None


def libraries_enter_through_their_doors(sources: Sequence[Source]) -> Iterator[Fault]:
    """A row that lets no import in is a fault too."""
    doors = [Door(*row) for row in rows_of(sources, THIRD_PARTY)]
    guarded = {door.library for door in doors}
    used: set[Door] = set()
    for source in sources:
        if not source.is_python or not source.within("src"):
            continue
        for imported in source.imports:
            library = imported.library
            if library in _OURS or (library in sys.stdlib_module_names and library not in guarded):
                continue
            open_here = [door for door in doors if door.library == library and door.admits(source.module)]
            used.update(open_here)
            if not open_here:
                yield Fault(source.path, imported.line, "library", _advice(library, source.module, doors))
    for door in doors:
        if door not in used:
            says = f"{door.library} isn't imported by {door.pattern} any more: delete the row"
            yield Fault(THIRD_PARTY, door.line, "library", says)


def _advice(library: str, module: str, doors: Sequence[Door]) -> str:
    known = [door.pattern for door in doors if door.library == library]
    if known:
        return f"{library} enters through {', '.join(known)}: call that, or move its door in {THIRD_PARTY}"
    return f"{library} has no door: add its one door in {THIRD_PARTY} (`{library} {module}`), or do without"
