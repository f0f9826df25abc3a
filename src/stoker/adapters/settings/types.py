"""Conversion of one setting, as written in a file, a variable or a flag, to the type that its key wants.

The three sources are converted alike, so that `8080`, `"8080"` and `--set http.port=8080` mean one thing, and YAML's
own guesses (`no` is false, `010` is eight, `1:30` is ninety) never reach a setting.
"""

import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args, get_origin

import msgspec

from stoker.adapters.settings.yaml_lines import Entries, Parts, Text, YamlNode

_INTEGER: Final = re.compile(r"[+-]?(0|[1-9][0-9]{0,18})")
_TRUTH: Final = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}
_SHOWN_MAX: Final = 80
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


class Unreadable(Exception):
    """A value that can't be converted. The message shows the value and says what is wanted."""


def from_node(wanted: Any, node: YamlNode) -> object:  # noqa: ANN401  # a type form
    """Return the value of type `wanted` that a node of a YAML file holds. Raises: Unreadable."""
    if isinstance(node, Text):
        return _scalar(wanted, None if node.null else node.text)
    if isinstance(node, Parts):
        return _sequence(wanted, [_written(part) for part in node.parts])
    if (form := group_form(wanted)) is not None:
        return {name: _group(form, name, value) for name, value in _once(node.entries)}
    return _mapping(wanted, [(key.text, _written(value)) for key, value in node.entries])


def from_text(wanted: Any, given: object) -> object:  # noqa: ANN401  # a type form
    """Return the value of type `wanted` that a variable (text) or a flag (text, or already a value) holds.

    In text a list is `a,b` and a dictionary `k=v,k2=v2`. Raises: Unreadable.
    """
    if group_form(wanted) is not None:
        raise Unreadable("groups of keys are given in a file, not in a variable or a flag")
    if isinstance(given, Mapping):
        return _mapping(wanted, [(str(key), _shown(value)) for key, value in given.items()])
    if isinstance(given, Sequence) and not isinstance(given, str):
        return _sequence(wanted, [_shown(part) for part in given])
    text = _shown(given)
    if get_origin(wanted) not in (list, tuple, dict):
        return _scalar(wanted, text)
    if text.startswith("[") and text.endswith("]"):
        raise Unreadable(f"{_quoted(text)} is a list as YAML has it; in a variable or a flag it is a,b")
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if get_origin(wanted) is not dict:
        return _sequence(wanted, parts)
    pairs = [part.partition("=") for part in parts]
    if any(not equals for _, equals, _ in pairs):
        raise Unreadable(f"{_quoted(text)} isn't a list of name=value pairs")
    return _mapping(wanted, [(key.strip(), value.strip()) for key, _, value in pairs])


def group_form(wanted: Any) -> type[msgspec.Struct] | None:  # noqa: ANN401  # a type form
    """Return the Struct of `dict[str, Struct]`, groups of keys by names of their own; None for other types."""
    form = get_args(wanted)[1] if get_origin(wanted) is dict else None
    return form if isinstance(form, type) and issubclass(form, msgspec.Struct) else None


def _group(form: type[msgspec.Struct], name: str, node: YamlNode) -> msgspec.Struct:
    """Return one group of keys. Raises: Unreadable, which names the key."""
    if not isinstance(node, Entries):
        raise Unreadable(f"{_quoted(name)} on line {node.line} is a group of keys, not a value or a list")
    known, values = {field.name: field for field in msgspec.structs.fields(form)}, dict[str, object]()
    for key, value in _once(node.entries):
        if key not in known:
            near = get_close_matches(key, known, n=1)
            raise Unreadable(
                f"{name}.{key[:_SHOWN_MAX]} isn't a setting; "
                + (f"nearest: {near[0]}" if near else f"there are {', '.join(known)}")
            )
        try:
            values[key] = from_node(known[key].type, value)
        except Unreadable as fault:
            raise Unreadable(f"{name}.{key}: {fault}") from fault
    if missing := [field.name for field in known.values() if field.required and field.name not in values]:
        raise Unreadable(f"{name}.{missing[0]} has no default: set it")
    return form(**values)


def _once(entries: Sequence[tuple[Text, YamlNode]]) -> Iterator[tuple[str, YamlNode]]:
    seen = set[str]()
    for key, value in entries:
        if key.text in seen:
            raise Unreadable(f"{_quoted(key.text)} is given twice, again on line {key.line}")
        seen.add(key.text)
        yield key.text, value


def _written(node: YamlNode) -> str | None:
    if isinstance(node, Text):
        return None if node.null else node.text
    raise Unreadable(f"line {node.line} holds a {'list' if isinstance(node, Parts) else 'group of keys'}, not a value")


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _sequence(wanted: Any, parts: Sequence[str | None]) -> object:  # noqa: ANN401  # a type form
    if get_origin(wanted) not in (list, tuple):
        raise Unreadable(f"a list isn't {_described(wanted)}")
    return msgspec.convert([_scalar(get_args(wanted)[0], part) for part in parts], wanted)


def _mapping(wanted: Any, pairs: Sequence[tuple[str, str | None]]) -> object:  # noqa: ANN401  # a type form
    if get_origin(wanted) is not dict:
        raise Unreadable(f"a group of keys isn't {_described(wanted)}")
    values: dict[str, object] = {}
    for key, value in pairs:
        if key in values:
            raise Unreadable(f"{_quoted(key)} is given twice")
        values[key] = _scalar(get_args(wanted)[1], value)
    return values


def _scalar(wanted: Any, text: str | None) -> object:  # noqa: ANN401  # a type form
    forms = _alternatives(wanted)
    if not text:
        if type(None) in forms:
            return None
        if text is None or str not in forms:
            raise Unreadable(f"there is no value; wanted is {_described(wanted)}")
    for meaning in _meanings(text):
        try:
            return msgspec.convert(meaning, wanted, dec_hook=lambda form, value: form(value))
        except msgspec.ValidationError:
            continue
    raise Unreadable(f"{_quoted(text)} isn't {_described(wanted)}")


def _meanings(text: str) -> Iterator[object]:
    """The values that a text may stand for; the wanted type takes the first that is of it.

    msgspec's own `strict=False` would take `1e3` for a whole number, `nan` for a number and `null` for none.
    """
    yield text
    if _INTEGER.fullmatch(text):
        yield int(text)
    try:
        number = float(text) if text.isascii() and "_" not in text else None
    except ValueError:
        number = None
    if number is not None and isfinite(number):
        yield number
    if text.lower() in _TRUTH:
        yield _TRUTH[text.lower()]


def _alternatives(wanted: Any) -> tuple[Any, ...]:  # noqa: ANN401  # a type form
    return get_args(wanted) if get_origin(wanted) in (types.UnionType, typing.Union) else (wanted,)


def _described(wanted: Any) -> str:  # noqa: ANN401  # a type form
    names: list[str] = []
    for form in _alternatives(wanted):
        if get_origin(form) is Literal:
            names.extend(map(str, get_args(form)))
        elif get_origin(form) is Annotated:
            names.append(_described(get_args(form)[0]))
        elif form is not type(None):
            names.append(_NAMES.get(get_origin(form) or form, str(form)))
    return " or ".join(names)


def _quoted(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "...")
