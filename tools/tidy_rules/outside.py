"""The tree names no machine that it was written on, and no refusal code that no table explains.

Rules 26 and 27 of the house style, and the promise that a clone works anywhere.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from tools.tidy_rules.source import Fault, Source

STATUS: Final = "src/stoker/wire/status.py"
_OURSELVES: Final = ("tools/tidy_rules/outside.py", "tests/tidy/test_outside.py", "LICENSE")
_PEOPLE: Final = "ada|agent|alan|alice|anna|bob|grace|lin|you|user"
_MACHINE: Final = re.compile(
    rf"(?<![\w./-])(?:/w(?:ork)/(?:main|shared|\.)|/root/(?!\.?\s)|/Users/\w|/home/(?!(?:{_PEOPLE})\b)\w)"
)
_REGISTRY: Final = re.compile(
    # Split, so that this file passes its own rule in the eyes of any grep.
    r"py" r"pi[.]org|python" r"hosted[.]org|registry[.]npm" r"js|anaconda[.]org|--(?:extra-)?index-url|--find-links",
    re.IGNORECASE,
)
_REFUSERS: Final = ("refuse", "refusal_error", "Refusal", "refuse_unknown", "name_fault")


def no_machine_is_named(source: Source) -> Iterator[Fault]:
    if source.within(*_OURSELVES):
        return
    for number, line in enumerate(source.lines, 1):
        found = _MACHINE.search(line)
        if found:
            says = f"{found[0]}...: a path of one machine; use a relative or temporary one"
            yield Fault(source.path, number, "machine", says)
        if _REGISTRY.search(line):
            says = "a package registry's address: leave that to whoever installs"
            yield Fault(source.path, number, "registry", says)


def every_code_is_in_the_table(sources: Sequence[Source]) -> Iterator[Fault]:
    """Otherwise a face would have to guess its HTTP status and exit status."""
    table = next((source for source in sources if source.path == STATUS), None)
    known = frozenset(_codes_of_table(table.tree)) if table else frozenset[str]()
    for source in sources:
        if not source.is_python or not source.within("src"):
            continue
        for line, code in refused_codes(source.nodes):
            if code not in known:
                yield Fault(source.path, line, "code", f"'{code}' has no row in {STATUS}: add one")


def refused_codes(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """(line, code) for every refusal whose code is written out."""
    for node in nodes:
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        given = [keyword.value for keyword in node.keywords if keyword.arg == "code"] or node.args[:1]
        if name in _REFUSERS and given and isinstance(given[0], ast.Constant) and isinstance(given[0].value, str):
            yield node.lineno, given[0].value


def _codes_of_table(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") == "STATUSES":
            assert isinstance(node.value, ast.Dict)
            yield from (str(key.value) for key in node.value.keys if isinstance(key, ast.Constant))
