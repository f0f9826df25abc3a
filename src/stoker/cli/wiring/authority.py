"""Access of `stoker ca` to the certificate authority of a control plane on this machine, running or not.

A running control plane reads what is changed here within seconds.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stoker.adapters.authority import FILE_NAME, Authority
from stoker.adapters.clock import SystemClock
from stoker.agent.settings import AgentSettings
from stoker.brain.domain.errors import StokerError, refuse
from stoker.cli.wiring.settings import load
from stoker.cli.wiring.token_store import as_owner
from stoker.live.settings.control import ControlSettings


def authority_dir(config: Path | None, data_dir: Path | None) -> Path:
    """Return the folder of the authority that settings or a data folder name. Raises: StokerError `bad_settings`."""
    flags: dict[str, object] = {} if data_dir is None else {"data_dir": str(data_dir)}
    settings = load(ControlSettings, config, os.environ, flags, others=(AgentSettings,)).value
    return settings.authority_dir.absolute()


@contextmanager
def authority_in(folder: Path) -> Iterator[Authority]:
    """Open the authority in a folder, as the account that owns it. Raises: StokerError `authority_unusable`."""
    with as_owner(folder):
        if not (folder / FILE_NAME).exists():
            message = f"there is no certificate authority in {folder}"
            hint = "a control plane makes it at its first start; -c names its settings, --data-dir its folder"
            raise StokerError(refuse("authority_unusable", message, hint, path=str(folder)))
        yield Authority(folder, SystemClock().now)
