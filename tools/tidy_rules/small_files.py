"""A small file with one importer belongs into that importer, unless it is a noun, a port or an adapter.

Rule 6 of the house style, so that a limit on long files makes no confetti. `tools/small_files.txt` lists the
exceptions, each with the reason why it stands alone.
"""

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Final

from tools.tidy_rules.source import Fault, Source, rows_of

SMALL_FILES: Final = "tools/small_files.txt"
LINES_MIN: Final = 60
IMPORTERS_MIN: Final = 2
NOUNS_PORTS_ADAPTERS: Final = (
    *("*/__init__.py", "*/__main__.py", "*/ports.py", "*/ports/*", "*/adapters/*", "*/cli/commands/*", "*/http/*"),
    *("*/brain/domain/*", "*/brain/state/events/*", "*/brain/state/admit/*", "*/brain/state/apply/*", "*/wire/rest/*"),
)
"""Where one file per noun, port or adapter is the plan, however small each is. `*` matches slashes too."""


def small_files_have_a_reason(sources: Sequence[Source]) -> Iterator[Fault]:
    """Lines are physical ones; an importer is any file of `src` with an import of the module, also inside a function.

    A file that nothing imports is an entry point, and passes. A row of the list that forgives nothing must go.
    """
    reasons = {row.key: row for row in rows_of(sources, SMALL_FILES)}
    lonely = small_files(sources)
    paths = {source.path for source in sources}
    for path, importer in lonely.items():
        row = reasons.get(path)
        if row is None or not row.rest:
            says = (
                f"under {LINES_MIN} lines, imported by {importer} alone: move it there, or give {SMALL_FILES} a reason"
            )
            yield Fault(path, 1, "small-file", says)
    for path, row in reasons.items():
        if path not in lonely:
            why = "has grown or has other importers" if path in paths else "is gone"
            yield Fault(SMALL_FILES, row.line, "small-file", f"{path} {why}: delete its row")


def small_files(sources: Sequence[Source]) -> dict[str, str]:
    """Path of each file that is small, not exempt and imported once -> path of its importer."""
    ours = {source.module: source for source in sources if source.is_python and source.within("src")}
    importers = _importers(ours)
    return {
        source.path: min(importers[module])
        for module, source in ours.items()
        if len(source.lines) < LINES_MIN
        and len(importers[module]) == IMPORTERS_MIN - 1
        and not any(fnmatchcase(source.path, pattern) for pattern in NOUNS_PORTS_ADAPTERS)
    }


def _importers(ours: dict[str, Source]) -> dict[str, set[str]]:
    """Module -> paths of the files that import it; `from package import module` imports the module."""
    found: dict[str, set[str]] = {module: set() for module in ours}
    for source in ours.values():
        for imported in source.imports:
            inner = f"{imported.module}.{imported.name}"
            module = inner if inner in ours else imported.module
            if module in found and module != source.module:
                found[module].add(source.path)
    return found
