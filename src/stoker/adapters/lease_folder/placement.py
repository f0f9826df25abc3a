"""Examination of the folder for the lease record: its file system, and who can reach it.

Asked once, at start. What can be tried is tried: a file is written, synced, linked, linked again, and looked at. What
can't be tried follows from the kind of file system: whether another machine sees a link at once, and only one of two.
"""

import os
import re
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal, NamedTuple

from stoker.adapters.atomic_file import sync, written_apart
from stoker.brain.domain.errors import StokerError, refusal_error

Reach = Literal["shared", "machine", "unknown"]

_SHARED: Final = frozenset({"nfs", "nfs4", "ceph", "fuse.ceph", "fuse.ceph-fuse", "lustre", "gpfs", "gfs2", "ocfs2"})
"""link(2) is one operation of the server, or under a lock of the whole cluster."""
_MACHINE: Final = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "jfs", "overlay", "tmpfs", "ramfs"}
)
_IN_MEMORY: Final = frozenset({"tmpfs", "ramfs"})
_WRONG: Final[Mapping[str, str]] = {
    **dict.fromkeys(("cifs", "smb2", "smb3", "smbfs"), "SMB clients keep pictures of folders and may not link files"),
    **dict.fromkeys(("vfat", "msdos", "exfat"), "it has no hard links"),
    **dict.fromkeys(
        ("fuse.s3fs", "fuse.goofys", "fuse.geesefs", "fuse.gcsfuse", "fuse.blobfuse", "fuse.blobfuse2", "fuse.rclone"),
        "object storage has no link that only one of two writers gets",
    ),
    **dict.fromkeys(("fuse.mountpoint-s3", "fuse.ossfs", "fuse.cosfs"), "object storage has no hard links"),
    **dict.fromkeys(("fuse.sshfs", "davfs", "fuse.davfs"), "its clients keep pictures of folders for many seconds"),
}
_ELSEWHERE: Final = (
    "name a folder on NFS, CephFS, Lustre or GPFS as failover.marker, or on a local disk if all control planes run on "
    "this machine; or keep the log in PostgreSQL (store.url), which needs no folder"
)
_MOUNTS: Final = Path("/proc/self/mountinfo")
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")
"""How blanks are told there."""


class LeaseFolderCheck(NamedTuple):
    """Findings about a folder that can hold the lease record."""

    kind: str
    """Of file system, as the kernel names it."""
    reach: Reach
    sentence: str
    """What an operator should know about it."""


def check_folder(folder: Path, mounts: Path = _MOUNTS) -> LeaseFolderCheck:
    """Blocking. Leaves nothing behind.

    Raises: OSError when the folder isn't there, or can't be written now; StokerError `marker_unusable` when it can
    never be right.
    """
    mode = folder.stat().st_mode
    if not stat.S_ISDIR(mode):
        raise _unusable(folder, "isn't a folder")
    kind, options = _mount_of(folder.resolve(strict=True), os.fsdecode(mounts.read_bytes()))
    if why := _WRONG.get(kind):
        raise _unusable(folder, f"is on {kind}: {why}")
    if "nocto" in options:
        raise _unusable(folder, f"is on {kind} mounted with nocto, which shows old pictures of it")
    if mode & stat.S_IWOTH:
        raise refusal_error(
            "marker_unusable",
            f"everybody may write to the marker folder {folder}, and so say who is active",
            f"chmod 0700 {folder}, and let the account of the control planes own it",
        )
    _try_links(folder, kind)
    return LeaseFolderCheck(kind, _reach(kind), _sentence(folder, kind, options))


def _mount_of(folder: Path, mounts: str) -> tuple[str, frozenset[str]]:
    """Kind and options of the file system of a folder. Source: proc_pid_mountinfo(5)."""
    best, found = -1, ("unknown", frozenset[str]())
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        point = Path(_ESCAPED.sub(lambda octal: chr(int(octal[1], 8)), left.split(" ")[4]))
        if folder.is_relative_to(point) and len(point.parts) >= best:  # of two on one point the later hides the other
            kind, _, options = (*right.split(" "), "", "")[:3]
            best, found = len(point.parts), (kind, frozenset(options.split(",")))
    return found


def _try_links(folder: Path, kind: str) -> None:
    with written_apart(folder, "check-", b"stoker") as first:
        second = f"{first}.link"
        try:
            try:
                os.link(first, second)
            except OSError as fault:
                known = fault.strerror or str(fault)
                raise _unusable(folder, f"is on {kind}, which makes no hard links: {known}") from fault
            one, other = os.lstat(first), os.lstat(second)
            if (one.st_ino, one.st_nlink) != (other.st_ino, 2):
                raise _unusable(folder, f"is on {kind}, where what link(2) makes isn't the same file")
            with suppress(FileExistsError):
                os.link(first, second)
                raise _unusable(folder, f"is on {kind}, where link(2) replaces a file that is there")
            try:
                sync(folder)
            except OSError as fault:
                known = f"is on {kind}, where the names in a folder can't be made durable: {fault.strerror}"
                raise _unusable(folder, known) from fault
        finally:
            with suppress(OSError):
                os.unlink(second)


def _reach(kind: str) -> Reach:
    if kind in _SHARED:
        return "shared"
    return "machine" if kind in _MACHINE else "unknown"


def _sentence(folder: Path, kind: str, options: frozenset[str]) -> str:
    if kind in ("nfs", "nfs4"):
        return f"{folder} is on {kind}, which is right: {_nfs_advice(options)}"
    if kind in _SHARED:
        return f"{folder} is on {kind}, which is right"
    if kind in _IN_MEMORY:
        return f"{folder} is in memory ({kind}): right for tests, for it is gone when this machine restarts"
    if kind in _MACHINE:
        return f"{folder} is on {kind}, a disk of this machine: right only if all control planes run on this machine"
    return (
        f"{folder} is on {kind}, which Stoker doesn't know: right only if a link that one machine has made is seen by "
        "all at once, and of two that make the same one only one succeeds"
    )


def _nfs_advice(options: frozenset[str]) -> str:
    fresh = options & {"noac", "lookupcache=none"}
    return (
        "every look asks the server"
        if fresh
        else "mount it with lookupcache=none (or noac), so that a standby sees each new version at once"
    )


def _unusable(folder: Path, known: str) -> StokerError:
    return refusal_error("marker_unusable", f"the marker folder {folder} {known}", _ELSEWHERE)
