"""Settings as the command line reads them: a daemon's file with the environment and flags, and a person's own files."""

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from stoker.adapters.atomic_file import write_atomic
from stoker.adapters.settings.loader import load, require
from stoker.brain.domain.errors import StokerError, refusal_error
from stoker.brain.domain.policy import Policy
from stoker.cli.display.yaml_text import yaml_text
from stoker.live.settings.control import ControlSettings
from stoker.live.settings.policy import KEYS

__all__ = [
    "UserSettings",
    "changed_policy",
    "forget_authority",
    "forget_user_settings",
    "load",
    "read_user_settings",
    "require",
    "settings_lock",
    "write_present",
    "write_user_settings",
]

_CA_NAME: Final = "ca.pem"
_DEFAULT_NAME: Final = "config.yaml"


def changed_policy(base: Policy, changes: Mapping[str, str]) -> Policy:
    """Return a policy with other values for some keys, each as in the section `policy` of control.yaml.

    Raises: StokerError `bad_settings` for a key that isn't there, or a value out of its range.
    """
    wanted = {f"policy.{key.removeprefix('policy.')}": value for key, value in changes.items()}
    told = load(ControlSettings, None, {}, wanted).value.as_policy()
    return replace(base, **{name: getattr(told, name) for name, key in KEYS.items() if f"policy.{key}" in wanted})


class UserSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of `~/.config/stoker/config.yaml` and of each file in the folder `contexts` beside it."""

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


@contextmanager
def settings_lock(folder: Path) -> Iterator[None]:
    """Have the folder of a person's settings, and let no other command change what is in it.

    Raises: StokerError `config_unwritable`.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as fault:
        raise _unwritable(folder, fault) from fault
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)  # held for as long as a few small files take
        yield
    finally:
        os.close(fd)


def write_user_settings(path: Path, settings: UserSettings, ca: bytes = b"") -> None:
    """Replace a settings file of a person, readable by its owner alone; `ca` becomes a file beside it.

    Raises: StokerError `config_unwritable`.
    """
    path = Path(os.path.realpath(path))  # one that is a link to elsewhere stays one
    said = {key: value for key, value in msgspec.structs.asdict(settings).items() if value}
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if ca:
            write_atomic(_ca_beside(path), ca)
            said["ca"] = str(_ca_beside(path))
        write_atomic(path, yaml_text(said).encode() if said else b"")
    except OSError as fault:
        raise _unwritable(path, fault) from fault


def forget_authority(path: Path) -> None:
    """Remove the authority beside a settings file of a person. Raises: StokerError `config_unwritable`."""
    _remove(_ca_beside(Path(os.path.realpath(path))))


def forget_user_settings(path: Path) -> None:
    """Remove a settings file of a person, and the authority beside it. Raises: StokerError `config_unwritable`."""
    forget_authority(path)
    _remove(path)


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as fault:
        raise _unwritable(path, fault) from fault


def write_present(path: Path, name: str) -> None:
    """Make a context the present one. Raises: StokerError `config_unwritable`."""
    try:
        write_atomic(path, f"{name}\n".encode())
    except OSError as fault:
        raise _unwritable(path, fault) from fault


def _ca_beside(path: Path) -> Path:
    return path.with_name(_CA_NAME) if path.name == _DEFAULT_NAME else path.with_suffix(".pem")


def _unwritable(path: Path, fault: OSError) -> StokerError:
    message = f"{path} can't be written: {fault.strerror or fault}"
    return refusal_error("config_unwritable", message, "XDG_CONFIG_HOME names another folder")


def read_user_settings(path: str) -> UserSettings:
    """Read a settings file of a person. Raises: StokerError `bad_settings`."""
    return load(UserSettings, Path(path), {}, {}).value
