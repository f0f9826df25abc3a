"""A class name stands for one thing in the whole of `src`.

Rule 33a of the house style. Private names count, and underscores before a name don't: a reader who searches for one
must not find two.
"""

import ast
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from tools.tidy_rules.source import Fault, Source


class Place(NamedTuple):
    """Where a class is defined; places sort by name, then by path."""

    name: str
    path: str
    line: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


def defined_twice(sources: Sequence[Source]) -> dict[str, list[Place]]:
    """Class name -> its places, at least two and one for each module, for names that several modules define."""
    places = sorted(
        Place(node.name.lstrip("_"), source.path, node.lineno)
        for source in sources
        if source.is_python
        for node in source.nodes
        if isinstance(node, ast.ClassDef)
    )
    found: dict[str, list[Place]] = {}
    for (name, _), group in groupby(places, key=lambda place: (place.name, place.path)):
        found.setdefault(name, []).append(next(group))
    return {name: group for name, group in found.items() if len(group) > 1}


def one_class_name_one_thing(sources: Sequence[Source]) -> Iterator[Fault]:
    """Each place after the first is a fault that names the first one."""
    for name, (first, *rest) in defined_twice([source for source in sources if source.within("src")]).items():
        for place in rest:
            says = f"class {name} is defined in {first} too: give each the name of what only it is"
            yield Fault(place.path, place.line, "class-name", says)
