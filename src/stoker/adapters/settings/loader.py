"""How do a file, the environment and flags become one settings value?

A settings type is a tree of frozen dataclasses; a section is a field whose type is such a dataclass. This module reads
any of them and knows none.

Rules: S1  flag over environment (`STOKER__SECTION__KEY`) over file over default; `origin` says for each key which
       S2  every fault of every source is reported at once, each with FILE:LINE (or its variable, or flag), the value
           and what was wanted instead
       S3  an unknown or repeated key is a fault; for an unknown one the nearest known key is named, or the program
           whose key it is, or what its type says in `later` about a key that isn't there yet
       S4  relations are checked by the dataclass itself: a method `faults(self) -> list[str]`, asked once its own
           fields could be read
Types: str, int, float, bool, Path, Literal, Enum, Optional and unions of these, list[T] or tuple[T, ...] and
       dict[str, T] of them. In variables and flags a list is `a,b` and a dictionary `k=v,k2=v2`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, Generic, TypeVar, get_type_hints

from stoker.adapters.settings.types import Unreadable, from_node, from_text
from stoker.adapters.settings.yaml_lines import Entries, Text, YamlFault, YamlNode, read_yaml
from stoker.brain.domain.errors import StokerError, refuse

PREFIX: Final = "STOKER__"
FAULTS_MAX: Final = 50
"""More than fifty faults are one fault: the wrong file."""

T = TypeVar("T")
Value = TypeVar("Value", covariant=True)


@dataclass(frozen=True, slots=True)
class Loaded(Generic[Value]):
    """A settings value, and for each dotted key where its value came from."""

    value: Value
    origin: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Examined(Generic[Value]):
    """What the sources add up to: a value, or every fault that stands in its way and how to mend the clearest."""

    value: Value | None
    origin: Mapping[str, str]
    faults: Sequence[str]
    hint: str


def load(
    cls: type[T],
    path: Path | None,
    environ: Mapping[str, str],
    flags: Mapping[str, object],
    *,
    others: Sequence[type] = (),
) -> Loaded[T]:
    """Read settings of type `cls`.

    `flags` maps `section.key` to a value; None means that the flag wasn't given. `others` are settings types of
    programs that share this environment: variables that belong to them are passed over instead of refused.
    Raises: StokerError `bad_settings` with every fault.
    """
    return told(examine(cls, path, environ, flags, others=others))


def told(seen: "Examined[T]") -> Loaded[T]:
    """The value. Raises: StokerError `bad_settings` with every fault, when there is none."""
    if seen.value is None:
        raise _bad_settings(seen)
    return Loaded(seen.value, seen.origin)


def examine(
    cls: type[T],
    path: Path | None,
    environ: Mapping[str, str],
    flags: Mapping[str, object],
    *,
    others: Sequence[type] = (),
) -> Examined[T]:
    """The same as `load`, for who wants the faults one by one."""
    reading = _SettingsReader(cls, others)
    if path is not None:
        reading.file(path)
    reading.environment(environ)
    reading.flags(flags)
    value = None if reading.unreadable else _build(cls, "", reading)
    return Examined(None if reading.faults else value, reading.origin, tuple(reading.faults), reading.hint())


@dataclass(frozen=True, slots=True)
class _Given:
    """What one source says about one key."""

    origin: str
    raw: object  # a Node from a file, or any value from a variable or flag


class _SettingsReader:
    """What the sources said so far, and what was wrong with it."""

    def __init__(self, cls: type, others: Sequence[type]) -> None:
        self.known = _known_keys(cls)
        self.later = _later(cls)
        self.others = others
        self.given: dict[str, _Given] = {}
        self.origin: dict[str, str] = {}
        self.faults: list[str] = []
        self.near: list[str] = []
        self.unreadable = False

    def file(self, path: Path) -> None:
        try:
            root = read_yaml(path)
        except YamlFault as fault:
            self._unreadable(str(fault))
            return
        if isinstance(root, Entries):
            self._section(path, "", root)
        elif root is not None and not (isinstance(root, Text) and root.null):
            self._unreadable(f"{path}:{root.line}: settings are `key: value` lines, not a single {_kind(root)}")

    def _unreadable(self, fault: str) -> None:
        """Without the file, missing keys and relations would only add noise to the one fault that matters."""
        self.faults.append(fault)
        self.unreadable = True

    def _section(self, path: Path, prefix: str, section: Entries) -> None:
        seen: dict[str, int] = {}
        for key, node in section.entries:
            name, where = prefix + key.text, f"{path}:{key.line}"
            if "." in key.text and name in self.known:
                outer, _, last = name.rpartition(".")
                self.faults.append(f"{where}: write {name} as two lines, `{outer}:` and indented below it `{last}:`")
            elif name in seen:
                self.faults.append(f"{where}: {name} was already given on line {seen[name]}")
            elif name not in self.known:
                self._unknown(where, name)
            elif not self.known[name]:
                self.given[name] = _Given(where, node)
            elif isinstance(node, Entries):
                self._section(path, f"{name}.", node)
            elif not (isinstance(node, Text) and node.null):
                self.faults.append(f"{where}: {name} is a section of keys, not a {_kind(node)}")
            seen.setdefault(name, key.line)

    def environment(self, environ: Mapping[str, str]) -> None:
        for variable in sorted(environ):
            if not variable.startswith(PREFIX):
                continue
            name = variable.removeprefix(PREFIX).lower().replace("__", ".")
            if self.known.get(name):
                self._no_value(variable, name)
            elif name not in self.known:
                if not any(_knows(other, name) for other in self.others):
                    self._unknown(variable, name)
            elif name in self.given and self.given[name].origin.startswith(PREFIX):
                self.faults.append(f"{variable}: {name} was already given as {self.given[name].origin}")
            else:
                self.given[name] = _Given(variable, environ[variable])

    def flags(self, flags: Mapping[str, object]) -> None:
        for name, value in flags.items():
            if value is None:
                continue
            if self.known.get(name):
                self._no_value(f"flag {name}", name)
            elif name in self.known:
                self.given[name] = _Given(f"flag {name}", value)
            else:
                self._unknown(f"flag {name}", name)

    def _no_value(self, where: str, section: str) -> None:
        key = next(key for key, is_section in self.known.items() if key.startswith(f"{section}.") and not is_section)
        self.faults.append(f"{where}: {section} is a section of keys, not a value; {key} is one of them")

    def _unknown(self, where: str, name: str) -> None:
        later = _longest(self.later, name)
        if later:
            self.faults.append(f"{where}: {later} can't be set: {self.later[later]}")
            return
        owner = next((other for other in self.others if _knows(other, name)), None)
        if owner is not None:
            program = getattr(owner, "program", owner.__name__)
            self.faults.append(f"{where}: {name} is a setting of `{program}`, not of this program")
            return
        keys = [key for key, is_section in self.known.items() if not is_section or "." not in name]
        # Compare whole dotted names first, then the last part, so that a key in the wrong section is found too.
        near = get_close_matches(name, keys, n=1) or [
            key for key in keys if key.rpartition(".")[2] == name.rpartition(".")[2]
        ]
        self.faults.append(f"{where}: {name} isn't a setting" + (f" (nearest: {near[0]})" if near else ""))
        if near:
            self.near.append(f"{near[0]} instead of {name}")

    def hint(self) -> str:
        if self.near:
            return "write " + ", ".join(self.near[:5])
        return "docs/reference/settings.md lists every key; `stoker doctor --settings` prints what holds"


def _build(cls: type[T], prefix: str, reading: _SettingsReader) -> T | None:
    """The settings value; None when one of its keys couldn't be read, which was then noted."""
    assert is_dataclass(cls), f"{cls!r} isn't a settings type"
    hints = get_type_hints(cls)
    faults_before = len(reading.faults)
    values: dict[str, object] = {}
    for field in fields(cls):
        name, wanted = prefix + field.name, hints[field.name]
        if is_dataclass(wanted):
            values[field.name] = _build(wanted, f"{name}.", reading)  # type: ignore[arg-type]  # a class, not a value
        else:
            values[field.name] = _value(name, wanted, field, reading)
    if len(reading.faults) > faults_before:
        return None
    value = cls(**values)
    for fault in getattr(value, "faults", list)():
        reading.faults.append(_relation(prefix, fault, reading.origin))
    return value


def _value(name: str, wanted: Any, field: Field[Any], reading: _SettingsReader) -> object:  # noqa: ANN401  # a type form
    given = reading.given.get(name)
    if given is None:
        reading.origin[name] = "default"
        return _default(name, field, reading)
    reading.origin[name] = given.origin
    try:
        if isinstance(given.raw, YamlNode):
            return from_node(wanted, given.raw)
        return from_text(wanted, given.raw)
    except Unreadable as fault:
        reading.faults.append(f"{given.origin}: {name}: {fault}")
        return None


def _default(name: str, field: Field[Any], reading: _SettingsReader) -> object:
    if field.default is not MISSING:
        return field.default
    if field.default_factory is not MISSING:
        return field.default_factory()
    variable = PREFIX + name.upper().replace(".", "__")
    reading.faults.append(f"{name} has no default: set it in the file or as {variable}")
    return None


def _relation(prefix: str, fault: str, origin: Mapping[str, str]) -> str:
    """The sentence with its section in front, followed by where each value that it names was set."""
    words = {word.strip(".,;:()`'\"") for word in fault.split()}
    named = sorted({name for word in words for name in (word, prefix + word) if name in origin})
    places = ", ".join(f"{name}: {origin[name]}" for name in named if origin[name] != "default")
    section = f"{prefix.rstrip('.')}: " if prefix else ""
    return f"{section}{fault}" + (f" [{places}]" if places else "")


def _known_keys(cls: type, prefix: str = "") -> dict[str, bool]:
    """Every dotted name of a settings type; True for a section."""
    hints = get_type_hints(cls)
    known: dict[str, bool] = {}
    for field in fields(cls):
        name, wanted = prefix + field.name, hints[field.name]
        known[name] = is_dataclass(wanted)
        if is_dataclass(wanted):
            known.update(_known_keys(wanted, f"{name}."))  # type: ignore[arg-type]  # a class, not a value
    return known


def _kind(node: YamlNode) -> str:
    if isinstance(node, Text):
        return "value"
    return "group of keys" if isinstance(node, Entries) else "list"


def _later(cls: type) -> Mapping[str, str]:
    """Keys that aren't there yet -> what to know about each."""
    later: Mapping[str, str] = getattr(cls, "later", {})
    return later


def _longest(names: Mapping[str, str], name: str) -> str:
    """The one of `names` that is `name`, or the nearest section around it; empty when none is."""
    while name and name not in names:
        name = name.rpartition(".")[0]
    return name


def _knows(cls: type, name: str) -> bool:
    return name in _known_keys(cls) or bool(_longest(_later(cls), name))


def _bad_settings(seen: Examined[T]) -> StokerError:
    count = len(seen.faults)
    shown = list(seen.faults[:FAULTS_MAX])
    if count > FAULTS_MAX:
        shown.append(f"... and {count - FAULTS_MAX} more")
    message = shown[0] if count == 1 else f"{count} faults in the settings:\n  " + "\n  ".join(shown)
    return StokerError(refuse("bad_settings", message, seen.hint, faults=count))
