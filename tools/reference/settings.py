"""Which settings do the two daemons read, with which defaults and why those?

Drawn from the dataclasses; the sentence under each field in the source is the sentence in the table.
"""

import ast
import inspect
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from itertools import pairwise
from types import ModuleType
from typing import Any, get_type_hints

import stoker.agent.settings
import stoker.live.settings
from tools.reference.markdown import code, page, table

HEAD = ("key", "type", "default", "meaning")


def settings() -> str:
    """The page of settings."""
    return page(
        "Settings",
        "One YAML file for each daemon. The environment wins over the file (`http.port` is `STOKER__HTTP__PORT`), a "
        "flag wins over both. An unknown key is refused with the nearest known one, and every fault is told at once.",
        "## `stoker control -c control.yaml`",
        table(HEAD, _rows(stoker.live.settings, stoker.live.settings.ControlSettings, "")),
        "## `stoker agent -c agent.yaml`",
        table(HEAD, _rows(stoker.agent.settings, stoker.agent.settings.AgentSettings, "")),
    )


def undocumented() -> list[str]:
    """Keys without a sentence."""
    pairs = (
        (stoker.live.settings, stoker.live.settings.ControlSettings),
        (stoker.agent.settings, stoker.agent.settings.AgentSettings),
    )
    return [row[0] for module, cls in pairs for row in _rows(module, cls, "") if not row[3]]


def _rows(module: ModuleType, cls: type, prefix: str) -> Iterator[tuple[str, str, str, str]]:
    assert is_dataclass(cls), f"{cls!r} isn't a settings type"
    hints, sentences = get_type_hints(cls), _sentences(module, cls.__name__)
    for field in fields(cls):
        name, kind = prefix + field.name, hints[field.name]
        if is_dataclass(kind):
            assert isinstance(kind, type)
            yield from _rows(module, kind, f"{name}.")
        else:
            yield code(name), code(_kind(kind)), code(_default(field)), sentences.get(field.name, "")


def _sentences(module: ModuleType, cls: str) -> dict[str, str]:
    """Field name -> the docstring that stands under it."""
    tree = ast.parse(inspect.getsource(module))
    body = next(node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == cls)
    found: dict[str, str] = {}
    for node, below in pairwise(body):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and isinstance(below, ast.Expr):
            assert isinstance(below.value, ast.Constant)
            found[node.target.id] = str(below.value.value)
    return found


def _kind(kind: Any) -> str:  # noqa: ANN401  # a type form
    return str(getattr(kind, "__name__", kind) if isinstance(kind, type) and not _generic(kind) else kind).replace(
        "typing.", ""
    )


def _generic(kind: Any) -> bool:  # noqa: ANN401  # a type form
    return bool(getattr(kind, "__args__", ()))


def _default(field: Field[Any]) -> str:
    value = field.default_factory() if field.default_factory is not MISSING else field.default
    if value is MISSING:
        return "(must be given)"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(str, value)) + "]"
    return '""' if value == "" else str(value).lower() if isinstance(value, bool) else str(value)
