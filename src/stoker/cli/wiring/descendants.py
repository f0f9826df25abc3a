"""Which processes are below this one, and how are they ended for certain?

Rules: D1  after `adopt_orphans` a grandchild whose parent dies becomes our child instead of getting lost
       D2  a process is killed only while it is below us: ids are looked up anew each time, never remembered
Source: proc(5), prctl(2) PR_SET_CHILD_SUBREAPER.
"""

import ctypes
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Final

_PR_SET_CHILD_SUBREAPER: Final = 36
_PROC: Final = Path("/proc")


class Descendants:
    """The processes below this one."""

    def adopt_orphans(self) -> None:
        """Rule D1. Raises: OSError from the kernel."""
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")

    def living(self) -> list[int]:
        """Ids of every descendant that isn't a zombie, parents first."""
        children: dict[int, list[int]] = {}
        dead = set()
        for pid, parent, state in _processes():
            children.setdefault(parent, []).append(pid)
            if state == "Z":
                dead.add(pid)
        found: list[int] = []
        todo = [os.getpid()]
        while todo:
            below = children.get(todo.pop(), [])
            found += below
            todo += below
        return [pid for pid in found if pid not in dead]

    def kill(self) -> bool:
        """SIGKILL to every descendant. False when there was none left."""
        living = self.living()
        for pid in living:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return bool(living)


def _processes() -> list[tuple[int, int, str]]:
    """(id, parent's id, state) of every process that can be read."""
    found = []
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                # The name in brackets may hold anything, also brackets and blanks.
                fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
                found.append((int(entry.name), int(fields[1]), fields[0].decode()))
    return found
