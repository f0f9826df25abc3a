"""Files and folders have names that say what is in them, and packages prose that says what isn't.

Rules 3, 4 and 5 of the house style.
"""

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Final

from tools.tidy_rules.source import Fault, Source

_DRAWERS: Final = ("util", "utils", "common", "helper", "helpers", "misc", "base", "manager", "handler", "core2")
_DRAWER: Final = re.compile(rf"(?:^|_)(?:{'|'.join(_DRAWERS)})s?$|_v\d+$|^new_")
_SENTENCE: Final = re.compile(r"[.!?:](?:\s|$)")
_SENTENCES_MIN: Final = 2

STATE: Final = "src/stoker/brain/state"
_NOT_NOUNS: Final = ("__init__", "dispatch")


def no_drawer_names(source: Source) -> Iterator[Fault]:
    """A name that fits anything explains nothing."""
    path = PurePosixPath(source.path)
    if source.is_python:
        for part in (*path.parts[:-1], path.stem):
            if _DRAWER.search(part):
                yield Fault(source.path, 1, "name", f"'{part}' fits anything: name the noun or question it holds")


def packages_open_with_prose(source: Source) -> Iterator[Fault]:
    """The prose of a package says what lives in it, what never does, and who may import it."""
    if not source.is_python or not source.within("src", "tools"):
        return
    prose = ast.get_docstring(source.tree) or ""
    if not prose:
        yield Fault(source.path, 1, "prose", "no module docstring: begin with what this file is or does")
    elif source.stem == "__init__" and len(_SENTENCE.findall(prose)) < _SENTENCES_MIN:
        yield Fault(source.path, 1, "prose", "a package says what lives here and what never does: two sentences")


def one_noun_one_file_name(sources: Sequence[Source]) -> Iterator[Fault]:
    """Whatever `apply` knows how to apply is a file of facts of the same name in `events`."""
    names = {PurePosixPath(source.path) for source in sources}
    events = {path.stem for path in names if path.parent == PurePosixPath(STATE, "events")}
    for path in sorted(path for path in names if path.parent == PurePosixPath(STATE, "apply")):
        if path.stem not in events and path.stem not in _NOT_NOUNS:
            yield Fault(str(path), 1, "noun", f"no {STATE}/events/{path.name}: a noun keeps one name in every room")
