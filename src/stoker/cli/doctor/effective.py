"""Which settings hold, and where did each come from?

Rules: E1  a file is of the daemon that knows more of its keys; a tie is settled by its name, else it must be said.
           Of a file that can't be read both would say the same
       E2  a password inside an address is never shown
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final

import msgspec

from stoker.adapters.settings.loader import Examined, examine
from stoker.adapters.settings.yaml_lines import Entries, YamlFault, read_yaml
from stoker.agent.settings import AgentSettings
from stoker.brain.domain.errors import StokerError, refuse
from stoker.cli.doctor.finding import Check, CheckResult, fine, wrong
from stoker.live.settings.control import ControlSettings

Settings = ControlSettings | AgentSettings
KINDS: Final[Mapping[str, type[ControlSettings] | type[AgentSettings]]] = {
    "control": ControlSettings,
    "agent": AgentSettings,
}
_PASSWORDS: Final = (
    re.compile(r"(?<=://)([^@:/]*:).*(?=@)"),
    re.compile(r"([?&][^=&]*(?:password|%)[^=&]*=)[^&]*", re.IGNORECASE),
)
"""Rather too much than too little: what libpq can't read is shown too, and a name may have letters written as %XX."""


class Effective(msgspec.Struct, frozen=True, kw_only=True):
    """One value that holds."""

    key: str
    value: str | int | float | bool | list[str] | dict[str, str] | None
    origin: str
    """FILE:LINE, the variable, the flag, or `default`."""


def kind_of(path: Path | None, told: str | None) -> str:
    """E1. Raises: StokerError `which_daemon`."""
    if told or path is None:
        return told or "control"
    named = [kind for kind in KINDS if kind in path.name]
    try:
        root = read_yaml(path)
    except YamlFault:
        return named[0] if len(named) == 1 else "control"  # whoever reads the settings says what is wrong with it
    given = {key.text for key, _ in root.entries} if isinstance(root, Entries) else set[str]()
    known = {kind: len(given & _sections(cls)) for kind, cls in KINDS.items()}
    if known["control"] != known["agent"]:
        return max(known, key=lambda kind: known[kind])
    if len(named) == 1:
        return named[0]
    raise StokerError(
        refuse(
            "which_daemon",
            f"{path} could be of `stoker control` as well as of `stoker agent`",
            "say which: --kind control or --kind agent",
        )
    )


def _sections(cls: type) -> set[str]:
    later: Mapping[str, str] = getattr(cls, "later", {})
    return {field.name for field in fields(cls)} | {key for key in later if "." not in key}


def read(kind: str, path: Path | None, environ: Mapping[str, str], flags: Mapping[str, object]) -> Examined[Settings]:
    """The settings as that daemon would read them, or every fault."""
    if kind == "agent":
        return examine(AgentSettings, path, environ, flags, others=(ControlSettings,))
    return examine(ControlSettings, path, environ, flags, others=(AgentSettings,))


def check(seen: Examined[Settings], path: Path | None) -> Check:
    return Check("settings", lambda: judged(seen, path))


def judged(seen: Examined[Settings], path: Path | None) -> Iterator[CheckResult]:
    if seen.value is None:
        for fault in seen.faults:
            yield wrong(fault, seen.hint)
        return
    given = sum(origin != "default" for origin in seen.origin.values())
    yield fine(f"{path or 'without a file'}: {given} of {len(seen.origin)} values are set, the others are defaults")


def rows(settings: Settings, origin: Mapping[str, str]) -> list[Effective]:
    """Every value, in the order of the reference page."""
    return [Effective(key=key, value=_plain(value), origin=origin[key]) for key, value in _values(settings, "")]


def _values(section: Any, prefix: str) -> Iterator[tuple[str, object]]:  # noqa: ANN401  # any settings type
    for field in fields(section):
        value = getattr(section, field.name)
        if is_dataclass(value):
            yield from _values(value, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}", value


def _plain(value: object) -> str | int | float | bool | list[str] | dict[str, str] | None:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(key): _shown(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(each) for each in value]
    return _shown(value)


def _shown(value: object) -> str:
    """E2."""
    shown = str(value.value if isinstance(value, Enum) else value)
    for password in _PASSWORDS:
        shown = password.sub(r"\1***", shown)
    return shown


def one_line(value: object) -> str:
    """As it would be written after `key:` in the file."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {each}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(value) + "]"
    return '""' if value == "" else str(value)
