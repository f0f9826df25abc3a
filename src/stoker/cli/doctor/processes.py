"""Names of processes and accounts for findings."""

import os
import pwd
from contextlib import suppress
from pathlib import Path
from typing import Final

WORDS_MAX: Final = 80


def account(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def words_of(pid: int, proc: Path = Path("/proc")) -> str:
    """Return a process's command without the values of its options, where a secret may be."""
    try:
        words = (proc / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return "of another account"
    shown = " ".join(word for word in words[:4] if word and "=" not in word)
    return shown[:WORDS_MAX] or "a kernel thread"


def holder_of(inode: str, proc: Path = Path("/proc")) -> int:
    """The process that has the socket with that inode open; 0 = none that we may look into."""
    wanted = f"socket:[{inode}]"
    for entry in proc.iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):
            for fd in (entry / "fd").iterdir():
                with suppress(OSError):
                    if os.readlink(fd) == wanted:
                        return int(entry.name)
    return 0
