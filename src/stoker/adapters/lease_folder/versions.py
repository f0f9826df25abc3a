"""Versions of the lease record as files of a folder, used by one thread.

Each version is a file of its own, named by its number; the highest number is the truth. A version is written under a
name that nobody else uses, synced, and then given its number by link(2), which fails if that number is taken: that is
the whole protocol. Nothing is overwritten and nothing is locked, so there is nothing that a writer which dies, or is
stopped and goes on a day later, could undo.

Rules: Z1 to Z5 of the port, and
       V1  the highest number there never falls: a file is removed only by who has seen a higher number, and that
           number's file is removed only by who has seen a higher one still
       V2  a writer that was stopped before its link may find that its number was used, and removed, long ago. Its link
           then succeeds, far below the truth: so it looks again afterwards, and a higher number means that it has lost.
           What it left is never the highest, so nobody reads it, and the next writer's pruning takes it away
       V3  that second look finds the higher number if there is one: whatever was linked while a `put` went on is
           still there when it ends. For nothing is removed that isn't older than AGE_S by the remover's own clock,
           and a `put` that took longer than `timeout_s` says LeaseUnreachable instead of True
       V4  a link that fails may have been made: NFS repeats a request whose answer was lost and then says EEXIST.
           So what lies there is read, and the mark tells whose it is. (The link count of the temporary file tells the
           same, but not once another has swept that file.)
       V5  no timestamp of a file, no clock of another machine decides anything
       V6  a folder whose highest number is below one that was seen there is another folder (not mounted, put back
           from a copy) or an old picture of it: it is unreachable until the number is back, or this process restarts
       V7  whatever is told, that it was put or that it is there, would survive a power loss of the storage: also the
           name of a file is only kept once its folder was synced, by its writer or by us
"""

import errno
import os
import re
import stat
from collections import deque
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from stoker.adapters.atomic_file import sync, written_apart
from stoker.adapters.lease_folder.record import BYTES_MAX, LeaseRecordDamaged, damaged, sealed, unsealed
from stoker.brain.domain.lease_record import LeaseRecord
from stoker.brain.domain.units import Mono
from stoker.ports import Clock, LeaseUnreachable

KEPT: Final = 100
"""So many of the newest versions stay, for people who want to know what happened."""
AGE_S: Final = 60.0
"""How long a version stays at least (V3). At ten renewals a second these are 600 names: one read of the folder."""
FILES_MAX: Final = 10_000
"""Beyond this many versions age doesn't count: nobody writes so many while another one's `put` goes on."""
PRUNE_MAX: Final = 4
"""Files that one `put` removes at most: it adds one, so what piled up is gone after a while."""
READ_TRIES: Final = 3
_TEMPORARY_MAX: Final = 1_000
"""How many leftovers of dead writers are kept in mind."""
_PAST_MAX: Final = 2_000
_VERSION: Final = re.compile(r"([0-9]{16})\.marker")
_PREFIX: Final = "writing-"
_GONE: Final = (errno.ENOENT, errno.ESTALE)


class _Listing(NamedTuple):
    versions: list[int]
    """Sorted."""
    temporary: list[str]

    @property
    def highest(self) -> int:
        return self.versions[-1] if self.versions else 0


class LeaseRecordFolder:
    """Every method may block for as long as the file system does."""

    def __init__(self, path: Path, clock: Clock, timeout_s: float) -> None:
        assert timeout_s <= AGE_S / 2, f"V3 needs a margin: {timeout_s=} {AGE_S=}"
        self.path = path
        self._clock = clock
        self._timeout_s = timeout_s
        self._seen = self._synced = 0
        self._past: deque[tuple[Mono, int]] = deque(maxlen=_PAST_MAX)
        self._aged = 0
        self._leftovers: dict[str, Mono] = {}

    def read(self) -> LeaseRecord | None:
        """Return the newest version of the lease record.

        Raises: LeaseUnreachable, OSError, StokerError `marker_damaged`.
        """
        for _ in range(READ_TRIES):
            highest = self._list().highest
            if highest == 0:
                return None
            with suppress(FileNotFoundError):  # we were stopped while a hundred were written
                try:
                    found = unsealed(self._load(highest), highest)
                except LeaseRecordDamaged as fault:
                    raise damaged(str(self._file(highest)), fault, _way_out(self.path)) from fault
                self._sync(highest)
                return found
        raise LeaseUnreachable(f"the versions in {self.path} vanish faster than they can be read")

    def put(self, marker: LeaseRecord, began: Mono) -> bool:
        """Z2 to Z4. `began`: when it was asked for. Raises: LeaseUnreachable, OSError."""
        highest = self._list().highest
        if highest > marker.version:
            return False
        if highest < marker.version - 1:
            raise LeaseUnreachable(f"{self.path} has version {highest}; version {marker.version} isn't the next one")
        # Should it stay, it is swept.
        with written_apart(self.path, "", sealed(marker)) as temporary:
            self._in_time(began, "nothing was linked")
            if not self._link(temporary, marker):
                return False
            self._sync(marker.version)
        found = self._list()
        if found.highest > marker.version:
            return False
        if found.highest < marker.version:
            raise LeaseUnreachable(f"{self.path} doesn't show version {marker.version}, which was just linked there")
        self._in_time(began, f"version {marker.version} is there, and may have been replaced since")
        self._prune(found)
        return True

    def _link(self, temporary: str, marker: LeaseRecord) -> bool:
        """V4: is this write's content under its number now? Raises: LeaseUnreachable, OSError."""
        try:
            os.link(temporary, self._file(marker.version))
        except OSError as fault:
            try:
                there = unsealed(self._load(marker.version), marker.version)
            except FileNotFoundError:
                raise fault from None
            except LeaseRecordDamaged as known:
                raise LeaseUnreachable(f"{self._file(marker.version)} can't be trusted: {known}") from fault
            return there.mark == marker.mark
        return True

    def _sync(self, version: int) -> None:
        """Sync the folder, so that the names of its files survive a power loss (V7)."""
        if version > self._synced:
            sync(self.path)
            self._synced = version

    def _in_time(self, began: Mono, known: str) -> None:
        took = self._clock.mono() - began
        if took > self._timeout_s:
            raise LeaseUnreachable(f"a write to {self.path} took {took:.1f} s: {known}")

    def _list(self) -> _Listing:
        """Opened by its path each time: that is when an NFS client asks whether what it knows is still so."""
        versions, temporary = [], []
        for name in os.listdir(self.path):
            if found := _VERSION.fullmatch(name):
                versions.append(int(found[1]))
            elif name.startswith(_PREFIX):
                temporary.append(name)
        listing = _Listing(sorted(versions), temporary)
        if listing.highest < self._seen:
            raise LeaseUnreachable(_went_back(self.path, listing.highest, self._seen))
        if listing.highest > self._seen:
            self._seen = listing.highest
            self._past.append((self._clock.mono(), self._seen))
        return listing

    def _load(self, version: int) -> bytes:
        """Raises: FileNotFoundError, MarkerDamaged when it isn't a file, OSError."""
        try:
            # Neither through a link nor waiting for the other end of a pipe, should somebody have put one there.
            fd = os.open(self._file(version), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as fault:
            if fault.errno in _GONE:
                raise FileNotFoundError(errno.ENOENT, fault.strerror) from fault
            if fault.errno == errno.ELOOP:
                raise LeaseRecordDamaged("it isn't a file") from fault
            raise
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise LeaseRecordDamaged("it isn't a file")
            return os.read(fd, BYTES_MAX + 1)
        finally:
            os.close(fd)

    def _prune(self, found: _Listing) -> None:
        """V3. A number up to one that was the highest AGE_S ago is older than that, whenever its file was made."""
        now = self._clock.mono()
        while self._past and self._past[0][0] <= now - AGE_S:
            self._aged = self._past.popleft()[1]
        through = min(found.highest - KEPT, max(self._aged, found.highest - FILES_MAX))
        self._leftovers = {name: self._leftovers.get(name, now) for name in found.temporary[:_TEMPORARY_MAX]}
        # A writer that is stopped, not dead, can't link any more what is swept here: it will try anew, and learn.
        dead = [name for name, since in self._leftovers.items() if since <= now - AGE_S]
        old = (version for version in found.versions if version <= through)
        for path in (*map(self.path.joinpath, dead[:PRUNE_MAX]), *map(self._file, islice(old, PRUNE_MAX))):
            with suppress(OSError):
                os.unlink(path)

    def _file(self, version: int) -> Path:
        return self.path / f"{version:016d}.marker"


def unreachable(path: Path, fault: OSError) -> LeaseUnreachable:
    """Return the fault of an unreachable folder: the words of the operating system, and what to do."""
    hints = {
        errno.ENOENT: "make that folder once, on the shared storage, and see that the storage is mounted here",
        errno.ENOTDIR: "it, or a part of its path, is a file: name a folder as failover.marker",
        errno.EACCES: "all control planes must run as one account, which owns that folder",
        errno.EPERM: "all control planes must run as one account, which owns that folder",
        errno.EROFS: "mount that storage writable, and under systemd name that folder in ReadWritePaths= of "
        "stoker-control.service (docs/howto/set-up-a-pair.md)",
        errno.ENOSPC: "free some space there: nobody can stay active, or become so, without writing to it",
        errno.EDQUOT: "raise the quota there: nobody can stay active, or become so, without writing to it",
        errno.ESTALE: "the storage was exported anew: mount it again",
    }
    hint = hints.get(fault.errno or 0, "see that the storage is up, and mounted on this machine")
    return LeaseUnreachable(f"the marker folder {path} can't be used: {fault.strerror or fault}; {hint}")


def _went_back(path: Path, highest: int, seen: int) -> str:
    shows = f"version {highest}" if highest else "no version"
    return (
        f"{path} shows {shows} of the marker after version {seen} was there; see that the shared storage is mounted "
        f"there. If it is, and the folder was put back from a copy or has lost files: {_way_out(path)}"
    )


def _way_out(path: Path) -> str:
    return (
        f"stop every control plane, move the .marker files out of {path}, and start them all: the one whose log "
        "reaches furthest becomes active (docs/explanation/the-marker.md)"
    )
