"""With which token does this agent join?

Read anew at each connect, so that a token is changed by replacing the file: no agent has to be restarted for it.

Rules: T1  a file that others than its owner may read or write is refused, and so is one whose owner is neither this
           account nor root: whoever has the token may join as a node
       T2  a file that is missing, empty, no file at all, or holds anything but one token is refused
       T3  no refusal repeats what the file holds
"""

import os
import stat
from pathlib import Path
from typing import Final

from stoker.brain.domain.errors import StokerError, refuse
from stoker.wire.token import is_token

BYTES_MAX: Final = 1_024
"""A token has 59 bytes; a longer file is something else."""
_ROOT: Final = 0
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_MAKE: Final = "`stoker token create --role agent --data-dir D`, on the control plane's machine, prints one"


class TokenFile:
    """The file that `control.token_file` names."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> str:
        """The token. Raises: StokerError `bad_token_file`."""
        try:
            # A pipe that nobody writes to must not hold up the agent.
            fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, ValueError) as fault:
            reason = (fault.strerror if isinstance(fault, OSError) else None) or str(fault)
            raise self._refused(f"can't be read: {reason}", f"correct `control.token_file`; {_MAKE}") from fault
        try:
            status = os.fstat(fd)
            self._check(status)
            content = os.read(fd, BYTES_MAX + 1)
        except OSError as fault:
            raise self._refused(f"can't be read: {fault.strerror}", "is its disk or share in order?") from fault
        finally:
            os.close(fd)
        return self._token(content)

    def _check(self, status: os.stat_result) -> None:
        if not stat.S_ISREG(status.st_mode):
            raise self._refused("is no regular file", "name a file that holds one token")
        ours = os.geteuid()
        if status.st_uid not in (ours, _ROOT):
            raise self._refused(f"belongs to another account (uid {status.st_uid})", f"`chown {ours} {self.path}`")
        if status.st_mode & _OTHERS:
            mode = stat.S_IMODE(status.st_mode)
            raise self._refused(f"is open to others than its owner (mode {mode:04o})", f"`chmod 600 {self.path}`")

    def _token(self, content: bytes) -> str:
        text = content.decode("ascii", "replace").strip()
        if not text:
            raise self._refused("is empty", f"put a token into it; {_MAKE}")
        if not is_token(text):
            raise self._refused("doesn't hold one token and nothing else", f"put a token into it; {_MAKE}")
        return text

    def _refused(self, what: str, hint: str) -> StokerError:
        return StokerError(refuse("bad_token_file", f"the token file {self.path} {what}", hint, path=str(self.path)))
