"""Loading of a settings value from a YAML file, the environment and flags, with the origin of each key.

A settings type is a tree of msgspec Structs; a section is a field whose type is such a Struct. This module reads any
of them and knows none.

Rules: S1  flag over environment (`STOKER__SECTION__KEY`) over file over default; `origin` says for each key which
       S2  every fault of every source is reported at once, each with FILE:LINE (or its variable, or flag), the value
           and what was wanted instead
       S3  an unknown or repeated key is a fault; for an unknown one the nearest known key is named, or the program
           whose key it is, or what its type says in `later` about a key that isn't there yet
       S4  a number outside the `Range` of its key is a fault; relations between keys are checked by the Struct itself:
           a method `faults(self) -> list[str]`. Both are asked once all keys of a section could be read
Types: str, int, float, bool, Path, Literal, Optional and unions of these, list[T] or tuple[T, ...] and dict[str, T] of
       them; dict[str, Struct] of groups of such keys, which a file alone can give, and whose `faults` the section asks.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Final, Generic, TypeGuard, TypeVar, get_origin

import msgspec
from msgspec.structs import FieldInfo

from stoker.adapters.settings.types import Unreadable, from_node, from_text
from stoker.adapters.settings.yaml_lines import Entries, Text, YamlFault, YamlNode, read_yaml
from stoker.brain.domain.errors import refusal_error
from stoker.brain.domain.units import Range

PREFIX: Final = "STOKER__"
FAULTS_MAX: Final = 50
"""More than fifty faults are one fault: the wrong file."""

T = TypeVar("T", bound=msgspec.Struct)
Found = TypeVar("Found")
Value = TypeVar("Value", covariant=True)


@dataclass(frozen=True, slots=True)
class Loaded(Generic[Value]):
    """A settings value, and for each dotted key its origin; without a value, every fault that stands in its way."""

    value: Value
    origin: Mapping[str, str]
    faults: Sequence[str]
    hint: str
    """How to mend the clearest of the faults."""


def load(
    cls: type[T],
    path: Path | None,
    environ: Mapping[str, str],
    flags: Mapping[str, object],
    *,
    others: Sequence[type[msgspec.Struct]] = (),
) -> Loaded[T]:
    """Read settings of type `cls`.

    `flags` maps `section.key` to a value; None means that the flag wasn't given. `others` are settings types of
    programs that share this environment: variables that belong to them are passed over instead of refused.
    Raises: StokerError `bad_settings` with every fault.
    """
    return require(examine(cls, path, environ, flags, others=others))


def require(seen: Loaded[Found | None]) -> Loaded[Found]:
    """Return what was loaded if there is a value. Raises: StokerError `bad_settings` with every fault."""
    if seen.value is None:
        count, shown = len(seen.faults), [*seen.faults[:FAULTS_MAX]]
        if count > FAULTS_MAX:
            shown.append(f"... and {count - FAULTS_MAX} more")
        message = shown[0] if count == 1 else f"{count} faults in the settings:\n  " + "\n  ".join(shown)
        raise refusal_error("bad_settings", message, seen.hint, faults=count)
    return Loaded(seen.value, seen.origin, (), seen.hint)


def examine(
    cls: type[T],
    path: Path | None,
    environ: Mapping[str, str],
    flags: Mapping[str, object],
    *,
    others: Sequence[type[msgspec.Struct]] = (),
) -> Loaded[T | None]:
    """Read settings as `load` does, and return the faults instead of raising them."""
    reading = _SettingsReader(cls, others)
    readable = path is None or reading.file(path)
    reading.environment(environ)
    for name, given in flags.items():
        if given is not None:
            reading.take(f"flag {name}", name, given)
    # Without the file, missing keys and relations would only add noise to the one fault that matters.
    value = reading.build(cls, "") if readable else None
    return Loaded(None if reading.faults else value, reading.origin, tuple(reading.faults), reading.hint())


class _SettingsReader:
    """Reader of the sources, which keeps what was given so far and what was wrong with it."""

    def __init__(self, cls: type[msgspec.Struct], others: Sequence[type[msgspec.Struct]]) -> None:
        self.known = _known_keys(cls)
        self.later = later_keys(cls)
        self.others = others
        self.given: dict[str, tuple[str, object]] = {}
        """Key -> where it was given, and a node of a file or any value of a variable or flag."""
        self.origin: dict[str, str] = {}
        self.faults: list[str] = []
        self.near: list[str] = []

    def file(self, path: Path) -> bool:
        """Take the keys of a file; False if it can't be read at all."""
        try:
            root = read_yaml(path)
        except YamlFault as fault:
            self.faults.append(str(fault))
            return False
        if isinstance(root, Entries):
            self._section(path, "", root)
        elif root is not None and not (isinstance(root, Text) and root.null):
            self.faults.append(f"{path}:{root.line}: settings are `key: value` lines, not a single {_kind(root)}")
            return False
        return True

    def _section(self, path: Path, prefix: str, section: Entries) -> None:
        lines: dict[str, int] = {}
        for key, node in section.entries:
            name, where = prefix + key.text, f"{path}:{key.line}"
            if "." in key.text and name in self.known:
                outer, _, last = name.rpartition(".")
                self.faults.append(f"{where}: write {name} as two lines, `{outer}:` and indented below it `{last}:`")
            elif name in lines:
                self.faults.append(f"{where}: {name} was already given on line {lines[name]}")
            elif not self._is_section(name):
                self.take(where, name, node)
            elif isinstance(node, Entries):
                self._section(path, f"{name}.", node)
            elif not (isinstance(node, Text) and node.null):
                self.faults.append(f"{where}: {name} is a section of keys, not a {_kind(node)}")
            lines.setdefault(name, key.line)

    def environment(self, environ: Mapping[str, str]) -> None:
        """Take the variables that are settings of this program."""
        for variable in sorted(environ):
            name = variable.removeprefix(PREFIX).lower().replace("__", ".")
            where, _ = self.given.get(name, ("", None))
            if not variable.startswith(PREFIX) or (name not in self.known and self._owner(name)):
                continue
            if where.startswith(PREFIX):
                self.faults.append(f"{variable}: {name} was already given as {where}")
            else:
                self.take(variable, name, environ[variable])

    def take(self, where: str, name: str, given: object) -> None:
        """Take one key from one source, instead of what an earlier source gave."""
        if name not in self.known:
            self._unknown(where, name)
        elif self._is_section(name):
            key = next(key for key in self.known if key.startswith(f"{name}.") and not self._is_section(key))
            self.faults.append(f"{where}: {name} is a section of keys, not a value; {key} is one of them")
        else:
            self.given[name] = (where, given)

    def _is_section(self, name: str) -> bool:
        return name in self.known and is_section(self.known[name].type)

    def _owner(self, name: str) -> type[msgspec.Struct] | None:
        """The settings type of another program to which a key belongs."""
        return next((cls for cls in self.others if name in _known_keys(cls) or _longest(later_keys(cls), name)), None)

    def _unknown(self, where: str, name: str) -> None:
        if later := _longest(self.later, name):
            self.faults.append(f"{where}: {later} can't be set: {self.later[later]}")
            return
        if owner := self._owner(name):
            program = getattr(owner, "program", owner.__name__)
            self.faults.append(f"{where}: {name} is a setting of `{program}`, not of this program")
            return
        keys = [key for key in self.known if not self._is_section(key) or "." not in name]
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

    def build(self, cls: type[T], prefix: str) -> T | None:
        """Return the settings value; None when one of its keys couldn't be read, which is then among the faults."""
        faults_before = len(self.faults)
        values: dict[str, object] = {}
        for field in msgspec.structs.fields(cls):
            name = prefix + field.name
            values[field.name] = (
                self.build(field.type, f"{name}.") if is_section(field.type) else self._value(name, field)
            )
        if len(self.faults) > faults_before:
            return None
        value = cls(**values)
        faults = [*_out_of_range(value), *getattr(value, "faults", list)()]
        self.faults.extend(_relation(prefix, fault, self.origin) for fault in faults)
        return value

    def _value(self, name: str, field: FieldInfo) -> object:
        where, given = self.given.get(name, ("default", None))
        self.origin[name] = where
        if name not in self.given:
            if field.required:
                variable = PREFIX + name.upper().replace(".", "__")
                self.faults.append(f"{name} has no default: set it in the file or as {variable}")
            return default_of(field)
        try:
            wanted, _ = without_range(field.type)
            return from_node(wanted, given) if isinstance(given, YamlNode) else from_text(wanted, given)
        except Unreadable as fault:
            self.faults.append(f"{where}: {name}: {fault}")
            return None


def is_section(form: Any) -> TypeGuard[type[msgspec.Struct]]:  # noqa: ANN401  # a type form
    """Whether the type of a key is a section of further keys."""
    return isinstance(form, type) and issubclass(form, msgspec.Struct)


def without_range(form: Any) -> tuple[Any, Range | None]:  # noqa: ANN401  # a type form
    """Return the plain type of a key, and the range of its numbers if it has one."""
    return (form.__origin__, form.__metadata__[0]) if get_origin(form) is Annotated else (form, None)


def default_of(field: FieldInfo) -> object:
    """Return the default of a key; msgspec.NODEFAULT if it must be given."""
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def later_keys(cls: type) -> Mapping[str, str]:
    """Return the keys that a settings type doesn't have yet, each with what to know about it."""
    later: Mapping[str, str] = getattr(cls, "later", {})
    return later


def _out_of_range(section: msgspec.Struct) -> Iterator[str]:
    for field in msgspec.structs.fields(section):
        _, limits = without_range(field.type)
        value = getattr(section, field.name)
        if limits is not None and value is not None and (fault := limits.fault(value)):
            yield f"{field.name}: {fault}"


def _relation(prefix: str, fault: str, origin: Mapping[str, str]) -> str:
    """The sentence with its section in front, followed by where each value that it names was set."""
    words = {word.strip(".,;:()`'\"") for word in fault.split()}
    named = sorted({name for word in words for name in (word, prefix + word) if name in origin})
    places = ", ".join(f"{name}: {origin[name]}" for name in named if origin[name] != "default")
    section = f"{prefix.rstrip('.')}: " if prefix else ""
    return f"{section}{fault}" + (f" [{places}]" if places else "")


def _known_keys(cls: type[msgspec.Struct], prefix: str = "") -> dict[str, FieldInfo]:
    """Every dotted name of a settings type, of keys and of sections."""
    known: dict[str, FieldInfo] = {}
    for field in msgspec.structs.fields(cls):
        known[prefix + field.name] = field
        if is_section(field.type):
            known |= _known_keys(field.type, f"{prefix}{field.name}.")
    return known


def _kind(node: YamlNode) -> str:
    if isinstance(node, Text):
        return "value"
    return "group of keys" if isinstance(node, Entries) else "list"


def _longest(names: Mapping[str, str], name: str) -> str:
    """The one of `names` that is `name`, or the nearest section around it; empty when none is."""
    while name and name not in names:
        name = name.rpartition(".")[0]
    return name
