"""What does a job find on this node besides what the control plane gave it?

The control plane composes the environment (`brain/domain/environment.py`); here the node adds what only it knows, and
never overrides a word of it; but a job that runs as another account than the agent's gets HOME, USER, LOGNAME and SHELL
of that account from the runner. TMPDIR is left alone: a job's temporary files go where the machine's do.

Source: the variables are those that POSIX says login sets (IEEE 1003.1, 8.3).
"""

import os
import pwd
from collections.abc import Mapping
from typing import Final, Protocol

from stoker.brain.domain.ids import JobId

DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CHECKPOINT_DIR: Final = "STOKER_CHECKPOINT_DIR"


class Folders(Protocol):
    """Where jobs may keep checkpoints. `adapters/checkpoint_folders.py` stands behind it."""

    async def claim(self, job: JobId) -> str:
        """The path of the job's folder, which all its attempts and ranks share; empty = there is none. It is made by
        the job's own process, so that nobody else waits for a storage that hangs.

        Raises: OSError with the path when the job can't have it now.
        """
        ...

    def close(self, job: JobId) -> None:
        """No task of the job is left here: an empty folder goes, one with content stays for the next attempt."""
        ...


class NoFolders:
    """A node that keeps no checkpoints: jobs see no STOKER_CHECKPOINT_DIR."""

    async def claim(self, job: JobId) -> str:
        return ""

    def close(self, job: JobId) -> None:
        return None


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
