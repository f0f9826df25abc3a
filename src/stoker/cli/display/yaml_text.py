"""JSON values as YAML text.

It is written here because importing a YAML library costs a fifth of the time that `stoker list` may take, and because
texts of users must come out escaped whatever they hold. Only what JSON has is known: no anchors, tags or aliases.

Rules: Y1  reading the text with any YAML 1.1 or 1.2 reader gives the value back
       Y2  a text stands bare only when no reader could take it for anything else
"""

import re
from collections.abc import Iterator
from json import dumps
from typing import Final

from stoker.cli.display.safe_text import escaped, visible

_BARE: Final = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*( [A-Za-z0-9_./-]+)*")
_WORDS: Final = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null", "none", "nan", "inf", ""})
_ESCAPES: Final = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t"}


def yaml_text(value: object) -> str:
    """Return `value` (dict, list, str, int, float, bool or None, nested) as block-style YAML, ending in a newline."""
    return "\n".join(_block(value)) + "\n"


def _block(value: object) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            head = f"{_scalar(str(key))}:"
            if isinstance(inner, dict | list | tuple) and inner:
                yield head
                yield from (f"  {line}" for line in _block(inner))
            else:
                yield f"{head} {_scalar(inner)}"
    elif isinstance(value, list | tuple) and value:
        for inner in value:
            first, *rest = _block(inner)
            yield f"- {first}"
            yield from (f"  {line}" for line in rest)
    else:
        yield _scalar(value)


def _scalar(value: object) -> str:
    """Raises: TypeError for what is no JSON value."""
    if not isinstance(value, str):
        return dumps(value)
    return value if _stands_bare(value) else _quoted(value)


def _stands_bare(text: str) -> bool:
    return len(text) <= 1_000 and text.lower() not in _WORDS and _BARE.fullmatch(text) is not None


def _quoted(text: str) -> str:
    return '"' + "".join(_ESCAPES.get(letter) or _inside_quotes(letter) for letter in text) + '"'


def _inside_quotes(letter: str) -> str:
    """YAML knows the same numeric escapes as `visible`, but takes no surrogate and no bare joiner for granted."""
    if visible(letter) == letter and letter not in "\u200d\ufe0f\ufeff":
        return letter
    return escaped(letter)
