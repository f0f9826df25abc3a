"""The reference page of the settings of both daemons, with each default and its reason.

Drawn from the settings types; the sentence under each field in the source is the sentence in the table.
"""

import ast
import inspect
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin

import msgspec
from msgspec.structs import FieldInfo

from stoker.adapters.settings.loader import default_of, is_section, later_keys, without_range
from stoker.adapters.settings.types import group_form
from stoker.agent.settings import AgentSettings
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.units import Range
from stoker.live.settings.control import ControlSettings
from stoker.live.settings.policy import KEYS, PolicySettings
from tools.reference.markdown import code, page, table

HEAD = ("key", "type", "default", "meaning")


def settings() -> str:
    """The page of settings."""
    return page(
        "Settings",
        "One YAML file for each daemon. The environment wins over the file (`http.port` is `STOKER__HTTP__PORT`), a "
        "flag (`--set http.port=18080`) wins over both. An unknown key is refused with the nearest known one, and "
        "every fault is told at once, each with the line or the variable that it came from. `stoker doctor --settings "
        "-c FILE` prints what holds and where each value came from. There are no variables inside a file: `${HOME}` "
        "is that text.",
        *_daemon(ControlSettings, "control.yaml"),
        *_daemon(AgentSettings, "agent.yaml"),
    )


def undocumented() -> list[str]:
    """Keys without a sentence."""
    return [row[0] for cls in (ControlSettings, AgentSettings) for row in _rows(cls, "") if not row[3]]


def _daemon(cls: type[msgspec.Struct], file: str) -> Iterator[str]:
    yield f"## `{getattr(cls, 'program')} -c {file}`"  # noqa: B009  # a type form: the checker knows no attribute
    yield table(HEAD, _rows(cls, ""))
    if later := later_keys(cls):
        yield "These are refused, each with what there is instead:"
        yield table(("key", "instead"), ((code(key), words) for key, words in sorted(later.items())))


def _rows(cls: type[msgspec.Struct], prefix: str) -> Iterator[tuple[str, str, str, str]]:
    sentences = _sentences(cls)
    for field in msgspec.structs.fields(cls):
        name = prefix + field.name
        if is_section(field.type):
            yield from _rows(field.type, f"{name}.")
        else:
            kind, _ = without_range(field.type)
            yield code(name), _kind(kind), code(_default(field)), sentences.get(field.name, "")
            if group := group_form(kind):
                yield from _rows(group, f"{name}.NAME.")


def _sentences(cls: type[msgspec.Struct]) -> dict[str, str]:
    """Field name -> the docstring that stands under it; a key of the policy has its range behind that."""
    if cls is not PolicySettings:
        return written(cls)
    told = written(Policy)
    ranges = {field.name: without_range(field.type)[1] for field in msgspec.structs.fields(cls)}
    return {key: f"{told[name]} {_range(ranges[key])}" for name, key in KEYS.items() if name in told}


def _range(limits: Range | None) -> str:
    assert limits is not None, "a key of the policy without a range"
    return f"{limits.least} to {limits.most}{limits.unit}."


def written(cls: type) -> dict[str, str]:
    """Field name -> the docstring that stands under it in the source."""
    module = inspect.getmodule(cls)
    assert module is not None, f"{cls!r} has no module"
    tree = ast.parse(inspect.getsource(module))
    body = next(node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == cls.__name__)
    found: dict[str, str] = {}
    for node, below in pairwise(body):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and isinstance(below, ast.Expr):
            assert isinstance(below.value, ast.Constant)
            found[node.target.id] = str(below.value.value)
    return found


_KINDS: Final = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "true or false",
    Path: "path",
    tuple: "list",
    list: "list",
    dict: "group of keys",
}


def _kind(kind: object) -> str:
    """In the words of a fault, not of Python; of a choice all that can be chosen."""
    if get_origin(kind) is Literal:
        return ", ".join(map(code, get_args(kind)))
    if get_origin(kind) in (list, tuple):
        inner = get_args(kind)[0]
        return f"list of {_kind(inner)}" if get_origin(inner) is Literal else "list"
    if get_origin(kind) in (UnionType, Union):
        return " or ".join(_kind(each) if each is not type(None) else "nothing" for each in get_args(kind))
    plain: Any = get_origin(kind) or kind
    return _KINDS.get(plain, str(kind))


def _default(field: FieldInfo) -> str:
    value = default_of(field)
    if value is msgspec.NODEFAULT:
        return "(must be given)"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(str, value)) + "]"
    if value is None:
        return "null"
    return '""' if value == "" else str(value).lower() if isinstance(value, bool) else str(value)
