"""Retired words are refused as names of modules, packages, classes and import aliases.

Rule 33a of the house style; the words stand in `words.py`. Prose, fields, functions, options, strings and stored bytes
are never looked at, and neither are names outside `src`.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Final

from tools.tidy_rules.source import Fault, Source
from tools.tidy_rules.words import WHOLE_NAMES, WORDS, WORDS_WITHIN

_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+")


def no_retired_words(source: Source) -> Iterator[Fault]:
    """One word names one thing: the field's own."""
    if not source.is_python or not source.within("src"):
        return
    here = dict(WORDS)
    for place, words in WORDS_WITHIN.items():
        here.update(words if source.within(place) else {})
    for line, kind, name in _names(source):
        found = retired_word(name, here)
        if found:
            word, instead = found
            yield Fault(source.path, line, "retired", f"{kind} '{name}': '{word}' is retired; write {instead}")


def retired_word(name: str, words: Mapping[str, str] = WORDS) -> tuple[str, str] | None:
    """The retired word of a name and its replacement; None where the name has none."""
    parts = split(name)
    whole = "_".join(parts)
    if whole in WHOLE_NAMES:
        return whole, WHOLE_NAMES[whole]
    padded = f"_{whole}_"
    return next(((word, instead) for word, instead in words.items() if f"_{word}_" in padded), None)


def split(name: str) -> list[str]:
    """The words of a name in lower case: both `gpu_room` and `_GpuRoom` are `gpu`, `room`."""
    return [word.lower() for word in _WORD.findall(name)]


def _names(source: Source) -> Iterator[tuple[int, str, str]]:
    """(line, kind, name) for each name of the file that the rule is about."""
    path = PurePosixPath(source.path)
    if source.stem == "__init__":
        yield 1, "package", path.parent.name
    else:
        yield 1, "module", source.stem
    for node in source.nodes:
        if isinstance(node, ast.ClassDef):
            yield node.lineno, "class", node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((node.lineno, "import alias", alias.asname) for alias in node.names if alias.asname)
