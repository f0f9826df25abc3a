"""Settings that hold for a daemon, with the origin of each.

Rules: E1  a file is of the daemon that knows more of its keys; a tie is settled by its name, else it must be said.
           Of a file that can't be read both would say the same
       E2  a password inside an address is never shown
"""

import re
from collections.abc import Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Final

import msgspec

from stoker.adapters.settings.loader import Loaded, examine, later_keys
from stoker.adapters.settings.yaml_lines import Entries, YamlFault, read_yaml
from stoker.agent.settings import AgentSettings
from stoker.brain.domain.errors import StokerError, refuse
from stoker.cli.doctor.finding import CheckResult, fine, wrong
from stoker.live.settings.control import ControlSettings

Seen = Loaded[msgspec.Struct | None]
KINDS: Final[Mapping[str, type[msgspec.Struct]]] = {"control": ControlSettings, "agent": AgentSettings}
_PASSWORDS: Final = (
    re.compile(r"(?<=://)([^@:/]*:).*(?=@)"),
    re.compile(r"([?&][^=&]*(?:password|%)[^=&]*=)[^&]*", re.IGNORECASE),
)
"""Rather too much than too little: what libpq can't read is shown too, and a name may have letters written as %XX."""


class Effective(msgspec.Struct, frozen=True, kw_only=True):
    """One setting that holds."""

    key: str
    value: str | int | float | bool | list[str] | dict[str, str] | None
    origin: str
    """FILE:LINE, the variable, the flag, or `default`."""


def kind_of(path: Path | None, told: str | None) -> str:
    """Return the daemon, `control` or `agent`, that a settings file is of (E1); `told` wins over the file.

    Raises: StokerError `which_daemon`.
    """
    if told or path is None:
        return told or "control"
    named = [kind for kind in KINDS if kind in path.name]
    try:
        root = read_yaml(path)
    except YamlFault:
        return named[0] if len(named) == 1 else "control"  # reading the settings then says what is wrong with the file
    given = {key.text for key, _ in root.entries} if isinstance(root, Entries) else set[str]()
    known = {kind: len(given & _sections(cls)) for kind, cls in KINDS.items()}
    if known["control"] != known["agent"]:
        return max(known, key=lambda kind: known[kind])
    if len(named) == 1:
        return named[0]
    message = f"{path} could be of `stoker control` as well as of `stoker agent`"
    raise StokerError(refuse("which_daemon", message, "say which: --kind control or --kind agent"))


def _sections(cls: type[msgspec.Struct]) -> set[str]:
    return {*cls.__struct_fields__, *(key for key in later_keys(cls) if "." not in key)}


def read(kind: str, path: Path | None, environ: Mapping[str, str], flags: Mapping[str, object]) -> Seen:
    """Return the settings as that daemon would read them, or every fault."""
    others = [cls for other, cls in KINDS.items() if other != kind]
    return examine(KINDS[kind], path, environ, flags, others=others)


def judged(seen: Seen, path: Path | None) -> Iterator[CheckResult]:
    """Report each fault, or how many values are set."""
    if seen.value is None:
        for fault in seen.faults:
            yield wrong(fault, seen.hint)
        return
    given = sum(origin != "default" for origin in seen.origin.values())
    yield fine(f"{path or 'without a file'}: {given} of {len(seen.origin)} values are set, the others are defaults")


def rows(settings: msgspec.Struct, origin: Mapping[str, str]) -> list[Effective]:
    """Return every value, in the order of the reference page."""
    return [Effective(key=key, value=_plain(attrgetter(key)(settings)), origin=where) for key, where in origin.items()]


def _plain(value: object) -> str | int | float | bool | list[str] | dict[str, str] | None:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(key): _shown(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(each) for each in value]
    return _shown(value)


def _shown(value: object) -> str:
    """The text of a value without the passwords in it (E2)."""
    if isinstance(value, msgspec.Struct):
        given = {key: _plain(each) for key, each in msgspec.structs.asdict(value).items() if each}
        return "{" + ", ".join(f"{key}: {one_line(each)}" for key, each in given.items()) + "}"
    shown = str(value)
    for password in _PASSWORDS:
        shown = password.sub(r"\1***", shown)
    return shown


def one_line(value: object) -> str:
    """Return a value as it is written after `key:` in a settings file."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {each}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(value) + "]"
    return '""' if value == "" else str(value)
