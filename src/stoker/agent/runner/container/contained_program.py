"""A program in a container as the client on its node signals it: by the process that can be seen from outside.

Engines send signals to a container's first process only, and to nothing that was executed beside it. The kernel knows
each process of a container by a number out here too, which the engine tells; the mark in its environment says that the
number is of this machine's kernel, and not of one that only the engine sees.
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
        self._proc = procfs.read_proc(pid) if pid > 0 and procfs.mark_of(pid, name) == mark else None

    @property
    def is_seen(self) -> bool:
        """Whether it can be signalled from here."""
        return self._proc is not None and procfs.same(self._proc.pid, self._proc.birth)

    def signal(self, number: int) -> None:
        """Signal the processes in the foreground of its terminal; without one, its group."""
        if self._proc is not None and self.is_seen:
            self._send(self._foreground() or self._proc.pid, number)

    def hang_up(self) -> None:
        """Send what a terminal sends that is closed; one that is stopped must wake to hear it."""
        if self._proc is None or not self.is_seen:
            return
        groups, foreground = [self._proc.pid], self._foreground()
        leader = procfs.read_proc(foreground) if foreground else None
        # An init process of the engine hands on to its child what it gets.
        if leader is not None and not (leader.parent == self._proc.pid and procfs.is_container_init(self._proc.pid)):
            groups.append(foreground)
        for group in dict.fromkeys(groups):
            self._send(group, signal.SIGHUP)
            self._send(group, signal.SIGCONT)

    def kill(self) -> None:
        """Kill it, and all that is in its session."""
        if self._proc is not None and self.is_seen:
            for proc in procfs.every_proc().values():
                if proc.session == self._proc.pid and proc.birth >= self._proc.birth:
                    procfs.send(proc, signal.SIGKILL)

    def _foreground(self) -> int:
        """Process group in the foreground of its terminal; 0 = it has none, or can't be seen."""
        assert self._proc is not None, "a process that can't be seen"
        text = procfs.read_file(f"/proc/{self._proc.pid}/stat", 4096)
        fields = text[text.rfind(b")") + 2 :].split()
        return max(0, int(fields[_FOREGROUND_FIELD])) if len(fields) > _FOREGROUND_FIELD else 0

    def _send(self, group: int, number: int) -> None:
        if group > 1:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(group, number)
