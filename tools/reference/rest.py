"""The reference page of REST: its operations, their parameters, bodies and responses.

Drawn from the OpenAPI document that the control plane serves; the sentence under each field in the source is the
sentence in the table.
"""

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from functools import cache
from typing import Any, Final, cast

import msgspec

import stoker.wire.rest as shapes
from stoker.api.http.app import operations
from stoker.api.http.routing import document_of
from stoker.control.control_plane import ControlPlane
from tools.reference.markdown import code, page, table
from tools.reference.settings import written

Document = dict[str, Any]

PARAMETER: Final = ("parameter", "type", "default", "meaning")
FIELD: Final = ("field", "type", "default", "meaning")
PAGES: Final = {"JobState": "[state](states.md)", "NodeState": "[state](states.md)", "ReasonCode": "[code](reasons.md)"}
"""Words that a page of their own explains."""
WORDS_MAX: Final = 8
"""Of a choice that is written out."""
ALWAYS: Final = ("foreign_origin", "internal_error")


def rest() -> str:
    """The page of REST."""
    return page(
        "REST",
        "JSON under `/api/v1`. A running control plane serves the same as OpenAPI at `/openapi.json`. Ids are text; "
        "times are UTC (`2026-01-31T08:00:00.000Z`); fields that end in `_mb` are MiB, in `_ms` milliseconds. An "
        "unknown field or parameter is refused with the nearest known one. A refusal is a problem of RFC 9457 with "
        "`code`, `message`, `hint` and `facts`; [error codes](error-codes.md) explains each. Beside the codes named "
        f"here any path may refuse with {' and '.join(map(code, ALWAYS))}.",
        *_paths(),
        "## Shapes",
        *(part for name in _schemas() if name in _structs() for part in _shape(name)),
    )


class _Unasked:
    """Stands in for a control plane where nothing but the document is wanted."""

    def __getattr__(self, name: str) -> "_Unasked":
        return _Unasked()


@cache
def _document() -> Document:
    return document_of(operations(cast(ControlPlane, _Unasked())), open_to_owner=True)


def _schemas() -> Document:
    found: Document = _document()["components"]["schemas"]
    return found


def _structs() -> dict[str, type[msgspec.Struct]]:
    """The shapes of `wire.rest`, by name. What an event holds comes from elsewhere and is the log's affair."""
    names = (f"{shapes.__name__}.{each.name}" for each in pkgutil.iter_modules(shapes.__path__))
    found = (value for name in names for value in vars(importlib.import_module(name)).values())
    return {
        each.__name__: each
        for each in found
        if isinstance(each, type) and issubclass(each, msgspec.Struct) and each.__module__.startswith(shapes.__name__)
    }


def _paths() -> Iterator[str]:
    seen = ""
    for path, methods in _document()["paths"].items():
        for method, asked in methods.items():
            noun = asked["tags"][0]
            if noun != seen:
                yield f"## {noun.capitalize() if noun != 'gpus' else 'GPUs'}"
                seen = noun
            yield from _asked(f"{method.upper()} {path}", asked)


def _asked(title: str, asked: Document) -> Iterator[str]:
    yield f"### `{title}`"
    yield asked["description"]
    parameters = [each for each in asked.get("parameters", ()) if each["in"] != "path"]
    query = _query_of(parameters)
    sentences = _sentences(query) if query else {}
    if query and query.__doc__:
        yield inspect.cleandoc(query.__doc__)
    if parameters:
        yield table(PARAMETER, (_parameter(each, sentences) for each in parameters))
    yield _exchange(asked)


def _query_of(parameters: list[Document]) -> type[msgspec.Struct] | None:
    """The shape that has exactly these parameters."""
    names = {each["name"] for each in parameters if each["in"] == "query"}
    shapes = (each for name, each in _structs().items() if not name.endswith(("Body", "View")))
    return next((each for each in shapes if names and names == set(each.__struct_encode_fields__)), None)


def undocumented() -> list[str]:
    """Parameters and fields that a program may send and no sentence explains."""
    asked = [each for methods in _document()["paths"].values() for each in methods.values()]
    queries = [_query_of(each.get("parameters", [])) for each in asked]
    sent = [*filter(None, queries), *(each for name, each in _structs().items() if name.endswith("Body"))]
    return [
        f"{each.__name__}.{field}"
        for each in dict.fromkeys(sent)
        for field in each.__struct_encode_fields__
        if field not in _sentences(each) and f"`{field}`" not in (each.__doc__ or "")
    ]


def _parameter(told: Document, sentences: dict[str, str]) -> tuple[str, str, str, str]:
    schema = told["schema"]
    where = " (header)" if told["in"] == "header" else ""
    sentence = told.get("description") or sentences.get(told["name"], "")
    return f"{code(told['name'])}{where}", _kind(schema), _default(schema), sentence


def _default(schema: Document) -> str:
    value = schema.get("default")
    return code(msgspec.json.encode(value).decode()) if value not in (None, "") else ""


def _exchange(asked: Document) -> str:
    lines = []
    if "requestBody" in asked:
        lines.append(f"- body: {_content(asked['requestBody']['content'])}")
    for status, answer in asked["responses"].items():
        if status[0] == "2":
            lines.append(f"- {status}: {_content(answer.get('content', {}))}")
        elif codes := [each for each in answer["description"].partition(": ")[2].split(", ") if each not in ALWAYS]:
            lines.append(f"- {status}: {', '.join(code(each) for each in codes if each)}")
    return "\n".join(lines)


def _content(content: Document) -> str:
    if not content:
        return "no body"
    (kind, told), *_ = content.items()
    schema = told.get("schema", {})
    return _kind(schema) if kind == "application/json" else code(kind)


def _shape(name: str) -> Iterator[str]:
    """Only what must be sent is marked so: of an answer each field is there."""
    schema, sentences = _schemas()[name], _sentences(_structs()[name])
    required = schema.get("required", ()) if name.endswith("Body") else ()
    yield f"### {name}"
    if about := schema.get("description"):
        yield inspect.cleandoc(about)
    rows = (
        (code(field), _kind(told), "(must be given)" if field in required else _default(told), sentences.get(field, ""))
        for field, told in schema["properties"].items()
    )
    yield table(FIELD, rows)


def _sentences(struct: type[msgspec.Struct]) -> dict[str, str]:
    """Name on the wire -> sentence."""
    inherited = [each for each in reversed(struct.__mro__) if each in _structs().values()]
    told = {name: sentence for each in inherited for name, sentence in written(each).items()}
    names = zip(struct.__struct_fields__, struct.__struct_encode_fields__, strict=True)
    return {sent: told[name] for name, sent in names if name in told}


def _kind(schema: Document) -> str:
    """In the words of people, not of JSON Schema."""
    if "$ref" in schema:
        return _named(schema["$ref"].rpartition("/")[2])
    if "anyOf" in schema:
        kinds = [_kind(each) for each in schema["anyOf"]]
        return " or ".join(kind for kind in dict.fromkeys(kinds) if kind != "null") or "null"
    if "enum" in schema:
        return ", ".join(code(word) for word in schema["enum"] if word != "")
    kind = schema.get("type", "anything")
    if kind == "array":
        return f"list of {_kind(schema['items'])}" if "items" in schema else "list"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {_kind(schema['additionalProperties'])}"
    return _KINDS.get(kind, str(kind))


_KINDS: Final = {"string": "text", "integer": "whole number", "number": "number", "boolean": "true or false"}


def _named(name: str) -> str:
    if name in PAGES:
        return PAGES[name]
    if name in _structs():
        return f"[{name}](#{name.lower()})"
    words = _schemas()[name].get("enum", ())
    return ", ".join(map(code, words)) if 0 < len(words) <= WORDS_MAX else code(name)
