"""Exclusive use of a data folder by one process.

Rules: F1  one process at a time holds a folder; the kernel lets go of the lock when that process is gone, however it
           ended, so a lock is never stale
       F2  a folder that can't be made, written or locked is refused before anything else happens, with the reason; but
           one that was in use before may be full, for it can be read
       F3  what is made in it only its owner can read, whatever the folder's own mode is: the environment of every job
           is in there, and jobs run on this machine too
       F4  a replacement of what is in it that a crash cut off is carried out before anything is read
"""

import errno
import fcntl
import os
import tempfile
from pathlib import Path
from typing import Final

from stoker.adapters.data_folder.folder_swap import LOCK_NAME, finish_swap
from stoker.brain.domain.errors import StokerError, refusal_error

_PID_BYTES_MAX: Final = 32


class HeldFolder:
    """A data folder that this process holds until `release`."""

    def __init__(self, path: Path, lock_fd: int) -> None:
        self.path = path
        self._lock_fd = lock_fd

    def release(self) -> None:
        """Let other processes have it. Safe to call twice."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1


def hold_folder(path: Path) -> HeldFolder:
    """Make the folder if it isn't there, prove that it can be written (F2), and lock it.

    Raises: StokerError `data_dir_unusable` or `data_dir_held`.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        was_there = (path / LOCK_NAME).exists()
        fd = os.open(path / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            _lock(path, fd, was_there=was_there)
            finish_swap(path)
        except BaseException:
            os.close(fd)
            raise
    except OSError as fault:
        raise unusable(path, fault) from fault
    return HeldFolder(path, fd)


def check_free_space(path: Path, size_bytes: int) -> None:
    """Prove that so many bytes can be written in a folder and made durable; leave none. Raises: OSError."""
    fd, name = tempfile.mkstemp(prefix="room-", dir=path)
    try:
        os.unlink(name)
        os.posix_fallocate(fd, 0, size_bytes)
        os.pwrite(fd, b"room", 0)
        os.fsync(fd)
    finally:
        os.close(fd)


def _lock(path: Path, fd: int, *, was_there: bool) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as fault:
        if fault.errno in (errno.EWOULDBLOCK, errno.EACCES):
            raise _held(path, fd) from fault
        raise
    try:
        # Written over what is there: where no room is left that takes none.
        os.pwrite(fd, f"{os.getpid()}\n".ljust(_PID_BYTES_MAX).encode(), 0)
        os.fsync(fd)
    except OSError as fault:
        if not was_there or fault.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        os.ftruncate(fd, 0)  # better nobody than somebody else


def unusable(path: Path, fault: OSError) -> StokerError:
    """Return the refusal of a data folder that the operating system won't let us use."""
    words = fault.strerror or str(fault)
    hints = {
        errno.EACCES: f"give the account that runs Stoker write permission on {path}, or name another data_dir",
        errno.EROFS: "the file system is mounted read-only: remount it writable, or name another data_dir; under "
        "systemd with ProtectSystem= it must stand in ReadWritePaths= of the unit, or be its StateDirectory=",
        errno.ENOSPC: "free some space on that file system, or name a data_dir on another one",
        errno.ENOTDIR: "a part of that path is a file: name another data_dir",
        errno.EEXIST: "that path is a file: name another data_dir",
    }
    hint = hints.get(fault.errno or 0, "name another data_dir, or repair this one")
    return refusal_error("data_dir_unusable", f"can't use the data folder {path}: {words}", hint, path=str(path))


def _held(path: Path, fd: int) -> StokerError:
    text = os.pread(fd, _PID_BYTES_MAX, 0).decode("ascii", "replace").strip()
    holder = f"process {text}" if text.isdigit() else "another process"
    return refusal_error(
        "data_dir_held",
        f"the data folder {path} is held by {holder}",
        "stop that process first, or give this one a data_dir of its own",
        path=str(path),
        pid=int(text) if text.isdigit() else 0,
    )
