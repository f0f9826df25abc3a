"""A silenced check says which one it is and why, and an open end has an issue.

Rules 29 and 45 of the house style.
"""

import ast
import re
from collections.abc import Iterator
from typing import Final

from tools.tidy_rules.source import Fault, Source

_IGNORE: Final = re.compile(r"#\s*type:\s*ignore(?P<rest>.*)")
_NOQA: Final = re.compile(r"#\s*(?P<file>ruff:\s*)?noqa(?P<rest>.*)", re.IGNORECASE)
_NAMED: Final = re.compile(r"^\[[a-z-]+(?:,\s*[a-z-]+)*\]\s+#\s*\S+")
_CODED: Final = re.compile(r"^:\s*[A-Z]+\d+(?:,\s*[A-Z]+\d+)*\s+#\s*\S+")
_OPEN_END: Final = re.compile(r"\b(?:TODO|FIXME|XXX|HACK)\b(?!\s*\(#\d+\))")

_MAY_CATCH: Final = re.compile(r"\bexcept\s*:|\b(?:Base)?Exception\b")
"""What a text has that catches everything; and `_SILENCES` what silences a check: most files have neither."""
_SILENCES: Final = re.compile(r"type:\s*ignore|noqa", re.IGNORECASE)

SUPERVISORS: Final[dict[str, str]] = {
    "src/stoker/control/loop.py::Loop._contained": "one bad pass is counted and told; the next one may be good",
    "src/stoker/control/notifier.py::Notifier._send_next": "one broken notification is counted and told; jobs go on",
    "src/stoker/brain/cycle.py::settle": "whatever one action breaks is blamed on its shape; the others are settled",
    "src/stoker/brain/engine/decide.py::decide": "whatever breaks is blamed on the shape that was being decided on",
    "src/stoker/brain/engine/queue_order.py::QueueOrder.heads": "whatever one bucket breaks is blamed on its shape",
    "src/stoker/api/rpc/jobs.py::JobService._answered": "one broken call is counted and told; the library would tell "
    "its caller the exception's words",
}
"""`PATH::FUNCTION` -> why this function may catch everything."""


def silenced_checks_say_why(source: Source) -> Iterator[Fault]:
    if not source.is_python or not _SILENCES.search(source.text):
        return
    for line, comment in source.comments:
        ignore, noqa = _IGNORE.search(comment), _NOQA.search(comment)
        if ignore and not _NAMED.match(ignore["rest"]):
            yield Fault(source.path, line, "silence", "write `# type: ignore[code]  # why`")
        if noqa and (noqa["file"] or not _CODED.match(noqa["rest"])):
            yield Fault(source.path, line, "silence", "write `# noqa: CODE  # why`, for one line at a time")


def open_ends_have_an_issue(source: Source) -> Iterator[Fault]:
    if not source.is_python or not _OPEN_END.search(source.text):
        return
    for line, comment in source.comments:
        if _OPEN_END.search(comment):
            yield Fault(source.path, line, "open-end", "an open end without an issue is forgotten: write TODO(#12)")


def only_supervisors_catch_everything(source: Source) -> Iterator[Fault]:
    """Foreign exceptions stop at the adapter, by name; catching everything hides our own bugs.

    Cleaning up and raising again catches nothing.
    """
    if not source.is_python or not source.within("src", "tools", "benchmarks"):
        return
    for name, node in _broad_catches(source):
        if f"{source.path}::{name}" not in SUPERVISORS:
            says = f"{name or 'the module'} catches everything: name the exceptions, or list it in SUPERVISORS with why"
            yield Fault(source.path, node.lineno, "except", says)


def groups_are_raised_by_except_alone(source: Source) -> Iterator[Fault]:
    """Python 3.11.2, which Debian 12 has, makes a group of whatever is raised under `except*`."""
    if not source.is_python or "except*" not in source.text:
        return
    for node in source.nodes:
        if isinstance(node, ast.TryStar):
            for each in [
                each for handler in node.handlers for each in ast.walk(handler) if isinstance(each, ast.Raise)
            ]:
                says = (
                    "what is raised under `except*` is a group in older Pythons: `except ExceptionGroup`, and split it"
                )
                yield Fault(source.path, each.lineno, "raise", says)


def _broad_catches(source: Source) -> Iterator[tuple[str, ast.ExceptHandler | ast.Call]]:
    if not _MAY_CATCH.search(source.text):
        return
    owners = {id(node): name for name, function in source.functions() for node in ast.walk(function)}
    for node in source.nodes:
        match node:
            case ast.ExceptHandler() if _is_broad(node.type) and not _raises_again(node):
                yield owners.get(id(node), ""), node
            case ast.Call() if _suppresses(node) and any(map(_is_broad, node.args)):
                yield owners.get(id(node), ""), node


def _is_broad(kind: ast.expr | None) -> bool:
    if isinstance(kind, ast.Tuple):
        return any(map(_is_broad, kind.elts))
    return kind is None or (isinstance(kind, ast.Name) and kind.id in ("Exception", "BaseException"))


def _raises_again(handler: ast.ExceptHandler) -> bool:
    last = handler.body[-1]
    return isinstance(last, ast.Raise) and last.exc is None


def _suppresses(call: ast.Call) -> bool:
    return getattr(call.func, "id", getattr(call.func, "attr", "")) == "suppress"
