"""Journal of the runner: the starts and ends of its tasks, on disk, so that they outlive a crash.

It is a file of lines, `CRC32 JSON`. A start is on disk before its process exists, an end before it is reported.

Rules: J1  `commit(durable=True)` returns when every line appended before it would survive a power loss
       J2  what follows the last whole line is a write that a crash cut short; it is dropped
       J3  a bad line with a whole one after it is damage: refused, never skipped
       J4  settled ends are kept until `ends_max` or `ends_kept_s` is passed, the oldest go first; unsettled ends stay
       J5  after a failed write nothing counts as written until the journal was written anew, whole, from memory
       J6  `RESERVED_BYTES` beyond its end are kept for it on the disk, where the file system can: on a disk that others
           have filled, ends are still written
       J7  what can't be written anew, since the disk is full, goes on at its end: a runner that begins finds what the
           one before it left, and one that outgrows its bound keeps what it has

Limits: a settled end costs about 210 B of memory, one that isn't 450 B.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress

from stoker.agent.runner.files import body_of, checked_line, opened, replace_file, write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Final, NotRequired, TypedDict

    from stoker.agent.runner.protocol import EndFields, OverFields, SiteFields

    class ContainerRecord(TypedDict):
        """Container that a task is, with what a later runner needs to find it."""

        socket: str
        """Of its engine."""
        contained: bool
        """Whether it is in the cgroup of its task."""

    class StartRecord(TypedDict):
        """Start of a task, with what a later runner needs to find its processes."""

        key: str
        mark: str
        boot: str
        at: int
        gpus: list[str]
        gpu_share: NotRequired[int]
        """Thousandths of each, where it shares them."""
        groups: list[str]
        pid: int
        birth: int
        prolog: NotRequired[bool]
        """Whether a prolog goes before its process."""
        epilog: NotRequired[SiteFields]
        """What follows it. Neither stands in a record without one."""
        container: NotRequired[ContainerRecord]
        """Only where it is one."""


VERSION: Final = 1
_END_FIELDS: Final = ("cause", "at", "exit_code", "signal", "oom", "peak_memory_mb", "error")
_COMPACT_BYTES_MIN: Final = 16 * 1024 * 1024
"""The file is written anew, without what has been forgotten, when it exceeds this: some 40,000 short jobs."""
RESERVED_BYTES: Final = 2 * 1024 * 1024
"""The ends of all tasks that a runner takes; it is made whole again when half of it is used."""


class JournalDamaged(Exception):
    """A journal that can't be trusted. The message says where, and how to recover."""


class Journal:
    """The journal at a path. Its only writer is the runner that holds the lock of the data folder."""

    def __init__(self, path: str, reserve: Callable[[int, int, int], bool] = lambda *_: False) -> None:
        """`reserve` keeps space for a descriptor, from an offset on, so many bytes (`process.kernel`)."""
        self.path = path
        self._reserve = reserve
        self._reserved_to = 0
        self.open: dict[str, StartRecord] = {}
        """Starts without an end."""
        self.offered: dict[str, bytes] = {}
        """Ends that the control plane isn't known to have, oldest first."""
        self.settled: dict[str, bytes] = {}
        """Ends that the control plane has, oldest first: only the fields of the end, for a start that comes late."""
        self._fd = -1
        self._lines: list[bytes] = []
        self._size = 0
        self._compact_at = _COMPACT_BYTES_MIN
        self._broken = False

    def load(self) -> None:
        """Read what an earlier runner left and write it anew. Raises JournalDamaged, OSError."""
        content, whole = b"", 0
        with suppress(FileNotFoundError), open(self.path, "rb") as file:
            content = file.read()
        for body in _whole_lines(content, self.path):
            self._replay(body)
            whole += len(_line(body))
        try:
            self.rewrite()
        except OSError:
            if not content:
                raise
            self._go_on(whole, len(content))  # of the last line only the end may be missing

    # --- what is known ------------------------------------------------------------------------------------------

    def end_of(self, key: str) -> OverFields | None:
        """Return the end of a task as far as it is kept; None = it has none here."""
        if key in self.offered:
            return _over(self.offered[key])
        if key in self.settled:
            return {"key": key, "gpus": [], "started_at": 0, "end": _end(self.settled[key])}
        return None

    def knows(self, key: str) -> bool:
        """Return True for a task with a start or an end here."""
        return key in self.open or key in self.offered or key in self.settled

    def offered_ends(self) -> Iterator[OverFields]:
        """Return the ends that the control plane isn't known to have, oldest first."""
        return map(_over, list(self.offered.values()))

    # --- what happens -------------------------------------------------------------------------------------------

    def start(self, record: StartRecord) -> None:
        """Append a start."""
        self.open[record["key"]] = record
        self._append({"t": "start", **record})

    def ran(self, key: str, pid: int, birth: int) -> None:
        """Append the leader of a task. It helps a later search, and correctness doesn't hang on it."""
        self.open[key]["pid"], self.open[key]["birth"] = pid, birth
        self._append({"t": "ran", "key": key, "pid": pid, "birth": birth})

    def end(self, over: OverFields) -> None:
        """Append an end."""
        self.open.pop(over["key"], None)
        self.offered[over["key"]] = self._append({"t": "end", **over})

    def settle(self, key: str) -> None:
        """Append that the control plane has an end. One that is offered once too often is acknowledged again."""
        body = self.offered.pop(key, None)
        if body is not None:
            self.settled[key] = _only_end(body)
            self._append({"t": "settled", "key": key})

    def forget(self, ends_max: int, older_than_ms: int) -> list[str]:
        """Forget settled ends beyond the bounds (J4), and return the keys of those that went."""
        gone: list[str] = []
        for key, body in self.settled.items():
            kept = len(self.settled) + len(self.offered) - len(gone)
            if kept <= ends_max and _end(body)["at"] >= older_than_ms:
                break
            gone.append(key)
        for key in gone:
            del self.settled[key]
            self._append({"t": "forgotten", "key": key})
        return gone

    def renounce(self) -> None:
        """Forget every end, for good. Raises OSError."""
        self.settled.clear()
        self.offered.clear()
        self.rewrite()

    def commit(self, *, durable: bool) -> None:
        """Write what was appended, and wait for the disk if `durable` (J1, J5).

        Raises OSError; what was appended stays in memory and is written by the next `rewrite`.
        """
        if self._broken:
            raise OSError(f"{self.path} must be written anew first")
        if not self._lines:
            return
        block, self._lines = b"".join(self._lines), []
        try:
            write_all(self._fd, block)
            if durable:
                os.fdatasync(self._fd)
        except OSError:
            self._broken = True
            raise
        self._size += len(block)
        self._keep_room()
        if self._size > self._compact_at:
            self._compact()

    def rewrite(self) -> None:
        """Write the whole journal anew, from memory; the old one is whole until the new one is. Raises OSError."""
        self._broken = True
        block = b"".join(self._all_lines())
        replace_file(self.path, block)
        self._append_to_file(len(block))

    def _append_to_file(self, size: int) -> None:
        """Append to the file from now on, which holds so many bytes. Raises OSError."""
        fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._size, self._lines, self._broken = fd, size, [], False
        self._compact_at = max(_COMPACT_BYTES_MIN, 2 * size)
        self._reserved_to = 0
        self._keep_room()

    def _compact(self) -> None:
        """Write the journal anew, since it has grown. Raises OSError when that leaves it broken (J7)."""
        before = os.fstat(self._fd)
        try:
            self.rewrite()
        except OSError:
            if os.stat(self.path).st_ino != before.st_ino:
                raise
            self._compact_at, self._broken = 2 * self._size, False

    def _go_on(self, whole: int, size: int) -> None:
        """Append to the file, of which so many bytes are whole (J7). Raises OSError.

        What a crash cut short is written over: a file that is made shorter gives up what was kept for it (J6).
        """
        over = b""
        if whole < size:
            over = _line(json.dumps({"t": "journal", "version": VERSION, "over": "." * (size - whole)}).encode())
        with opened(self.path, os.O_WRONLY) as file:
            os.pwrite(file, b"\n" + over, whole - 1)
            os.fdatasync(file)
        self._append_to_file(whole + len(over))

    def _keep_room(self) -> None:
        """Keep room on the disk for what will be appended (J6)."""
        if self._size + RESERVED_BYTES // 2 > self._reserved_to and self._reserve(self._fd, self._size, RESERVED_BYTES):
            self._reserved_to = self._size + RESERVED_BYTES

    # --- lines --------------------------------------------------------------------------------------------------

    def _append(self, record: dict[str, object]) -> bytes:
        body = json.dumps(record, separators=(",", ":")).encode()
        self._lines.append(_line(body))
        return body

    def _all_lines(self) -> Iterator[bytes]:
        yield _line(json.dumps({"t": "journal", "version": VERSION}).encode())
        for record in self.open.values():
            yield _line(json.dumps({"t": "start", **record}).encode())
        for key, body in self.settled.items():
            yield _line(json.dumps({"t": "kept", "key": key, "end": list(_end(body).values())}).encode())
        for body in self.offered.values():
            yield _line(body)

    def _replay(self, body: bytes) -> None:
        record = json.loads(body)
        kind, key = record.pop("t"), record.get("key")
        if kind == "start":
            self.open[key] = record
        elif kind == "ran":
            if key in self.open:
                self.open[key].update(record)
        elif kind == "end":
            self.open.pop(key, None)
            self.offered[key] = body
        elif kind == "settled":
            if key in self.offered:
                self.settled[key] = _only_end(self.offered.pop(key))
        elif kind == "kept":
            self.settled[key] = json.dumps(record["end"]).encode()
        elif kind == "forgotten":
            self.settled.pop(key, None)
        elif kind != "journal" or record["version"] != VERSION:
            raise JournalDamaged(
                f"{self.path} has a record {kind!r} that this version can't read; it was written by a newer one: "
                f"start that version, or move the file away once no job runs on this node"
            )


def _line(body: bytes) -> bytes:
    return checked_line(body) + b"\n"


def _whole_lines(content: bytes, path: str) -> Iterator[bytes]:
    """The bodies of the lines. Raises JournalDamaged."""
    bad_at = 0
    for number, line in enumerate(content.split(b"\n"), start=1):
        body = body_of(line)
        if body is None:
            bad_at = bad_at or number
        elif bad_at:
            raise JournalDamaged(
                f"{path}, line {bad_at} is damaged, with whole lines after it. Nothing was started. To recover, "
                f"end this node's jobs by hand or reboot it, then move the file away; what it held is reported lost"
            )
        else:
            yield body


def _over(body: bytes) -> OverFields:
    record = json.loads(body)
    del record["t"]
    over: OverFields = record
    return over


def _only_end(body: bytes) -> bytes:
    end = _over(body)["end"]
    return json.dumps([end[name] for name in _END_FIELDS], separators=(",", ":")).encode()


def _end(body: bytes) -> EndFields:
    end: EndFields = dict(zip(_END_FIELDS, json.loads(body), strict=True))  # type: ignore[assignment]  # in their order
    return end
