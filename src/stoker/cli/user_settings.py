"""What does a person keep for all commands?

Read only where there is such a file: most who type a command have none, and it must not cost them anything.
"""

from dataclasses import dataclass
from pathlib import Path

from stoker.adapters.settings.loader import load


@dataclass(frozen=True, slots=True, kw_only=True)
class UserSettings:
    """The keys of `~/.config/stoker/config.yaml`."""

    server: str = ""
    """Which control plane to ask; commas between several. Empty = http://127.0.0.1:8080."""
    token: str = ""
    """What to show it. Empty = nothing."""


def read_settings(path: str) -> UserSettings:
    """Raises: StokerError `bad_settings`."""
    return load(UserSettings, Path(path), {}, {}).value
