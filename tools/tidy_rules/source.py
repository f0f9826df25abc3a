"""The files that a rule reads and the faults that it answers with."""

import ast
import io
import tokenize
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import PurePosixPath
from typing import Final, NamedTuple

Function = ast.FunctionDef | ast.AsyncFunctionDef

GENERATED: Final = "src/stoker/wire/gen"
_IMPORTERS: Final = ("import_module", "__import__")


class Fault(NamedTuple):
    """One offence against a rule. `says` names what was found and what to write instead."""

    path: str
    line: int
    rule: str
    says: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.says}"


class Import(NamedTuple):
    """One imported name: `from MODULE import NAME`; `name` is empty for `import MODULE`."""

    line: int
    module: str
    name: str = ""

    @property
    def library(self) -> str:
        return self.module.partition(".")[0]


class Source:
    """One file of the tree. `path` is relative to the root, with forward slashes."""

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.text = text

    def within(self, *places: str) -> bool:
        """True for one of these files and for everything in one of these folders."""
        return any(self.path == place or self.path.startswith(place.rstrip("/") + "/") for place in places)

    @property
    def stem(self) -> str:
        return PurePosixPath(self.path).stem

    @property
    def is_python(self) -> bool:
        return self.path.endswith(".py") and not self.within(GENERATED)

    @cached_property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @cached_property
    def tree(self) -> ast.Module:
        """Raises: SyntaxError."""
        return ast.parse(self.text, self.path)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """Every node of the tree, outermost first, without those that only say whether a name is read or written.

        Rules walk this list: `ast.walk` anew for each of them is nine tenths of what a check of the tree takes.
        """
        found: list[ast.AST] = [self.tree]
        for node in found:
            for field in node._fields:
                value = getattr(node, field, None)
                if isinstance(value, list):
                    found += [child for child in value if isinstance(child, ast.AST)]
                elif isinstance(value, ast.AST) and field != "ctx":
                    found.append(value)
        return found

    @property
    def module(self) -> str:
        """The dotted name that the file is imported by, such as `stoker.brain.cycle`; a package's is its folder's."""
        parts = PurePosixPath(self.path.removeprefix("src/")).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @cached_property
    def imports(self) -> list[Import]:
        """Every import of a Python file, wherever it stands; names relative to its package are made absolute."""
        return list(_imports(self))

    @cached_property
    def comments(self) -> list[tuple[int, str]]:
        """(line, comment) for every comment of a Python file."""
        tokens = tokenize.generate_tokens(io.StringIO(self.text).readline)
        return [(token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT]

    def functions(self) -> Iterator[tuple[str, Function]]:
        """Every function with its dotted name inside the file, outermost first."""
        yield from self._named_functions

    @cached_property
    def _named_functions(self) -> list[tuple[str, Function]]:
        return list(_functions(self.tree, ""))


def _imports(source: Source) -> Iterator[Import]:
    for node in source.nodes:
        match node:
            case ast.Import(names=names):
                yield from (Import(node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(names=names):
                module = _absolute(source, node)
                yield from (Import(node.lineno, module, alias.name) for alias in names)
            case ast.Call(args=[ast.Constant(value=str(module)), *_]) if _imports_by_name(node.func):
                yield Import(node.lineno, module)


def _absolute(source: Source, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = source.module.split(".") if source.stem == "__init__" else source.module.split(".")[:-1]
    above = package[: len(package) - node.level + 1]
    return ".".join((*above, node.module) if node.module else above)


def _imports_by_name(called: ast.expr) -> bool:
    return getattr(called, "id", getattr(called, "attr", "")) in _IMPORTERS


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, Function]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            yield prefix + child.name, child
            yield from _functions(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.")
        elif not isinstance(child, ast.expr):  # no function stands in an expression
            yield from _functions(child, prefix)


FileRule = Callable[[Source], Iterator[Fault]]
TreeRule = Callable[[Sequence[Source]], Iterator[Fault]]


class Row(NamedTuple):
    """One row of a list under `tools/`: its line number, its first word and what follows it."""

    line: int
    key: str
    rest: str


def rows_of(sources: Sequence[Source], path: str) -> list[Row]:
    """The rows of the list at `path`, in order, without blank lines and comments; none where there is no such file."""
    text = next((source.text for source in sources if source.path == path), "")
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1)]
    parts = ((number, line.partition(" ")) for number, line in lines if line and not line.startswith("#"))
    return [Row(number, key, rest.strip()) for number, (key, _, rest) in parts]
