"""A program in a container as the client on its node signals it: by the process that can be seen from outside.

Engines send signals to a container's first process only, and to nothing that was executed beside it. The kernel knows
each process of a container by a number out here too, which the engine tells; the mark in its environment says that the
number is of this machine's kernel, and not of one that only the engine sees.

An engine may tell the number before the process has become the program, which only then has the mark: so it is looked
for until it is found.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress

from stoker.agent.runner.process import procfs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

_FOREGROUND_FIELD: Final = 5
"""Of /proc/PID/stat, after the state: group in the foreground of its terminal. Source: proc(5)."""


class ContainedProgram:
    """The first process of a container, or of what is executed in one."""

    def __init__(self, pid: int, mark: str, name: str = procfs.MARK_NAME) -> None:
        """`name`: the variable that has this mark in its environment."""
        self._pid, self._mark, self._name = pid, mark, name
        self._found: procfs.Proc | None = None

    @property
    def is_seen(self) -> bool:
        """Whether it can be signalled from here."""
        return self._proc is not None

    @property
    def may_be_seen(self) -> bool:
        """Whether it can be signalled from here, or may be soon: a process with its number is here."""
        return self.is_seen or (self._found is None and self._pid > 0 and procfs.read_proc(self._pid) is not None)

    @property
    def _proc(self) -> procfs.Proc | None:
        if self._found is None and self._pid > 0 and procfs.mark_of(self._pid, self._name) == self._mark:
            self._found = procfs.read_proc(self._pid)
        found = self._found
        return found if found is not None and procfs.same(found.pid, found.birth) else None

    def signal(self, number: int) -> None:
        """Signal the processes in the foreground of its terminal; without one, its group."""
        proc = self._proc
        if proc is not None:
            self._send(_foreground(proc) or proc.pid, number)

    def hang_up(self) -> None:
        """Send what a terminal sends that is closed; one that is stopped must wake to hear it."""
        proc = self._proc
        if proc is None:
            return
        groups, foreground = [proc.pid], _foreground(proc)
        leader = procfs.read_proc(foreground) if foreground else None
        # An init process of the engine hands on to its child what it gets.
        if leader is not None and not (leader.parent == proc.pid and procfs.is_container_init(proc.pid)):
            groups.append(foreground)
        for group in dict.fromkeys(groups):
            self._send(group, signal.SIGHUP)
            self._send(group, signal.SIGCONT)

    def kill(self) -> None:
        """Kill it, and all that is in its session."""
        first = self._proc
        if first is not None:
            for proc in procfs.every_proc().values():
                if proc.session == first.pid and proc.birth >= first.birth:
                    procfs.send(proc, signal.SIGKILL)

    def _send(self, group: int, number: int) -> None:
        if group > 1:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(group, number)


def _foreground(proc: procfs.Proc) -> int:
    """Process group in the foreground of its terminal; 0 = it has none, or can't be seen."""
    text = procfs.read_file(f"/proc/{proc.pid}/stat", 4096)
    fields = text[text.rfind(b")") + 2 :].split()
    return max(0, int(fields[_FOREGROUND_FIELD])) if len(fields) > _FOREGROUND_FIELD else 0
