"""How does a JSON value look as YAML?

Written here, because importing a YAML library costs a fifth of the time that `stoker list` may take, and because texts
of users must come out escaped whatever they hold. Only what JSON has is known: no anchors, tags or aliases.

Rules: Y1  reading the text with any YAML 1.1 or 1.2 reader gives the value back
       Y2  a text stands bare only when no reader could take it for anything else
"""

import re
from collections.abc import Iterator
from typing import Final

from stoker.cli.display.safe_text import escaped, visible

_BARE: Final = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*( [A-Za-z0-9_./-]+)*")
_WORDS: Final = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null", "none", "nan", "inf", ""})
_ESCAPES: Final = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t"}


def yaml_text(value: object) -> str:
    """`value` (dict, list, str, int, float, bool or None, nested) as block-style YAML, ending in a newline."""
    return "\n".join(_block(value, "")) + "\n"


def _block(value: object, indent: str) -> Iterator[str]:
    match value:
        case dict() if value:
            for key, inner in value.items():
                yield from _entry(f"{indent}{_scalar(str(key))}:", inner, indent)
        case list() | tuple() if value:
            for inner in value:
                yield from _item(inner, indent)
        case _:
            yield indent + _scalar(value)


def _entry(head: str, value: object, indent: str) -> Iterator[str]:
    if isinstance(value, dict | list | tuple) and value:
        yield head
        yield from _block(value, indent + "  ")
    else:
        yield f"{head} {_scalar(value)}"


def _item(value: object, indent: str) -> Iterator[str]:
    """The first line of the item shares its line with the dash."""
    lines = _block(value, indent + "  ")
    yield f"{indent}- {next(lines)[len(indent) + 2 :]}"
    yield from lines


def _scalar(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case dict():
            return "{}"
        case list() | tuple():
            return "[]"
        case str():
            return value if _stands_bare(value) else _quoted(value)
        case _:
            raise TypeError(f"not a JSON value: {value!r}")


def _stands_bare(text: str) -> bool:
    return len(text) <= 1_000 and text.lower() not in _WORDS and _BARE.fullmatch(text) is not None


def _quoted(text: str) -> str:
    return '"' + "".join(_ESCAPES.get(letter) or _inside_quotes(letter) for letter in text) + '"'


def _inside_quotes(letter: str) -> str:
    """YAML knows the same numeric escapes as `visible`, but takes no surrogate and no bare joiner for granted."""
    if visible(letter) == letter and letter not in "\u200d\ufe0f\ufeff":
        return letter
    return escaped(letter)
