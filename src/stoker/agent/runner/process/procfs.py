"""Processes as /proc shows them: their parents, sessions, births and task marks.

Source: proc(5). A process is known by pid and birth (field 22 of /proc/PID/stat, clock ticks since boot), so a pid
that was reused isn't mistaken. A zombie has ended: it reads as gone.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Container
    from typing import Final

MARK_NAME: Final = "STOKER_TASK_MARK"
"""Environment variable of every task: `JOB.ATTEMPT.RANK.RANDOM`."""
_SHELLS: Final = ("sh", "dash", "bash", "busybox", "ash", "zsh", "ksh", "mksh", "ksh93", "csh", "tcsh", "fish")
_INITS: Final = (b"docker-init", b"tini", b"catatonit", b"podman-init")
_ENVIRON_BYTES_MAX: Final = 4 * 1024 * 1024
"""Linux keeps arguments and environment together below a quarter of the stack limit, 2 MiB by default."""
_LISTS_MAX: Final = 16
"""A machine where processes appear in each of that many lists is busy; to be missed there, one would have to hand on to
a child in every one of them, each time just before it is looked at."""
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


class Proc:
    """One living process."""

    __slots__ = ("birth", "parent", "pid", "session")

    def __init__(self, pid: int, parent: int, session: int, birth: int) -> None:
        self.pid = pid
        self.parent = parent
        self.session = session
        self.birth = birth

    @property
    def birth_s(self) -> float:
        """Seconds since boot."""
        return self.birth / _TICKS_PER_S


def read_proc(pid: int) -> Proc | None:
    """Return the process of this pid. None = there is none, or it is a zombie."""
    text = read_file(f"/proc/{pid}/stat", 4096)
    # The name in brackets may itself hold blanks and brackets.
    fields = text[text.rfind(b")") + 2 :].split()
    if len(fields) < 20 or fields[0] in (b"Z", b"X", b"x"):
        return None
    return Proc(pid, int(fields[1]), int(fields[3]), int(fields[19]))


def process_name(pid: int) -> str:
    """Return the name of the program of a process. Empty = there is none of this pid that can be seen."""
    return read_file(f"/proc/{pid}/comm", 64).decode(errors="replace").strip()


def same(pid: int, birth: int) -> bool:
    """Return True if the process that was born then still lives under this pid."""
    proc = read_proc(pid)
    return proc is not None and proc.birth == birth


def send(proc: Proc, number: int) -> None:
    """Send a signal to this very process, and to none that was given its pid meanwhile.

    The descriptor is opened first and the birth checked after, so the pid can't change hands in between. A process that
    is gone needs none; one that we may not signal keeps its task `ending`.
    """
    with suppress(ProcessLookupError, PermissionError):
        fd = os.pidfd_open(proc.pid)
        try:
            if same(proc.pid, proc.birth):
                signal.pidfd_send_signal(fd, number)
        finally:
            os.close(fd)


def every_proc() -> dict[int, Proc]:
    """Return all living processes by pid, ours included."""
    return {proc.pid: proc for proc in _all_of(_all_listed)}


def living_children(but: Container[int]) -> list[Proc]:
    """Return this process's children that aren't zombies, without those of `but`, which aren't even looked at."""
    me = os.getpid()
    return [proc for proc in _all_of(_children_listed, but) if proc.parent == me]


def _all_of(listed: Callable[[], list[int]], but: Container[int] = ()) -> list[Proc]:
    """The living ones. One that dies between being listed and being looked at may leave children that aren't in the
    list, so it is made anew until it holds nobody new: only then does an empty answer mean that nobody is left."""
    seen: dict[int, Proc | None] = {}
    for _ in range(_LISTS_MAX):
        fresh = [pid for pid in listed() if pid not in seen and pid not in but]
        if not fresh:
            break
        for pid in fresh:
            seen[pid] = read_proc(pid)
    return [proc for proc in seen.values() if proc is not None]


def _all_listed() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _children_listed() -> list[int]:
    """Zombies included. One read where the kernel has the list; else everybody, to be looked at."""
    try:
        fd = os.open(f"/proc/self/task/{os.getpid()}/children", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return _all_listed()
    listed = b""
    try:
        while part := os.read(fd, 65536):
            listed += part
    finally:
        os.close(fd)
    return [int(pid) for pid in listed.split()]


def with_descendants(roots: Container[int], procs: dict[int, Proc]) -> list[Proc]:
    """Return the processes of `procs` that are in `roots` or descend from one that is."""
    children: dict[int, list[Proc]] = {}
    for proc in procs.values():
        children.setdefault(proc.parent, []).append(proc)
    found = {proc.pid: proc for proc in procs.values() if proc.pid in roots}
    todo = list(found.values())
    while todo:
        for child in children.get(todo.pop().pid, ()):
            if child.pid not in found:
                found[child.pid] = child
                todo.append(child)
    return list(found.values())


def mark_of(pid: int, name: str = MARK_NAME) -> str:
    """Return a mark, that of its task, in the environment that a process was started with. Empty = none, or unreadable.

    `name`: the variable that holds it.
    """
    wanted = f"{name}=".encode()
    text = read_file(f"/proc/{pid}/environ", _ENVIRON_BYTES_MAX)
    if not text.startswith(wanted):
        at = text.find(b"\0" + wanted)
        if at < 0:
            return ""
        text = text[at + 1 :]
    return text[len(wanted) :].split(b"\0", 1)[0].decode("ascii", "replace")


def kill_marked(name: str, mark: str) -> None:
    """Kill whatever was started with this mark in that variable, and what descends from it, whatever its session is."""
    for _ in range(_LISTS_MAX):
        procs = every_proc()
        roots = {pid for pid in procs if mark_of(pid, name) == mark}
        if not roots:
            return
        for proc in with_descendants(roots, procs):
            send(proc, signal.SIGKILL)


def catches(pid: int, number: int) -> bool:
    """Return True if the process has a handler for this signal. Source: SigCgt in proc(5)."""
    caught = _status(pid, b"SigCgt:")
    return bool(caught and int(caught[0], 16) >> (number - 1) & 1)


def uid_of(pid: int) -> int | None:
    """Return the real uid of a process; None = it is gone.

    The owner of /proc/PID won't do: a process can make that root by itself.
    """
    uids = _status(pid, b"Uid:")
    return int(uids[0]) if uids else None


def threads_of(uid: int) -> int:
    """Return how many threads the living processes of an account have: what RLIMIT_NPROC counts."""
    return sum(int(word) for pid in _all_listed() if uid_of(pid) == uid for word in _status(pid, b"Threads:"))


def _status(pid: int, name: bytes) -> list[bytes]:
    """The words of one line of /proc/PID/status."""
    for line in read_file(f"/proc/{pid}/status", 8192).splitlines():
        if line.startswith(name):
            return line.split()[1:]
    return []


def is_container_init(pid: int) -> bool:
    """Return True for an init process that a container engine has put before the job's: it only hands signals on."""
    if read_file(f"/proc/{pid}/comm", 64).strip() not in _INITS:
        return False
    inside = _status(pid, b"NSpid:")
    return len(inside) > 1 and inside[-1] == b"1"


def is_shell(pid: int) -> bool:
    """Return True if the program of a process is a shell, whatever name it was called by."""
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe")) in _SHELLS
    except OSError:
        return False


def writes_to_pipe(pid: int, inode: int) -> bool:
    """Return True if the standard output or error of this process is that pipe."""
    name = f"pipe:[{inode}]"
    for fd in (1, 2):
        try:
            if os.readlink(f"/proc/{pid}/fd/{fd}") == name:
                return True
        except OSError:
            continue
    return False


def boot_id() -> str:
    """Return the id of this boot of the machine."""
    return read_file("/proc/sys/kernel/random/boot_id", 64).decode().strip()


def read_file(path: str, limit: int = 1 << 24) -> bytes:
    """Return up to `limit` bytes of a kernel's file; none when it isn't there (any more) or isn't ours to read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    parts = []
    try:
        while limit > 0 and (part := os.read(fd, min(limit, 65536))):
            parts.append(part)
            limit -= len(part)
    except OSError:
        pass
    finally:
        os.close(fd)
    return b"".join(parts)
