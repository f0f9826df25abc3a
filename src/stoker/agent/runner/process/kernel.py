"""System calls that the standard library lacks, and what the runner was started with.

`fork_into` makes a child that is born inside a version 2 cgroup. Why not let it enter by writing to `cgroup.procs`, as
on version 1: there a single thread moves in 0.1 ms, but a whole process waits for a grace period of the kernel, 6 to
13 ms measured on a quiet machine (kernel 6.18). Source: clone(2), CLONE_INTO_CGROUP, Linux 5.7.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import resource
import signal
import struct
import sys
import termios

from stoker.agent.runner.files import opened

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
_SYS_QUOTACTL_FD: Final = 443
"""The same on every architecture; Linux 5.14."""
_SET_PROJECT_QUOTA: Final = 0x800008 << 8 | 2
_GET_QUOTA_STATE: Final = ord("X") << 16 | 5 << 8 | 2
_PROJECT_BOUNDS_HOLD: Final = 1 << 5
_DQBLK: Final = struct.Struct("<8QI4x")
"""Hard and soft limit in KiB, usage, inodes, times, which of them are meant."""
_GET_PROJECT: Final = 0x801C581F
_SET_PROJECT: Final = 0x401C5820
_FSXATTR: Final = struct.Struct("<5I8x")
"""Flags, extent size, extents, project, extent size for copies."""
_INHERIT_PROJECT: Final = 0x200
_CLONE_NEWNS: Final = 0x20000
_MS_BIND: Final = 1 << 12
_MS_REC: Final = 1 << 14
_MS_SLAVE: Final = 1 << 19
_NOT_OFFERED: Final = (errno.ENOSYS, errno.EPERM, errno.EINVAL, errno.E2BIG, errno.EOPNOTSUPP)
"""An older kernel, or a container's filter."""

_RLIMIT: Final = struct.Struct("@ll")
"""Soft and hard; -1, as Python has it, is RLIM_INFINITY."""
_OWN_LIMITS: Final = {limit: resource.getrlimit(limit) for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC)}
"""The runner raises its own soft limits of open files and processes; jobs get those that it was started with."""

# PyDLL keeps the interpreter's lock, so the child comes back into an interpreter whose only thread it is.
_libc: Final = ctypes.PyDLL(None, use_errno=True)
_refused: list[int] = []


def raise_limits() -> tuple[int, int]:
    """Allow this process as many open files and processes as the system does.

    Returns how many files it may have open, and how many processes its account may, by the lower limit that its jobs
    get. Negative = no limit: root is held to no number of processes. Source: setrlimit(2).
    """
    for limit, (_, hard) in _OWN_LIMITS.items():
        resource.setrlimit(limit, (hard, hard))
    processes = -1 if os.geteuid() == 0 else _OWN_LIMITS[resource.RLIMIT_NPROC][0]
    return _OWN_LIMITS[resource.RLIMIT_NOFILE][1], processes


def allow_limits(limits: dict[int, tuple[int, int]]) -> None:
    """Raise the hard limits that are below these, which root alone may. Raises OSError, ValueError."""
    for limit, (_, hard) in limits.items():
        soft, now = resource.getrlimit(limit)
        if now != resource.RLIM_INFINITY and (hard == resource.RLIM_INFINITY or hard > now):
            resource.setrlimit(limit, (soft, hard))


def lower_limits(limits: dict[int, tuple[int, int]]) -> None:
    """Give this process these limits, and of those that aren't named the ones that the runner was started with."""
    for limit, both in {**_OWN_LIMITS, **limits}.items():
        resource.setrlimit(limit, both)


def differing_limits(limits: dict[int, tuple[int, int]]) -> dict[int, bytes]:
    """Return those of these limits, and of the ones that the runner was started with, that this process hasn't now.

    Each as setrlimit(2) takes it.
    """
    wanted = {**_OWN_LIMITS, **limits}
    return {limit: _RLIMIT.pack(*both) for limit, both in wanted.items() if resource.getrlimit(limit) != both}


def cpu_mask(cpus: list[int]) -> bytes:
    """Return a set of CPUs as sched_setaffinity(2) takes it; empty = none is named."""
    mask = sum(1 << cpu for cpu in set(cpus))
    return mask.to_bytes(-(-mask.bit_length() // 64) * 8, sys.byteorder)


def forget_inherited_signals() -> None:
    """Undo the mask and the ignored signals that this process was started with: jobs shall not have them."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in signal.valid_signals():
        if number not in (signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)


def become_subreaper() -> None:
    """Make orphans among our descendants our children. Source: prctl(2)."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def forbid_new_privileges() -> None:
    """Let no program give this process or any descendant more than it has, setuid or not.

    There is no way back. Source: prctl(2). Raises OSError.
    """
    if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no_new_privs can't be set: this kernel is older than Linux 3.5")


def drop_capabilities() -> None:
    """Give up the effective, permitted and inheritable capabilities, and with these the ambient ones.

    The bounding set stays: with no_new_privs nothing can be gained from it. Source: capset(2), capabilities(7).
    Raises OSError.
    """
    header = struct.pack("=Ii", _CAPABILITIES_VERSION, 0)
    if _libc.capset(ctypes.c_char_p(header), ctypes.c_char_p(bytes(24))) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "capset")


def close_to_tracers() -> None:
    """Keep other processes of our account from looking into our memory, and that memory out of core files.

    Source: PR_SET_DUMPABLE in prctl(2), ptrace(2).
    """
    _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def die_with(parent: int) -> None:
    """Have the kernel kill this process, but not its children, when its parent dies.

    To be called once nothing will change our account any more, which would undo it. Source: PR_SET_PDEATHSIG in
    prctl(2).
    """
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it had died before
        os.kill(os.getpid(), signal.SIGKILL)


def leave_keyring() -> None:
    """Take an empty session keyring instead of the inherited one, where the kernel has such things.

    Source: keyctl(2), session-keyring(7).
    """
    if _SYS_KEYCTL is not None:
        _libc.syscall(_SYS_KEYCTL, _KEYCTL_JOIN_SESSION_KEYRING, None)


def default_signals(numbers: tuple[int, ...]) -> None:
    """Give each of these signals its default action again. Source: signal(2); SIG_DFL is 0.

    Python's own call turns numbers into members of an enumeration and back, which costs a child that is about to
    become another program 0.2 ms, most of it for pages that it must copy first.
    """
    for number in numbers:
        _libc.signal(number, None)


def ignore_signals(numbers: tuple[int, ...]) -> None:
    """Ignore each of these signals. Source: signal(2); SIG_IGN is 1."""
    for number in numbers:
        _libc.signal(number, ctypes.c_void_p(1))


def name_process(name: str) -> None:
    """Set the name that `ps` and `top` show for this process; at most 15 characters. Source: prctl(2)."""
    _libc.prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()), 0, 0, 0)


def take_terminal() -> None:
    """Make the terminal of standard input the controlling one of this process, which leads its session.

    Source: TIOCSCTTY in tty_ioctl(2). Raises OSError.
    """
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def make_raw(terminal: int) -> None:
    """Have a terminal hand on all bytes as they are, both ways. Source: cfmakeraw in termios(3). Raises OSError."""
    try:
        modes = termios.tcgetattr(terminal)
        modes[0] &= ~(
            termios.IGNBRK | termios.BRKINT | termios.PARMRK | termios.ISTRIP | termios.INLCR | termios.IGNCR
            | termios.ICRNL | termios.IXON
        )  # fmt: skip
        modes[1] &= ~termios.OPOST
        modes[2] = modes[2] & ~(termios.CSIZE | termios.PARENB) | termios.CS8
        modes[3] &= ~(termios.ECHO | termios.ECHONL | termios.ICANON | termios.ISIG | termios.IEXTEN)
        modes[6][termios.VMIN], modes[6][termios.VTIME] = 1, 0
        termios.tcsetattr(terminal, termios.TCSANOW, modes)
    except termios.error as error:
        raise OSError(*error.args) from error


def give_back_memory() -> None:
    """Give free memory back to the system. Source: malloc_trim(3); a C library without it keeps it."""
    if hasattr(_libc, "malloc_trim"):
        _libc.malloc_trim(0)


def reserve(descriptor: int, begin: int, size: int) -> bool:
    """Keep so many bytes of a file system for a file, from `begin` on, without making the file longer.

    False = it can't. Source: FALLOC_FL_KEEP_SIZE in fallocate(2), which is 1.
    """
    return bool(_libc.fallocate(descriptor, 1, ctypes.c_int64(begin), ctypes.c_int64(size)) == 0)


def bound_project(folder: str, project: int, bytes_max: int) -> None:
    """Let a project hold so many bytes at most on the file system of a folder.

    Source: Q_SETQUOTA in quotactl(2), quotactl_fd(2). Raises OSError: without project quotas, and for all but root.
    """
    kib = max(1, bytes_max >> 10)
    _project_quota(folder, _SET_PROJECT_QUOTA, project, _DQBLK.pack(kib, kib, 0, 0, 0, 0, 0, 0, 1))


def join_project(folder: str, project: int) -> None:
    """Count a folder, and all that is made beneath it, for a project. Its owner may.

    Source: FS_IOC_FSSETXATTR in ioctl_xfs_fsgetxattr(2). Raises OSError.
    """
    with opened(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW) as descriptor:
        flags, size, _, _, copied = _FSXATTR.unpack(fcntl.ioctl(descriptor, _GET_PROJECT, bytes(_FSXATTR.size)))
        fields = _FSXATTR.pack(flags | _INHERIT_PROJECT, size, 0, project, copied)
        fcntl.ioctl(descriptor, _SET_PROJECT, fields)


def mount_privately(folders: dict[str, str]) -> None:
    """Let this process and its descendants alone see each folder at another place, by that place.

    What is mounted elsewhere later is seen here too, and nothing that is mounted here is seen elsewhere; it goes with
    the last of these processes. Source: unshare(2), mount_namespaces(7). Raises OSError: without CAP_SYS_ADMIN.
    """
    _succeed(_libc.unshare(_CLONE_NEWNS), "unshare")
    _succeed(_libc.mount(b"none", b"/", None, ctypes.c_ulong(_MS_REC | _MS_SLAVE), None), "/")
    for place, folder in folders.items():
        _succeed(_libc.mount(os.fsencode(folder), os.fsencode(place), None, ctypes.c_ulong(_MS_BIND), None), place)


def join_mounts(pid: int) -> None:
    """See what another process sees at each place of the file system. Source: setns(2). Raises OSError."""
    with opened(f"/proc/{pid}/ns/mnt", os.O_RDONLY) as namespace:
        _succeed(_libc.setns(namespace, _CLONE_NEWNS), "setns")


def _succeed(status: int, what: str) -> None:
    """Raises OSError."""
    if status != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


def bounds_projects(folder: str) -> bool:
    """Return True if the file system of a folder keeps the bounds of projects. Source: Q_XGETQSTAT in quotactl(2)."""
    state = bytearray(256)
    try:
        _project_quota(folder, _GET_QUOTA_STATE, 0, state)
    except OSError:
        return False
    return bool(int.from_bytes(state[2:4], sys.byteorder) & _PROJECT_BOUNDS_HOLD)


def _project_quota(folder: str, command: int, project: int, block: bytes | bytearray) -> None:
    """Raises OSError."""
    buffer = (ctypes.c_char * len(block)).from_buffer(bytearray(block) if isinstance(block, bytes) else block)
    with opened(folder, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
        unsigned = ctypes.c_uint
        if _libc.syscall(_SYS_QUOTACTL_FD, unsigned(descriptor), unsigned(command), unsigned(project), buffer) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), folder)


def fork_into(folder: str) -> tuple[int, bool]:
    """Fork, and return the pid (0 in the child) and whether the child is in the version 2 cgroup `folder`.

    Empty = in none. Where the kernel can't, the child is made outside and must enter by itself. Raises OSError.
    """
    if not folder or _refused:
        return os.fork(), False
    with opened(folder, os.O_RDONLY | os.O_DIRECTORY) as door:
        arguments = _CLONE_ARGS.pack(_CLONE_INTO_CGROUP, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, door)
        pid = _libc.syscall(_SYS_CLONE3, ctypes.c_char_p(arguments), ctypes.c_size_t(len(arguments)))
        if pid >= 0:
            return pid, True
        number = ctypes.get_errno()
        if number not in _NOT_OFFERED:
            raise OSError(number, os.strerror(number), folder)
        _refused.append(number)
        return os.fork(), False
