"""What does a rule look at, and what does it answer with?"""

import ast
import io
import tokenize
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import PurePosixPath
from typing import NamedTuple

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Fault(NamedTuple):
    """One offence. `says` names what was found and what to write instead."""

    path: str
    line: int
    rule: str
    says: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.says}"


class Source:
    """One file of the tree. `path` is relative to the root, with forward slashes."""

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.text = text

    def within(self, *places: str) -> bool:
        """Is this one of these files, or in one of these folders?"""
        return any(self.path == place or self.path.startswith(place.rstrip("/") + "/") for place in places)

    @property
    def stem(self) -> str:
        return PurePosixPath(self.path).stem

    @property
    def is_python(self) -> bool:
        return self.path.endswith(".py") and not self.within("src/stoker/wire/gen")

    @cached_property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @cached_property
    def tree(self) -> ast.Module:
        """Raises: SyntaxError."""
        return ast.parse(self.text, self.path)

    @cached_property
    def comments(self) -> list[tuple[int, str]]:
        """(line, comment) for every comment of a Python file."""
        tokens = tokenize.generate_tokens(io.StringIO(self.text).readline)
        return [(token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT]

    def functions(self) -> Iterator[tuple[str, Function]]:
        """Every function with its dotted name inside the file, outermost first."""
        yield from _functions(self.tree, "")


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, Function]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            yield prefix + child.name, child
            yield from _functions(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.")
        else:
            yield from _functions(child, prefix)


FileRule = Callable[[Source], Iterator[Fault]]
TreeRule = Callable[[Sequence[Source]], Iterator[Fault]]
