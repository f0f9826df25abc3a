"""How is one setting read, given the type that is wanted?

The same reading serves text from a file, a variable and a flag, so that `8080`, `"8080"` and `--port 8080` mean one
thing, and YAML's own guesses (`no` is false, `010` is eight, `1:30` is ninety) never reach a setting.
"""

import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from math import isfinite
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

from stoker.adapters.settings.yaml_lines import Parts, Text, YamlNode

_INTEGER: Final = re.compile(r"[+-]?(0|[1-9][0-9]{0,18})")
_YES: Final = frozenset({"true", "yes", "on", "1"})
_NO: Final = frozenset({"false", "no", "off", "0"})
_SHOWN_MAX: Final = 80


class Unreadable(Exception):
    """The value can't be what is wanted. The message shows the value and says what is."""


def from_node(wanted: Any, node: YamlNode) -> object:  # noqa: ANN401  # a type form
    """A value of type `wanted` from a node of a YAML file."""
    if isinstance(node, Text):
        return _scalar(wanted, None if node.null else node.text)
    if isinstance(node, Parts):
        return _sequence(wanted, [_written(part) for part in node.parts])
    return _mapping(wanted, [(key.text, _written(value)) for key, value in node.entries])


def from_text(wanted: Any, given: object) -> object:  # noqa: ANN401  # a type form
    """A value of type `wanted` from a variable (text) or a flag (text, or already a value)."""
    if isinstance(given, Mapping):
        return _mapping(wanted, [(str(key), _shown(value)) for key, value in given.items()])
    if isinstance(given, Sequence) and not isinstance(given, str | bytes):
        return _sequence(wanted, [_shown(part) for part in given])
    text = _shown(given)
    inner = _container(wanted)
    if inner is None:
        return _scalar(wanted, text)
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if get_origin(inner) is not dict:
        return _sequence(wanted, parts)
    pairs = [part.partition("=") for part in parts]
    if any(not mark for _, mark, _ in pairs):
        raise Unreadable(f"{_quoted(text)} isn't a list of name=value pairs")
    return _mapping(wanted, [(key.strip(), value.strip()) for key, _, value in pairs])


def _written(node: YamlNode) -> str | None:
    if isinstance(node, Text):
        return None if node.null else node.text
    raise Unreadable(f"line {node.line} holds a {'list' if isinstance(node, Parts) else 'group of keys'}, not a value")


def _shown(value: object) -> str:
    if isinstance(value, Enum):
        return str(value.value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _container(wanted: Any) -> Any:  # noqa: ANN401  # a type form
    """The list, tuple or dict form that `wanted` is or offers, or None."""
    for form in _alternatives(wanted):
        if get_origin(form) in (list, tuple, dict):
            return form
    return None


def _sequence(wanted: Any, parts: Sequence[str | None]) -> object:  # noqa: ANN401  # a type form
    form = _container(wanted)
    if form is None or get_origin(form) is dict:
        raise Unreadable(f"a list isn't {_described(wanted)}")
    values = [_scalar(get_args(form)[0], part) for part in parts]
    return tuple(values) if get_origin(form) is tuple else values


def _mapping(wanted: Any, pairs: Sequence[tuple[str, str | None]]) -> object:  # noqa: ANN401  # a type form
    form = _container(wanted)
    if form is None or get_origin(form) is not dict:
        raise Unreadable(f"a group of keys isn't {_described(wanted)}")
    values: dict[str, object] = {}
    for key, value in pairs:
        if key in values:
            raise Unreadable(f"{_quoted(key)} is given twice")
        values[key] = _scalar(get_args(form)[1], value)
    return values


def _scalar(wanted: Any, text: str | None) -> object:  # noqa: ANN401  # a type form
    forms = _alternatives(wanted)
    if text is None or text == "":
        if type(None) in forms:
            return None
        if text is None or str not in forms:
            raise Unreadable(f"there is no value; wanted is {_described(wanted)}")
    for form in forms:
        read = _SCALARS.get(form) or _choice(form)
        value = read(text) if read is not None else None
        if value is not None:
            return value
    raise Unreadable(f"{_quoted(text)} isn't {_described(wanted)}")


def _alternatives(wanted: Any) -> tuple[Any, ...]:  # noqa: ANN401  # a type form
    """The members of a union, the exact words first: `auto` of `Literal["auto"] | str` is the word, not any text."""
    if get_origin(wanted) in (types.UnionType, typing.Union):
        return tuple(sorted(get_args(wanted), key=_is_loose))
    return (wanted,)


def _is_loose(form: Any) -> bool:  # noqa: ANN401  # a type form
    origin: object = get_origin(form)
    return origin is not Literal


def _integer(text: str) -> int | None:
    return int(text) if _INTEGER.fullmatch(text) else None


def _number(text: str) -> float | None:
    try:
        number = float(text) if text.isascii() and "_" not in text else None
    except ValueError:
        return None
    return number if number is not None and isfinite(number) else None


def _truth(text: str) -> bool | None:
    word = text.lower()
    return True if word in _YES else False if word in _NO else None


_SCALARS: Final[Mapping[Any, Callable[[str], object]]] = {
    str: str,
    int: _integer,
    float: _number,
    bool: _truth,
    Path: Path,
}


def _choice(form: Any) -> Callable[[str], object] | None:  # noqa: ANN401  # a type form
    """A reader for a Literal or an Enum: the member whose text it is."""
    members: Sequence[object]
    if get_origin(form) is Literal:
        members = get_args(form)
        return {_shown(member): member for member in members}.get
    if isinstance(form, type) and issubclass(form, Enum):
        members = list(form)
        return {_shown(member): member for member in members}.get
    return None


_NAMES: Final[Mapping[Any, str]] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    Path: "a path",
    list: "a list",
    tuple: "a list",
    dict: "a group of keys",
}


def _described(wanted: Any) -> str:  # noqa: ANN401  # a type form
    names: list[str] = []
    for form in _alternatives(wanted):
        if form is type(None):
            continue
        if get_origin(form) is Literal:
            names.extend(_shown(member) for member in get_args(form))
        elif isinstance(form, type) and issubclass(form, Enum):
            names.extend(_shown(member) for member in form)
        else:
            names.append(_NAMES.get(get_origin(form) or form, str(form)))
    return " or ".join(names)


def _quoted(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "...")
