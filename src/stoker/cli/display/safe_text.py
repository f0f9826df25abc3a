"""Escaping of text from users, so that a terminal shows it without harm.

Names, reasons and host names come from outside. On a terminal a control character in them could move the cursor,
recolour the screen or forge a row of a table, and a right-to-left mark could hide what a line says.

Rules: S1  a line stays a line: every control, format, surrogate and separator character is shown as an escape
       S2  what people write (accents, emoji, CJK) is left as it is
       S3  width is counted in terminal cells, not in characters
       S4  JSON is escaped as JSON has it, so that who reads it gets the very same text
"""

import re
import unicodedata
from typing import Final

_UNSAFE: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_JOINERS: Final = frozenset("\u200d\ufe0f")
"""Format characters that emoji are made with: harmless."""
_NAMED: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\x1b": "\\e"}


def visible(text: str) -> str:
    """`text` on one line, with nothing in it that acts on a terminal."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_shown, text))


def _shown(letter: str) -> str:
    if letter in _JOINERS or unicodedata.category(letter) not in _UNSAFE:
        return letter
    return _NAMED.get(letter) or escaped(letter)


_UNESCAPED = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""What JSON leaves as it is: control characters, on which some terminals act as on an escape and a letter, line ends of
Unicode, and marks that turn the direction of what follows."""


def safe_json(text: str) -> str:
    """Return JSON that means the same and holds nothing that acts on a terminal but its own line ends."""
    return _UNESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def escaped(letter: str) -> str:
    """The shortest of Python's three numeric escapes, which are also YAML's."""
    number = ord(letter)
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def width(text: str) -> int:
    """Terminal cells that `text` takes."""
    if text.isascii():
        return len(text)
    return sum(map(_cells, text))


def _cells(letter: str) -> int:
    if letter in _JOINERS or unicodedata.combining(letter):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def cut(text: str, cells_max: int) -> str:
    """`text`, or as much of its beginning as fits with an ellipsis."""
    if width(text) <= cells_max:
        return text
    kept, used = [], 1
    for letter in text:
        used += _cells(letter)
        if used > cells_max:
            break
        kept.append(letter)
    return "".join(kept) + "…"
