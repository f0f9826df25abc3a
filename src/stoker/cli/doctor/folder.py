"""Checks of a data folder for an event log or for the records of tasks, and of the database that has the log instead.

Rules: D1  nothing is left in the folder: the one file that is written has no name from the moment it is there
       D2  a folder that isn't there yet is not made, only judged by what is around it
       T1  what a start would refuse is in error here: a log in the other store, a newer schema, a database that can't
           be reached or written, an empty one in the place of one that wasn't
       T2  nothing is changed: of a file its first bytes are read, a database is asked

Source: proc(5) for mountinfo and locks; sqlite.org/faq.html, question 5, for network file systems.
"""

import asyncio
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from stoker.adapters.data_folder.folder_swap import LOCK_NAME
from stoker.adapters.data_folder.marks import ELSEWHERE_NAME, STORE_NAME, cluster_elsewhere, was_begun_elsewhere
from stoker.adapters.history_sql.tables import HISTORY_NAME
from stoker.adapters.secret_keys import SecretKeys
from stoker.adapters.sqlite.history import cluster_in
from stoker.adapters.sqlite.store import HISTORY_STEPS, LOG_STEPS, newer_schema
from stoker.brain.domain.errors import StokerError
from stoker.cli.clock import mono_s
from stoker.cli.doctor.finding import Check, CheckResult, doubtful, fine, refusal, unless_refused, wrong
from stoker.cli.doctor.machine import account, words_of

if TYPE_CHECKING:
    from stoker.adapters.postgres.inspection import DatabaseInspection

FREE_MIN_BYTES: Final = 64 << 20
"""Less, and the next snapshot may not fit."""
FREE_WANTED_BYTES: Final = 1 << 30
FREE_FILES_MIN: Final = 1_000
SYNC_SLOW_S: Final = 0.010
"""A spinning disk needs as long; an SSD a tenth of it."""
SYNC_STUCK_S: Final = 0.5
SYNCS: Final = 32
OPEN: Final = {"control": 0o007, "agent": 0o006}
"""What other accounts may not do with the folder. Jobs of other accounts pass through that of an agent."""
SYNC_TOTAL_S: Final = 2.0
SERVER_MIN: Final = 150_000
"""As PostgreSQL numbers its version 15.0."""
_BLOCK: Final = bytes(4_096)
_NETWORK: Final = frozenset(
    {
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "virtiofs", "afs", "ceph", "lustre", "gpfs", "beegfs"),
        *("glusterfs", "ocfs2", "gfs2", "orangefs", "fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.s3fs"),
        *("fuse.gcsfuse", "fuse.rclone", "fuse.juicefs"),
    }
)
_MEMORY: Final = frozenset({"tmpfs", "ramfs"})


_FILES: Final = {STORE_NAME: LOG_STEPS, HISTORY_NAME: HISTORY_STEPS}


class Mount(NamedTuple):
    point: str
    kind: str
    read_only: bool


def checks(kind: str, path: Path) -> list[Check]:
    return [
        Check("data_dir", lambda: data_dir(kind, path)),
        Check("file_system", lambda: file_system(kind, mount_of(path, Path("/proc/self/mountinfo").read_text()))),
        Check("free_space", lambda: free_space(path)),
        Check("disk_sync", lambda: disk_sync(path)),
    ]


def data_dir(kind: str, path: Path) -> Iterator[CheckResult]:
    try:
        seen = path.stat()
    except FileNotFoundError:
        yield _not_there(path)
        return
    except OSError as fault:
        fix = f"let this account reach it (you are {account(os.geteuid())}), or run doctor as the daemon's account"
        yield wrong(f"{path} can't be looked at: {fault.strerror}", fix)
        return
    if not stat.S_ISDIR(seen.st_mode):
        yield wrong(f"{path} is a file", "name another data_dir")
        return
    yield _writable(path, seen)
    if seen.st_mode & OPEN[kind]:
        words = f"{path} is open to every account here (mode {stat.S_IMODE(seen.st_mode):o}): jobs' variables are in it"
        yield doubtful(words, f"chmod {'700' if kind == 'control' else '711'} {path}")
    holder = held_by(path, Path("/proc/locks").read_text())
    if holder:
        yield fine(f"in use by process {holder} ({words_of(holder)})")


def archive(folder: str) -> Iterator[CheckResult]:
    """Judge the folder in which outputs of ended jobs are kept; empty = there is none."""
    path = Path(folder)
    if not folder:
        yield fine("outputs of ended jobs aren't archived")
    elif not path.exists():
        yield _not_there(path)
    elif not path.is_dir():
        yield wrong(f"{path} is no folder", "name a folder in output.archive_dir; nothing is archived until then")
    else:
        yield _writable(path, path.stat())


def _not_there(path: Path) -> CheckResult:
    around = _existing(path)
    if os.access(around, os.W_OK | os.X_OK):
        return fine(f"{path} isn't there yet; it will be made in {around} at the first start")
    owner = account(around.stat().st_uid)
    fix = f"make it for the daemon's account: install -d -m 700 -o ACCOUNT {path}"
    return wrong(f"{path} isn't there, and {account(os.geteuid())} can't make it: {around} belongs to {owner}", fix)


def _writable(path: Path, seen: os.stat_result) -> CheckResult:
    me, owner = os.geteuid(), seen.st_uid
    try:
        os.close(nameless_file(path))
    except OSError as fault:
        fix = f"run doctor as the daemon's account, or give {account(me)} the folder: chown -R {account(me)} {path}"
        return wrong(f"{account(me)} can't write in {path}, which belongs to {account(owner)}: {fault.strerror}", fix)
    if me != owner:
        words = f"{path} belongs to {account(owner)} and {account(me)} can write in it"
        return doubtful(words, f"run the daemon, and doctor, as {account(owner)}, or chown the folder")
    return fine(f"{path} belongs to {account(owner)} and can be written")


def nameless_file(folder: Path) -> int:
    """A descriptor of a new file in `folder` that nobody else can see (D1). Raises OSError."""
    try:
        return os.open(folder, os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
    except OSError as fault:
        if isinstance(fault, PermissionError) or not os.access(folder, os.W_OK | os.X_OK):
            raise
    # This file system can't make a file without a name, so it has one for a moment.
    name = folder / f".stoker-doctor-{os.getpid()}"
    fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    name.unlink()
    return fd


def held_by(path: Path, locks: str) -> int:
    """Return the pid of the process that holds the folder's lock; 0 = none.

    It looks at the kernel's list, for taking the lock even for a moment could keep a daemon from starting.
    """
    try:
        seen = (path / LOCK_NAME).stat()
    except OSError:
        return 0
    device = f"{os.major(seen.st_dev):02x}:{os.minor(seen.st_dev):02x}:{seen.st_ino}"
    for line in locks.splitlines():
        words = line.split()
        if "FLOCK" in words and device in words and "->" not in words:
            return max(0, int(words[words.index(device) - 1]))
    return 0


def mount_of(path: Path, mountinfo: str) -> Mount | None:
    """The mount below which `path` lies, the newest where several are on one point."""
    real = str(_existing(path).resolve())
    found: Mount | None = None
    for line in mountinfo.splitlines():
        words = line.split()
        dash = words.index("-")
        point = words[4].encode().decode("unicode_escape")
        inside = point == "/" or real == point or real.startswith(f"{point}/")
        if inside and (found is None or len(point) >= len(found.point)):
            found = Mount(point, words[dash + 1], "ro" in words[5].split(","))
    return found


def file_system(kind: str, mount: Mount | None) -> Iterator[CheckResult]:
    if mount is None:
        yield doubtful("the file system of data_dir isn't among the mounts of this process", "look with `findmnt`")
    elif mount.read_only:
        yield wrong(f"{mount.point} is mounted read-only", "remount it writable, or name another data_dir")
    elif mount.kind in _NETWORK:
        words = f"data_dir is on {mount.kind} ({mount.point}): locks and syncs over a network can't be trusted"
        fix = "name a data_dir on a disk of this machine; checkpoints belong on shared storage, not this"
        yield wrong(words, fix) if kind == "control" else doubtful(words, fix)
    elif mount.kind in _MEMORY:
        words = f"data_dir is in memory ({mount.kind} on {mount.point}): a reboot loses all that is in it"
        yield doubtful(words, "name a data_dir on a disk, unless this is a trial")
    elif mount.kind.startswith("overlay") or mount.kind == "aufs":
        words = f"data_dir is in the layer of a container ({mount.kind} on {mount.point}): it goes with the container"
        yield doubtful(words, "mount a volume there")
    else:
        yield fine(f"{mount.kind} on {mount.point}")


def free_space(path: Path) -> Iterator[CheckResult]:
    seen = os.statvfs(_existing(path))
    free = seen.f_bavail * seen.f_frsize
    words = f"{free >> 20} MiB of {seen.f_blocks * seen.f_frsize >> 20} MiB are free where data_dir lies"
    yield by_room(free, words, "free some, or name a data_dir on a larger file system: a full disk stops the daemon")
    if seen.f_files and seen.f_favail < FREE_FILES_MIN:
        fix = "remove what has many small files on that file system"
        yield wrong(f"only {seen.f_favail} more files can be made on that file system", fix)


def by_room(free: float, words: str, fix: str) -> CheckResult:
    """Return `words` as a result of the level that so many free bytes deserve."""
    if free < FREE_MIN_BYTES:
        return wrong(words, fix)
    return doubtful(words, fix) if free < FREE_WANTED_BYTES else fine(words)


def disk_sync(path: Path) -> Iterator[CheckResult]:
    """Return the seconds that one small durable write takes, which every acknowledgement takes at least."""
    if not path.is_dir():
        yield fine("not measured: the folder isn't there yet")
        return
    try:
        fd = nameless_file(path)
        try:
            took = _syncs(fd)
        finally:
            os.close(fd)
    except OSError as fault:
        yield wrong(f"not measured: {fault.strerror}", "see what is said of data_dir")
        return
    yield sync_time(sorted(took)[len(took) // 2], max(took), len(took))


def _syncs(fd: int) -> list[float]:
    took: list[float] = []
    began = mono_s()
    while len(took) < SYNCS and mono_s() - began < SYNC_TOTAL_S:
        at = mono_s()
        os.write(fd, _BLOCK)
        os.fdatasync(fd)
        took.append(mono_s() - at)
    return took


def sync_time(median_s: float, longest_s: float, count: int) -> CheckResult:
    words = (
        f"a write of 4 KiB is on disk after {median_s * 1_000:.2f} ms (median of {count}, the longest took "
        f"{longest_s * 1_000:.2f} ms)"
    )
    if median_s >= SYNC_STUCK_S:
        return wrong(words, "the disk is broken or overloaded: name a data_dir on another one")
    if median_s >= SYNC_SLOW_S:
        return doubtful(words, "each acknowledgement waits as long; put data_dir on a local SSD")
    return fine(words)


def _existing(path: Path) -> Path:
    """The folder itself, or the nearest one around it that is there."""
    whole = path.absolute()
    return next((each for each in (whole, *whole.parents) if each.exists()), Path("/"))


def store(url: str, folder: Path) -> Iterator[CheckResult]:
    """`url` empty = SQLite in the folder."""
    try:
        yield from files(folder)
        yield from database(url, folder) if url else in_folder(folder)
    except OSError as fault:
        yield doubtful(f"not looked at in {folder}: {fault.strerror}", "see what is said of data_dir")


def secret_key(path: Path, folder: Path) -> Iterator[CheckResult]:
    """Judge the file of the key of secrets, of a control plane with this data folder."""
    if path.resolve().is_relative_to(folder.resolve()):
        yield wrong(
            f"{path} is in the data folder, so that each copy of that has secrets and key",
            "let `secrets.key_file` name a file elsewhere, and move the key there",
        )
    elif os.path.lexists(path):
        yield from unless_refused(SecretKeys(path).exported, f"the key of secrets is in {path}: keep a copy of it")
    else:
        yield fine(f"{path} isn't there: it is made with the first secret, at the latest, or comes from a peer")


def files(folder: Path) -> Iterator[CheckResult]:
    """Check the files that are in the folder already, whichever store has the log."""
    for name, steps in _FILES.items():
        path = folder / name
        if not path.exists():
            continue
        if not os.access(path, os.R_OK | os.W_OK):
            owner, me = account(path.stat().st_uid), account(os.geteuid())
            fix = f"run doctor as the daemon's account, or give {me} the file"
            yield wrong(f"{path} belongs to {owner}, and {me} can't write it", fix)
        elif newer := newer_schema(path, steps):
            yield wrong(newer.message, newer.hint)


def in_folder(folder: Path) -> Iterator[CheckResult]:
    if (mark := folder / ELSEWHERE_NAME).exists():
        fix = f"set store.url as before; if the queue there is to be given up, remove {mark}"
        yield wrong(f"the log of {folder} is in PostgreSQL, and store.url is empty", fix)
    else:
        known = "is there" if (folder / STORE_NAME).exists() else "will be made at the first start"
        yield fine(f"SQLite: {folder / STORE_NAME} {known}")


def database(url: str, folder: Path) -> Iterator[CheckResult]:
    if (folder / STORE_NAME).exists():
        fix = f"leave store.url empty; if the queue there is to be given up, move {folder / STORE_NAME} away"
        yield wrong(f"{folder} has a log of its own, and store.url names a database", fix)
    try:
        # Only who asks for it needs the driver.
        from stoker.adapters.postgres.inspection import inspect_database

        seen = asyncio.run(inspect_database(url))
    except StokerError as fault:
        yield refusal(fault)
        return
    faults = [*_of_server(seen), *_of_content(seen, folder)]
    yield from faults
    if not faults:
        yield fine(f"{_named(seen)}: {_content(seen)}")


def _of_server(seen: "DatabaseInspection") -> Iterator[CheckResult]:
    named = _named(seen)
    if seen.server < SERVER_MIN:
        yield wrong(f"{named} is too old", "use PostgreSQL 15 or newer")
    if seen.read_only:
        yield wrong(f"{named} takes no writes", "name the primary; of several hosts the one is used that takes writes")
    if not seen.fsync:
        yield wrong(f"{named} has fsync off: what is acknowledged can be lost", "turn fsync on, and restart the server")
    if seen.lacks:
        fix = "let the account own its database and the tables in it whose names begin with stoker_"
        yield wrong(f"{seen.account} lacks rights in {seen.database}: {', '.join(seen.lacks)}", fix)


def _of_content(seen: "DatabaseInspection", folder: Path) -> Iterator[CheckResult]:
    if seen.schema > seen.newest:
        words = f"{seen.database} has schema {seen.schema}; this Stoker knows schemas up to {seen.newest}"
        yield wrong(words, "start the version of Stoker that wrote it, or a newer one")
    elif seen.is_empty and was_begun_elsewhere(folder):
        fix = f"name that one; if the queue there is to be given up, remove {folder / ELSEWHERE_NAME}"
        yield wrong(f"{seen.database} is empty, and the log of {folder} was in a database that isn't", fix)
    elif seen.cluster_id and (known := cluster_elsewhere(folder)) not in ("", seen.cluster_id):
        fix = f"name the database of that one; if the queue there is to be given up, remove {folder / ELSEWHERE_NAME}"
        yield wrong(f"{seen.database} holds cluster {seen.cluster_id}, and the log of {folder} was of {known}", fix)
    elif seen.cluster_id and (known := cluster_in(folder)) not in ("", seen.cluster_id):
        fix = f"name the database of that cluster; or move {folder / HISTORY_NAME} away, if its history may go"
        yield wrong(f"{seen.database} holds cluster {seen.cluster_id}, and {folder} the history of {known}", fix)
    if seen.history_schema > seen.history_newest:
        words = f"has schema {seen.history_schema}; this Stoker knows schemas up to {seen.history_newest}"
        yield wrong(
            f"the history in {seen.database} {words}", "start the version of Stoker that wrote it, or a newer one"
        )
    elif seen.history_of and seen.cluster_id and seen.history_of != seen.cluster_id:
        fix = "drop the tables whose names begin with stoker_history_, if that history may go"
        yield wrong(f"{seen.database} holds cluster {seen.cluster_id}, and the history of {seen.history_of}", fix)


def _named(seen: "DatabaseInspection") -> str:
    return f"PostgreSQL {seen.server // 10_000}.{seen.server % 10_000}, {seen.database} as {seen.account}"


def _content(seen: "DatabaseInspection") -> str:
    if seen.is_empty:
        return "empty; the first start begins a new cluster"
    return f"cluster {seen.cluster_id or 'without a name'}, {seen.end} events"
