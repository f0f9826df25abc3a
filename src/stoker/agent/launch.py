"""What does a job find on this node besides what the control plane gave it?

The control plane composes the environment (`brain/domain/environment.py`); here the node adds what only it knows, and
never overrides a word of it. TMPDIR is left alone: a job's temporary files go where the machine's do.

Source: the variables are those that POSIX says login sets (IEEE 1003.1, 8.3).
"""

import os
import pwd
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from stoker.brain.domain.ids import JobId

DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CHECKPOINT_DIR: Final = "STOKER_CHECKPOINT_DIR"


class Folders(Protocol):
    """Where jobs may keep checkpoints."""

    def open(self, job: JobId) -> str:
        """Make the job's folder, which all its attempts and ranks share, and answer its path; empty = there is none.
        Raises OSError with the path when it can't be made."""
        ...

    def close(self, job: JobId) -> None:
        """No task of the job is left here: an empty folder goes, one with content stays for the next attempt."""
        ...


class NoFolders:
    """A node that keeps no checkpoints: jobs see no STOKER_CHECKPOINT_DIR."""

    def open(self, job: JobId) -> str:
        return ""

    def close(self, job: JobId) -> None:
        return None


class CheckpointFolders:
    """One folder per job under `root`."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def open(self, job: JobId) -> str:
        folder = self._root / str(job)
        folder.mkdir(parents=True, exist_ok=True)
        return str(folder)

    def close(self, job: JobId) -> None:
        with suppress(OSError):  # not empty, or gone already
            (self._root / str(job)).rmdir()


def account_variables() -> dict[str, str]:
    """PATH, and who the agent's account is. An account without a passwd entry (as in some containers) has no name."""
    variables = {"PATH": DEFAULT_PATH}
    try:
        account = pwd.getpwuid(os.getuid())
    except KeyError:
        return variables | {"HOME": "/"}
    name = account.pw_name
    return variables | {"HOME": account.pw_dir, "LOGNAME": name, "USER": name, "SHELL": account.pw_shell or "/bin/sh"}


def complete_environment(given: Mapping[str, str], node: Mapping[str, str], checkpoint_dir: str) -> dict[str, str]:
    """The whole environment of a process. What the control plane gave wins over the node's own."""
    ours = {CHECKPOINT_DIR: checkpoint_dir} if checkpoint_dir else {}
    return {**node, **ours, **given}
