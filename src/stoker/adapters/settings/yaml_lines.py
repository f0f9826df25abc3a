"""Reading of a YAML file into a tree of text with line numbers.

The only module that imports the YAML library. Scalars stay text, since only the reader of the tree knows the wanted
types: so `no`, `010` and `1:30` never change into something else on the way.

Limits: one document of at most 256 KiB; no aliases and no tags, which would let a short file mean a huge one.
"""

from pathlib import Path
from typing import Final

import msgspec
import yaml

SIZE_MAX: Final = 256 * 1024
_CORE_TAG: Final = "tag:yaml.org,2002:"
_NULL: Final = "tag:yaml.org,2002:null"
_MERGE: Final = "tag:yaml.org,2002:merge"


class Text(msgspec.Struct, frozen=True):
    """A scalar exactly as written; `null` when it is empty, `~` or `null` without quotes."""

    line: int
    text: str
    null: bool = False


class Entries(msgspec.Struct, frozen=True):
    """A mapping. Keys may repeat: the reader of the tree decides what that means."""

    line: int
    entries: tuple[tuple[Text, "YamlNode"], ...]


class Parts(msgspec.Struct, frozen=True):
    """A sequence."""

    line: int
    parts: tuple["YamlNode", ...]


YamlNode = Text | Entries | Parts


class YamlFault(Exception):
    """A file that can't be read as YAML. The message has file and line."""


def read_yaml(path: Path) -> YamlNode | None:
    """Return the one document of a file; None when it is empty.

    Raises: YamlFault for a file that can't be opened, isn't text, or isn't one plain YAML document.
    """
    text = _read_text(path)
    try:
        root = _PlainLoader(text).get_single_node()
        return None if root is None else _tree(path, root)
    except yaml.MarkedYAMLError as fault:
        raise YamlFault(f"{path}:{_line_of(fault)}: {_words(fault)}") from fault
    except yaml.reader.ReaderError as fault:
        line = text.count("\n", 0, fault.position) + 1
        raise YamlFault(f"{path}:{line}: the character {chr(fault.character)!r} isn't allowed in YAML") from fault
    except RecursionError as fault:
        raise YamlFault(f"{path}:1: nested too deep to be meant") from fault


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(SIZE_MAX + 1)
    except OSError as fault:
        raise YamlFault(f"{path}: {(fault.strerror or str(fault)).lower()}") from fault
    if len(data) > SIZE_MAX:
        raise YamlFault(f"{path}: larger than {SIZE_MAX} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as fault:
        line = data.count(b"\n", 0, fault.start) + 1
        raise YamlFault(f"{path}:{line}: not UTF-8 text (byte 0x{data[fault.start]:02x})") from fault


class _PlainLoader(yaml.SafeLoader):
    """YAML loader that refuses aliases before they can be followed."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.get_event()  # type: ignore[no-untyped-call]  # the stubs leave it open
            raise yaml.composer.ComposerError(None, None, "aliases (*name) aren't read here", event.start_mark)
        return super().compose_node(parent, index)


def _tree(path: Path, node: yaml.Node) -> YamlNode:
    line = node.start_mark.line + 1
    if not node.tag.startswith(_CORE_TAG) or node.tag == _MERGE:
        raise YamlFault(f"{path}:{line}: tags and merge keys aren't read here ({node.tag})")
    if isinstance(node, yaml.ScalarNode):
        return Text(line, node.value, null=node.tag == _NULL)
    if isinstance(node, yaml.SequenceNode):
        return Parts(line, tuple(_tree(path, part) for part in node.value))
    assert isinstance(node, yaml.MappingNode), f"a fourth kind of YAML node: {node!r}"
    return Entries(line, tuple((_key(path, key), _tree(path, value)) for key, value in node.value))


def _key(path: Path, node: yaml.Node) -> Text:
    key = _tree(path, node)
    if not isinstance(key, Text):
        raise YamlFault(f"{path}:{key.line}: a key must be one word")
    return key


def _line_of(fault: yaml.MarkedYAMLError) -> int:
    mark = fault.problem_mark or fault.context_mark
    return 1 if mark is None else mark.line + 1


def _words(fault: yaml.MarkedYAMLError) -> str:
    """What is wrong; for something left open also where it began, which is the line to mend."""
    words = fault.problem or fault.context or "not YAML"
    if fault.problem is None or fault.context_mark is None or fault.context_mark.line + 1 == _line_of(fault):
        return words
    return f"{words} ({fault.context}, which began on line {fault.context_mark.line + 1})"
