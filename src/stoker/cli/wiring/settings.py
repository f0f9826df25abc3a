"""Settings as the command line reads them: a daemon's file with the environment and flags, and a person's own file."""

from pathlib import Path

import msgspec

from stoker.adapters.settings.loader import load, require

__all__ = ["UserSettings", "load", "read_user_settings", "require"]


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


def read_user_settings(path: str) -> UserSettings:
    """Read a person's settings file. Raises: StokerError `bad_settings`."""
    return load(UserSettings, Path(path), {}, {}).value
