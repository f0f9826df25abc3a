"""Guard of the runner, which ends the tasks when the runner can't any more.

It is the runner's parent: it forks the runner, and then only watches it. Both are subreapers, so when the runner
dies all that it ever started descends from the guard, whatever sessions, cgroups and environments it took on. That is
all the guard needs: it kills what descends from it until nothing does, and leaves. It asks no record, no mark and no
disk. The next runner reads the records, finds nothing alive, and says what became of it.

Rules: G1  when the runner has ended, however it did, all that it started is killed at once
       G6  so is what a container engine has started in the cgroups of its tasks, which are those that there were when
           the runner ended
       G2  a runner that doesn't act on a lease that is over, because it was stopped or its disk hangs, is killed
           `STUCK_S` later with all that it started, also what has no lease
       G3  neither a suspend nor a stop of the guard itself makes a runner stuck: it is given the same time after it
       G4  a runner whose guard has died says so: it can't promise any more that its tasks end with their leases
       G5  the next runner says what became of tasks only when an earlier guard has left, or `HANDOVER_S` later: a
           process without mark, cgroup and session of its task is known to that guard alone

What remains, of double faults: guard and runner are killed together, or the guard is stopped while the runner is
killed. Then leaders die by the kernel's hand (`kernel.die_with`), and what they had begotten lives on until the next
runner has swept by cgroup, mark and session. A living agent starts that one at once; if the agent is dead too, the next
agent does.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import select
import signal
import struct
from contextlib import suppress

from stoker.agent.runner import clock
from stoker.agent.runner.files import write_file
from stoker.agent.runner.process import procfs
from stoker.agent.runner.process.cgroup import TaskCgroup, ours
from stoker.agent.runner.process.kernel import become_subreaper, ignore_signals, name_process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

NEVER: Final = float("inf")
STUCK_S: Final = 3.0
"""A runner acts on a lease within a tenth of a second; a wait for a slow disk may come in between."""
LOOK_S: Final = 1.0
"""Between two looks at a runner that lives. Both together are half of what a lease may take to have its effect."""
HANDOVER_S: Final = 5.0
"""A guard takes some milliseconds, unless the kernel won't let go of a process."""
LOCK_NAME: Final = "guard.lock"
PROCESS_NAME: Final = "stoker-guard"
_DUE: Final = struct.Struct("d")
_PAUSE_FIRST_S: Final = 0.001
_PAUSE_MAX_S: Final = 1.0
_OOM_SCORE: Final = "-900"
"""When memory runs out, jobs are to go, and not who must be able to end them."""


class Guard:
    """The guard as its runner sees it."""

    def __init__(self, shared: mmap.mmap, lock: int, descriptor: int) -> None:
        self._shared = shared
        self._lock = lock
        self._told_s = NEVER
        self.descriptor = descriptor
        """Becomes readable when the guard has died (G4)."""

    def succeed(self) -> None:
        """Wait until an earlier guard has left, within a bound (G5), and leave the lock to our guard alone."""
        until_s = clock.boot_s() + HANDOVER_S
        while not locked(self._lock) and clock.boot_s() < until_s:
            clock.pause(_PAUSE_FIRST_S)
        os.close(self._lock)

    def expect(self, due_s: float) -> None:
        """Tell the guard the boot time at which the next lease is over. NEVER = there is none."""
        if due_s != self._told_s:
            self._told_s = due_s
            _DUE.pack_into(self._shared, 0, due_s)


class Patience:
    """Wait of the guard for a runner that lets a lease pass (G2, G3)."""

    def __init__(self) -> None:
        self._due_s = NEVER
        self._seen_s = 0.0

    def is_over(self, due_s: float, boot_s: float, awake_s: float) -> bool:
        """Return True once a lease has been over for as long as a runner that works may take to act on it.

        `boot_s` and `awake_s` are the time now on both clocks.
        """
        if boot_s <= due_s:
            self._due_s = NEVER
            return False
        if due_s != self._due_s:
            self._due_s, self._seen_s = due_s, awake_s
        return awake_s - self._seen_s >= STUCK_S


def guarded(data_dir: str) -> Guard | None:
    """Fork a guard, and return it to its child, the runner; None = this system can't have one.

    The parent, which is the guard, never returns: it exits as the runner exits.
    """
    guard = os.getpid()
    try:
        lock = os.open(f"{data_dir}/{LOCK_NAME}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.close(os.pidfd_open(guard))
        shared = mmap.mmap(-1, mmap.PAGESIZE)
        _DUE.pack_into(shared, 0, NEVER)
        runner = os.fork()
    except OSError:
        return None
    if runner:
        status = 1
        try:
            status = _watch(runner, shared, data_dir)
        finally:
            os._exit(status)
    become_subreaper()
    os.setsid()  # a signal to the group of one isn't meant for the other
    try:
        descriptor = os.pidfd_open(guard)
    except ProcessLookupError:
        return None
    return Guard(shared, lock, descriptor) if os.getppid() == guard else None


def locked(lock: int) -> bool:
    """Lock an open file; False = somebody else holds it.

    Processes that share what was opened share the lock, which lasts until none of them has it open.
    """
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


# --- in the guard -----------------------------------------------------------------------------------------------


def _watch(runner: int, shared: mmap.mmap, data_dir: str) -> int:
    """Until nothing that the runner started is left. Answers the runner's exit status."""
    ignore_signals((signal.SIGHUP, signal.SIGINT, signal.SIGTERM))
    name_process(PROCESS_NAME)
    with suppress(OSError):  # where we may
        write_file("/proc/self/oom_score_adj", _OOM_SCORE)
    patience, ended = Patience(), select.poll()
    ended.register(os.pidfd_open(runner), select.POLLIN)
    while not ended.poll(LOOK_S * 1000):
        if patience.is_over(_DUE.unpack_from(shared)[0], clock.boot_s(), clock.awake_s()):
            break
    groups: list[TaskCgroup] = []
    with suppress(OSError):
        groups = [TaskCgroup([folder]) for folder in ours(data_dir)]
    return _end_all(runner, groups)


def _end_all(runner: int, groups: list[TaskCgroup]) -> int:
    """G1. The runner itself goes first, if it lives: it is to start nothing more."""
    status, me, pause_s = 1, os.getpid(), _PAUSE_FIRST_S
    while True:
        with suppress(ChildProcessError):
            while (reaped := os.waitpid(-1, os.WNOHANG))[0]:
                if reaped[0] == runner:
                    status = os.waitstatus_to_exitcode(reaped[1])
                pause_s = _PAUSE_FIRST_S
        below = [proc for proc in procfs.with_descendants({me}, procfs.every_proc()) if proc.pid != me]
        contained = [group for group in groups if group.pids()]  # G6
        if not below and not contained and _is_childless():
            return status if status >= 0 else 128 - status
        for proc in below:
            procfs.send(proc, signal.SIGKILL)
        for group in contained:
            group.kill()
        clock.pause(pause_s)
        pause_s = min(2 * pause_s, _PAUSE_MAX_S)


def _is_childless() -> bool:
    """Also of zombies, whose own children may have come to us since the list was made."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return False
