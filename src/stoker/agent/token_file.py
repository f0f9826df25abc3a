"""Token that this agent joins with, from the file that `control.token_file` names.

It is read anew at each connect, so that a token is changed by replacing the file: no agent has to be restarted for it.

Rules: T1  a file that others than its owner may read or write is refused, and so is one whose owner is neither this
           account nor root: the token lets join as a node
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


def read_token(path: Path) -> str:
    """Return the token in a file. Raises: StokerError `bad_token_file`."""
    try:
        # A pipe that nobody writes to must not hold up the agent.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as fault:
        reason = (fault.strerror if isinstance(fault, OSError) else None) or str(fault)
        raise _refused(path, f"can't be read: {reason}", f"correct `control.token_file`; {_MAKE}") from fault
    try:
        _check(path, os.fstat(fd))
        text = os.read(fd, BYTES_MAX + 1).decode("ascii", "replace").strip()
    except OSError as fault:
        raise _refused(path, f"can't be read: {fault.strerror}", "is its disk or share in order?") from fault
    finally:
        os.close(fd)
    if not text:
        raise _refused(path, "is empty", f"put a token into it; {_MAKE}")
    if not is_token(text):
        raise _refused(path, "doesn't hold one token and nothing else", f"put a token into it; {_MAKE}")
    return text


def _check(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise _refused(path, "is no regular file", "name a file that holds one token")
    ours = os.geteuid()
    if status.st_uid not in (ours, _ROOT):
        raise _refused(path, f"belongs to another account (uid {status.st_uid})", f"`chown {ours} {path}`")
    if status.st_mode & _OTHERS:
        mode = stat.S_IMODE(status.st_mode)
        raise _refused(path, f"is open to others than its owner (mode {mode:04o})", f"`chmod 600 {path}`")


def _refused(path: Path, what: str, hint: str) -> StokerError:
    return StokerError(refuse("bad_token_file", f"the token file {path} {what}", hint, path=str(path)))
