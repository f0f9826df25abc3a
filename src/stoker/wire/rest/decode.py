"""Decoding of text from outside into shapes, with one clear error when it doesn't fit.

msgspec checks the types; here its words become refusals that name the field, what was got and what is wanted.

Rules: D1  an unknown field or parameter is refused by name, with the nearest known one
       D2  a value of a wrong type or out of range is refused with its path
       D3  whatever the bytes are, the answer is a shape or a StokerError
       D4  a key that an object has twice is refused: readers differ about which of the two counts
       D5  one job, or anything else that isn't a list of jobs, has at most TEXTS_MAX keys and texts
"""

import json
import re
from collections.abc import Iterable
from difflib import get_close_matches
from enum import Enum
from typing import Annotated, Final, TypeVar, get_args

import msgspec

from stoker.brain.domain.errors import FactValue, StokerError, refusal_error

Value = TypeVar("Value")
Shape = TypeVar("Shape", bound=msgspec.Struct)

INTEGER_MAX: Final = 2**53 - 1
"""The largest integer that every JSON reader keeps exact."""
Count = Annotated[int, msgspec.Meta(ge=0, le=INTEGER_MAX)]
"""A whole number of things. What is absurd is the policy's to say."""
SignedInteger = Annotated[int, msgspec.Meta(ge=-INTEGER_MAX, le=INTEGER_MAX)]
"""A place in a row of things, counted from their end when it is negative."""
Limit = Annotated[int, msgspec.Meta(ge=1, le=INTEGER_MAX)]
"""How much of a list is wanted."""

_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`(?: - at `(.*)`)?", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`(?: - at `(.*)`)?", re.DOTALL)
_EXPECTED = re.compile(r"Expected `([^`]*)`(?: (.*?))??(?:, got `([^`]*)`)?(?: - at `(.*)`)?", re.DOTALL)
_ENUM = re.compile(r"Invalid enum value (.*?)(?: - at `(.*)`)?", re.DOTALL)
_ELSEWHERE = re.compile(r"(.*?)(?: - at `(.*)`)?", re.DOTALL)
_SHOWN_MAX: Final = 80
TEXTS_MAX: Final = 100_000
"""More than the environment of a job can hold; about 20 ms of reading. How long a text may be is said by its field."""


def decode_body(shape: type[Shape], data: bytes | msgspec.Raw, at: str = "") -> Shape:
    """Read a JSON object. `at` says where it lies in the whole body: `jobs[3]`.

    Raises: StokerError `bad_json`, `bad_field`, `unknown_field`, `missing_field` or `body_too_large`.
    """
    content = bytes(data)
    if len(content) > 2 * TEXTS_MAX and content.count(b'"') > 2 * TEXTS_MAX:
        raise _too_many_texts(at)
    found = _decoded(_decoder(shape), content, shape, at)
    try:
        _all_once.decode(content.decode())
    except _KeyTwice as fault:
        raise _given_twice(str(fault), at) from None
    return found


def decode_members(data: bytes) -> dict[str, msgspec.Raw]:
    """The members of a JSON object, not looked into, for a body whose shape depends on a key.

    Raises: StokerError `bad_json` or `bad_field`.
    """
    members = _decoded(_MEMBERS, data, msgspec.Struct, "")
    # Only one key at this level is known where it matters; beside its value there is room for its own quotes alone.
    if len(members) == 1:
        ((name, value),) = members.items()
        if data.replace(bytes(value), b"0", 1).count(b'"') > 2:
            raise _given_twice(name, "")
    return members


def decode_list(data: msgspec.Raw, at: str) -> list[msgspec.Raw]:
    """The elements of a JSON array, not looked into.

    Raises: StokerError `bad_field`.
    """
    return _decoded(_ELEMENTS, data, msgspec.Struct, at)


def _decoded(
    decoder: msgspec.json.Decoder[Value], data: bytes | msgspec.Raw, shape: type[msgspec.Struct], at: str
) -> Value:
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as fault:
        raise _invalid(str(fault), shape, at, "field") from fault
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        said = "it is nested too deeply" if isinstance(fault, RecursionError) else str(fault)[:200]
        hint = "send one JSON object in UTF-8, without a lone \\uD8xx"
        raise refusal_error("bad_json", f"the body can't be read as JSON: {said}", hint) from fault


class _KeyTwice(Exception):
    """An object has this key twice."""


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        raise _KeyTwice(next(key for key, _ in pairs if key in seen or seen.add(key)))  # type: ignore[func-returns-value]  # it returns None
    return found


_all_once: Final = json.JSONDecoder(object_pairs_hook=_once, parse_int=str, parse_float=str)


def _given_twice(name: str, at: str) -> StokerError:
    where = f" in `{at}`" if at else ""
    shown = name[:_SHOWN_MAX]
    return refusal_error(
        "bad_json", f"the body{where} has an object with the key `{shown}` twice", "give it once", key=shown
    )


def _too_many_texts(at: str) -> StokerError:
    message = f"{at or 'the body'} holds more than {TEXTS_MAX} keys and texts"
    return refusal_error("body_too_large", message, "hand large inputs over as files", texts_max=TEXTS_MAX)


def decode_query(shape: type[Shape], pairs: Iterable[tuple[str, str]]) -> Shape:
    """Read query parameters. One that is empty counts as not given, as in `?state=&limit=`.

    Raises: StokerError `bad_parameter` or `unknown_parameter`.
    """
    values: dict[str, str] = {}
    for name, value in pairs:
        if name in values:
            message = f"parameter `{name[:_SHOWN_MAX]}` is given twice"
            raise refusal_error("bad_parameter", message, "give it once", path=name[:_SHOWN_MAX])
        values[name] = value
    values = {name: value for name, value in values.items() if value}
    try:
        return msgspec.convert(values, shape, strict=False)
    except msgspec.ValidationError as fault:
        raise _invalid(str(fault), shape, "", "parameter") from fault


_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ELEMENTS = msgspec.json.Decoder(list[msgspec.Raw])
_DECODERS: dict[type[msgspec.Struct], msgspec.json.Decoder[msgspec.Struct]] = {}


def _decoder(shape: type[Shape]) -> msgspec.json.Decoder[Shape]:
    found = _DECODERS.get(shape)
    if found is None:
        found = _DECODERS[shape] = msgspec.json.Decoder(shape)
    return found  # type: ignore[return-value]  # keyed by its own type


def _invalid(said: str, shape: type[msgspec.Struct], at: str, kind: str) -> StokerError:
    if match := _UNKNOWN.fullmatch(said):
        return unknown_name(match[1], shape, _path(at, match[2]), kind)
    if match := _MISSING.fullmatch(said):
        path = _join(_path(at, match[2]), match[1])
        return refusal_error("missing_field", f"`{path}` is missing", f"give `{path}`", path=path)
    if match := _EXPECTED.fullmatch(said):
        wanted = " ".join(part for part in (match[1], match[2]) if part)
        return bad_value(_path(at, match[4]), wanted=wanted, got=match[3] or "a value out of range", kind=kind)
    if match := _ENUM.fullmatch(said):
        words = _words_of(shape, (match[2] or "$")[2:])
        if words:
            path, wanted = _path(at, match[2]), f"one of {', '.join(words)}"
            return bad_value(path, wanted=wanted, got=match[1][:_SHOWN_MAX], kind=kind)
    match = _ELSEWHERE.fullmatch(said)
    assert match is not None, "the pattern matches every text"
    path = _path(at, match[2])
    message = f"`{path}`: {match[1][:200]}"
    return refusal_error(f"bad_{kind}", message, f"correct `{path}` and send it again", path=path)


def _words_of(shape: type[msgspec.Struct], name: str) -> list[str]:
    """The words that a field of `shape` may have. Empty = it isn't a field of its own, or not of words."""
    found = [field.type for field in msgspec.structs.fields(shape) if field.encode_name == name]
    kinds = [each for one in found for each in (get_args(one) or (one,))]
    words = [word for each in kinds if isinstance(each, type) and issubclass(each, Enum) for word in each]
    # Of a Literal, which may say by an empty word that it was left out.
    return [str(word.value) for word in words] or [each for each in kinds if isinstance(each, str) and each]


def unknown_name(name: str, shape: type[msgspec.Struct], at: str, kind: str) -> StokerError:
    """The refusal of a field or parameter that `shape` doesn't have."""
    known = [field.encode_name for field in msgspec.structs.fields(shape)] if shape is not msgspec.Struct else []
    shown = name[:_SHOWN_MAX]
    near = get_close_matches(shown, known, n=1, cutoff=0.6)
    where = f" in `{at}`" if at else ""
    known_ones = f"known are: {', '.join(sorted(known))}" if known else f"no {kind} is taken here: leave it out"
    hint = f"did you mean `{near[0]}`?" if near else known_ones
    facts: dict[str, FactValue] = {kind: shown}
    if near:
        facts["nearest"] = near[0]
    if at:
        facts["path"] = at
    return refusal_error(f"unknown_{kind}", f"`{shown}` is not a {kind} that is known here{where}", hint, **facts)


def bad_value(path: str, *, wanted: str, got: str, kind: str = "field") -> StokerError:
    """The refusal of one value."""
    shown = path or "the body"
    message = f"`{shown}` must be {wanted}, but is {got}"
    hint = f"send `{shown}` as {wanted}"
    return refusal_error(f"bad_{kind}", message, hint, path=path, wanted=wanted, got=got)


def _path(at: str, found: str | None) -> str:
    inner = (found or "$")[1:].removeprefix(".")[:200]
    return _join(at, inner)


def _join(outer: str, inner: str) -> str:
    if not outer or not inner:
        return outer or inner
    return outer + inner if inner.startswith("[") else f"{outer}.{inner}"


class NoQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A query without parameters."""


class NoBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A body without fields."""
