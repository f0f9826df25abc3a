"""Test names are sentences, and no test outside `tests/real` and `tests/device` waits for real time.

Rules 38 and 43 of the house style.
"""

import ast
from collections.abc import Iterator
from typing import Final

from tools.tidy_rules.source import Fault, Source

_WORDS_MIN: Final = 3
_REAL_TIME: Final = ("tests/real", "tests/device", "benchmarks")


def test_names_are_sentences(source: Source) -> Iterator[Fault]:
    if not source.is_python or not source.within("tests") or not source.stem.startswith("test_"):
        return
    for name, function in source.functions():
        title = name.rpartition(".")[2]
        if title.startswith("test_") and len(title.split("_")) - 1 < _WORDS_MIN:
            says = f"{title} names a thing, not a rule: write test_equal_priority_is_never_evicted"
            yield Fault(source.path, function.lineno, "test-name", says)


def tests_never_sleep(source: Source) -> Iterator[Fault]:
    if not source.is_python or not source.within("tests") or source.within(*_REAL_TIME):
        return
    for node in source.nodes:
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != "sleep":
            continue
        module = getattr(node.func.value, "id", "")
        gives_way = (module == "asyncio" and _on_virtual_time(source)) or (
            bool(node.args) and getattr(node.args[0], "value", None) == 0
        )
        if module in ("time", "asyncio") and not gives_way:
            yield Fault(source.path, node.lineno, "sleep", f"{module}.sleep: move the virtual clock, or await an event")


def _on_virtual_time(source: Source) -> bool:
    """Does `asyncio.sleep` move a virtual clock here? The rig does, and whoever names it."""
    # A port's suite waits on whichever clock it is run: the real one only from tests/real.
    return source.within("tests/rig", "tests/contracts") or "virtual_" in source.text or "virtual time" in source.text
