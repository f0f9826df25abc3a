"""Settings as the command line reads them: a daemon's file with the environment and flags, and a person's own file."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from stoker.adapters.atomic_file import write_atomic
from stoker.adapters.settings.loader import load, require
from stoker.brain.domain.errors import refusal_error
from stoker.brain.domain.policy import Policy
from stoker.cli.display.yaml_text import yaml_text
from stoker.live.settings.control import ControlSettings
from stoker.live.settings.policy import KEYS

__all__ = ["UserSettings", "changed_policy", "load", "read_user_settings", "require", "write_user_settings"]

CA_NAME: Final = "ca.pem"


def changed_policy(base: Policy, changes: Mapping[str, str]) -> Policy:
    """Return a policy with other values for some keys, each as in the section `policy` of control.yaml.

    Raises: StokerError `bad_settings` for a key that isn't there, or a value out of its range.
    """
    wanted = {f"policy.{key.removeprefix('policy.')}": value for key, value in changes.items()}
    told = load(ControlSettings, None, {}, wanted).value.as_policy()
    return replace(base, **{name: getattr(told, name) for name, key in KEYS.items() if f"policy.{key}" in wanted})


class UserSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of `~/.config/stoker/config.yaml`, which hold for all commands."""

    server: str = ""
    """Which control plane to ask; commas between several. Empty = http://127.0.0.1:8080."""
    token: str = ""
    """What to show it. Empty = nothing."""
    ca: str = ""
    """File with the certificates of authorities that the server is trusted by, as PEM. Empty = the authority that the
    token names, or else those of this system."""
    insecure: bool = False
    """Whether a token goes over plain http to whoever answers: also to another machine, and whoever is between can read
    it."""


def write_user_settings(path: Path, settings: UserSettings, ca: bytes = b"") -> None:
    """Replace a person's settings file, readable by its owner alone; `ca` becomes the file `ca.pem` beside it.

    Raises: StokerError `config_unwritable`.
    """
    path = Path(os.path.realpath(path))  # one that is a link to elsewhere stays one
    said = {key: value for key, value in msgspec.structs.asdict(settings).items() if value}
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if ca:
            write_atomic(path.with_name(CA_NAME), ca)
            said["ca"] = str(path.with_name(CA_NAME))
        write_atomic(path, yaml_text(said).encode() if said else b"")
    except OSError as fault:
        message = f"{path} can't be written: {fault.strerror or fault}"
        raise refusal_error("config_unwritable", message, "XDG_CONFIG_HOME names another folder") from fault


def read_user_settings(path: str) -> UserSettings:
    """Read a person's settings file. Raises: StokerError `bad_settings`."""
    return load(UserSettings, Path(path), {}, {}).value
