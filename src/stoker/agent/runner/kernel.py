"""How are the calls made that the standard library lacks?

`fork_into` makes a child that is born inside a version 2 cgroup. Why not let it enter by writing to `cgroup.procs`, as
on version 1: there a single thread moves in 0.1 ms, but a whole process waits for a grace period of the kernel, 6 to
13 ms measured on a quiet machine (kernel 6.18). Source: clone(2), CLONE_INTO_CGROUP, Linux 5.7.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

_PR_SET_NAME: Final = 15
_PR_SET_CHILD_SUBREAPER: Final = 36
_SYS_CLONE3: Final = 435
"""The same on every architecture."""
_CLONE_INTO_CGROUP: Final = 0x200000000
_CLONE_ARGS: Final = struct.Struct("<11Q")
"""flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size, cgroup."""
_NOT_OFFERED: Final = (errno.ENOSYS, errno.EPERM, errno.EINVAL, errno.E2BIG, errno.EOPNOTSUPP)
"""An older kernel, or a container's filter."""

# PyDLL keeps the interpreter's lock, so the child comes back into an interpreter whose only thread it is.
_libc: Final = ctypes.PyDLL(None, use_errno=True)
_refused: list[int] = []


def become_subreaper() -> None:
    """Orphans among our descendants become our children. Source: prctl(2)."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def default_signals(numbers: tuple[int, ...]) -> None:
    """Each of these signals does again what it does by itself. Source: signal(2); SIG_DFL is 0.

    Python's own call turns numbers into members of an enumeration and back, which costs a child that is about to
    become another program 0.2 ms, most of it for pages that it must copy first.
    """
    for number in numbers:
        _libc.signal(number, None)


def ignore_signals(numbers: tuple[int, ...]) -> None:
    """Source: signal(2); SIG_IGN is 1."""
    for number in numbers:
        _libc.signal(number, ctypes.c_void_p(1))


def name_process(name: str) -> None:
    """What `ps` and `top` call it; at most 15 characters. Source: prctl(2)."""
    _libc.prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()), 0, 0, 0)


def give_back_memory() -> None:
    """Free memory goes back to the system. Source: malloc_trim(3); a C library without it keeps it."""
    if hasattr(_libc, "malloc_trim"):
        _libc.malloc_trim(0)


def fork_into(folder: str) -> tuple[int, bool]:
    """Like os.fork: (pid or 0, whether the child is in the version 2 cgroup `folder`). Empty = in none.

    Where the kernel can't, the child is made outside and must enter by itself. Raises OSError.
    """
    if not folder or _refused:
        return os.fork(), False
    door = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        arguments = _CLONE_ARGS.pack(_CLONE_INTO_CGROUP, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, door)
        pid = _libc.syscall(_SYS_CLONE3, ctypes.c_char_p(arguments), ctypes.c_size_t(len(arguments)))
        if pid >= 0:
            return pid, True
        number = ctypes.get_errno()
        if number not in _NOT_OFFERED:
            raise OSError(number, os.strerror(number), folder)
        _refused.append(number)
        return os.fork(), False
    finally:
        os.close(door)
