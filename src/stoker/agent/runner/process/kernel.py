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

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_DUMPABLE: Final = 4
_PR_SET_NAME: Final = 15
_PR_SET_CHILD_SUBREAPER: Final = 36
_PR_SET_NO_NEW_PRIVS: Final = 38
_SYS_KEYCTL_BY_MACHINE: Final = {"x86_64": 250, "aarch64": 219, "riscv64": 219, "ppc64le": 271, "s390x": 280}
_SYS_KEYCTL: Final = _SYS_KEYCTL_BY_MACHINE.get(os.uname().machine)
_KEYCTL_JOIN_SESSION_KEYRING: Final = 1
_CAPABILITIES_VERSION: Final = 0x20080522
"""With 64 capabilities in two halves."""
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


def forbid_new_privileges() -> None:
    """No program gives this process or any descendant more than it has, setuid or not. There is no way back.
    Source: prctl(2). Raises OSError."""
    if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no_new_privs can't be set: this kernel is older than Linux 3.5")


def drop_capabilities() -> None:
    """All of them: effective, permitted and inheritable, and with these the ambient ones. The bounding set stays: with
    no_new_privs nothing can be gained from it. Source: capset(2), capabilities(7). Raises OSError."""
    header = struct.pack("=Ii", _CAPABILITIES_VERSION, 0)
    if _libc.capset(ctypes.c_char_p(header), ctypes.c_char_p(bytes(24))) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "capset")


def close_to_tracers() -> None:
    """No other process of our account may look into our memory, nor is it ever written to a core file.
    Source: PR_SET_DUMPABLE in prctl(2), ptrace(2)."""
    _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def die_with(parent: int) -> None:
    """The kernel kills this process when that one, its parent, dies, but not our children. To be called once nothing
    will change our account any more, which would undo it. Source: PR_SET_PDEATHSIG in prctl(2)."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it had died before
        os.kill(os.getpid(), signal.SIGKILL)


def leave_keyring() -> None:
    """Have an empty session keyring instead of the one we were born with, where the kernel has such things.
    Source: keyctl(2), session-keyring(7)."""
    if _SYS_KEYCTL is not None:
        _libc.syscall(_SYS_KEYCTL, _KEYCTL_JOIN_SESSION_KEYRING, None)


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
