"""Folder in which a control plane keeps what tasks wrote, for when their node, or its disk, is gone.

Layout: `DIR/CLUSTER/THOUSAND/JOB.ATTEMPT.RANK`, where CLUSTER is the cluster's id, since each numbers its jobs from 1,
        and THOUSAND the job's number without its last three digits: the bytes that were kept, piece after piece, then
        one line of JSON that says where in the output each piece began. A file whose name ends in `.part` isn't whole.
Rules:  K1  an output is there whole or not at all: a file that ends without its last line is none
        K2  folders and files are open to the account of the control plane alone
        K3  `sweep` removes what is older than `days`, and beyond `bytes_max` or FILES_MAX the outputs of the lowest job
            numbers, which are the oldest
        K4  a call that hangs, as on network storage, holds up nobody for longer than CALL_S_MAX
Limits: nothing is synced: what a power cut takes is asked of the nodes again, as long as they have it.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Final, NamedTuple, TypeVar

import msgspec

from stoker.adapters.bounded_thread import BoundedThread, TookTooLong
from stoker.brain.domain.instruction import TaskKey
from stoker.brain.domain.report import LogChunk
from stoker.brain.domain.units import SECOND_MS
from stoker.ports import Clock

CALL_S_MAX: Final = 20.0
SWEEP_S_MAX: Final = 600.0
FILES_MAX: Final = 1_000_000
LAST_LINE_BYTES_MAX: Final = 4_096
PIECES_MAX: Final = 64
"""Contiguous pieces of an output: a node keeps two, its beginning and its end."""
_JOBS_PER_FOLDER: Final = 1_000
_DAY_S: Final = 86_400
_PART: Final = ".part"
Answer = TypeVar("Answer")


class _LastLine(msgspec.Struct, frozen=True, kw_only=True):
    """Where the pieces of an output begin, how long each is, and how much was ever written."""

    pieces: Annotated[tuple[tuple[int, int], ...], msgspec.Meta(max_length=PIECES_MAX)]
    size: int


class _ArchivedFile(NamedTuple):
    """A file of the folder."""

    job: int
    path: Path
    size: int
    changed_s: float


class OutputFolder:
    """The `OutputArchive` port on a folder."""

    def __init__(self, folder: Path, clock: Clock, *, bytes_max: int, days: int) -> None:
        """`bytes_max`: of all outputs together; 0 = no bound. `days`: for which one is kept; 0 = for ever."""
        self._folder = self._root = folder
        self._clock = clock
        self._bytes_max = bytes_max
        self._days = days
        self._thread = BoundedThread("stoker-output", (OSError,))
        self._sweeper = BoundedThread("stoker-output-sweep", (OSError,))
        self._pieces: dict[TaskKey, list[tuple[int, int]]] = {}

    def belong_to(self, cluster_id: str) -> None:
        self._folder = self._root / cluster_id

    async def has(self, key: TaskKey) -> bool:
        return await self._ask(partial(self._is_whole, key))

    async def write(self, key: TaskKey, offset: int, data: bytes) -> None:
        pieces = self._pieces.setdefault(key, [])
        await self._ask(partial(self._append, key, data, anew=not pieces))
        if pieces and sum(pieces[-1]) == offset:
            pieces[-1] = (pieces[-1][0], pieces[-1][1] + len(data))
        elif len(pieces) < PIECES_MAX:
            pieces.append((offset, len(data)))
        else:
            raise OSError(f"its output has more than {PIECES_MAX} pieces")

    async def finish(self, key: TaskKey, size: int) -> None:
        pieces = self._pieces.pop(key, [])
        await self._ask(partial(self._finish, key, _LastLine(pieces=tuple(pieces), size=size), anew=not pieces))

    def give_up(self, key: TaskKey) -> None:
        self._pieces.pop(key, None)

    async def read(self, key: TaskKey, offset: int, limit: int) -> LogChunk | None:
        return await self._ask(partial(self._read, key, offset, limit))

    async def sweep(self) -> int:
        try:
            return await self._sweeper.ask(partial(self._sweep, self._clock.now() / SECOND_MS), SWEEP_S_MAX)
        except TookTooLong as fault:
            raise OSError(str(fault)) from fault

    async def close(self) -> None:
        self._thread.close()
        self._sweeper.close()

    async def _ask(self, call: Callable[[], Answer]) -> Answer:
        try:
            return await self._thread.ask(call, CALL_S_MAX)
        except TookTooLong as fault:
            raise OSError(str(fault)) from fault

    # --- in the thread ------------------------------------------------------------------------------------------

    def _path(self, key: TaskKey) -> Path:
        return self._folder / str(key.job // _JOBS_PER_FOLDER) / f"{key.job}.{key.attempt}.{key.rank}"

    def _is_whole(self, key: TaskKey) -> bool:
        path = self._path(key)
        return path.exists() and _last_line(path) is not None

    def _append(self, key: TaskKey, data: bytes, *, anew: bool) -> None:
        path = self._path(key).with_name(self._path(key).name + _PART)
        if anew:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.parent.mkdir(mode=0o700, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | (os.O_TRUNC if anew else 0)
        with open(os.open(path, flags, 0o600), "ab") as file:
            file.write(data)

    def _finish(self, key: TaskKey, line: _LastLine, *, anew: bool) -> None:
        path = self._path(key)
        self._append(key, b"\n" + msgspec.json.encode(line) + b"\n", anew=anew)
        path.with_name(path.name + _PART).replace(path)

    def _read(self, key: TaskKey, offset: int, limit: int) -> LogChunk | None:
        path = self._path(key)
        try:
            line = _last_line(path)
        except FileNotFoundError:
            return None
        if line is None:  # K1
            return None
        offset = max(0, line.size + offset) if offset < 0 else min(offset, line.size)
        at = 0  # where in the file the piece begins
        for begin, length in line.pieces:
            skipped = max(0, offset - begin)
            if skipped < length:
                with path.open("rb") as file:
                    file.seek(at + skipped)
                    data = file.read(min(limit, length - skipped))
                return LogChunk(request=0, offset=begin + skipped, data=data, size=line.size, ended=True)
            at += length
        return LogChunk(request=0, offset=offset, data=b"", size=line.size, ended=True)

    def _sweep(self, now_s: float) -> int:
        """Return how many files were removed (K3)."""
        kept = sorted(self._files(), key=lambda file: (file.job, file.path.name))
        oldest_s = now_s - self._days * _DAY_S if self._days else 0.0
        held, count, removed = sum(file.size for file in kept), len(kept), 0
        for file in kept:
            too_many = count > FILES_MAX or (self._bytes_max and held > self._bytes_max)
            if too_many or file.changed_s < oldest_s:
                with suppress(FileNotFoundError):
                    file.path.unlink()
                held, count, removed = held - file.size, count - 1, removed + 1
        for folder in self._folders():
            with suppress(OSError):  # it isn't empty
                folder.rmdir()
        return removed

    def _files(self) -> Iterator[_ArchivedFile]:
        for folder in self._folders():
            with os.scandir(folder) as entries:
                for entry in entries:
                    job = entry.name.partition(".")[0]
                    if job.isdigit() and entry.is_file(follow_symlinks=False):
                        seen = entry.stat(follow_symlinks=False)
                        yield _ArchivedFile(int(job), Path(entry.path), seen.st_size, seen.st_mtime)

    def _folders(self) -> list[Path]:
        if not self._folder.is_dir():
            return []
        return [path for path in self._folder.iterdir() if path.name.isdigit() and path.is_dir()]


def _last_line(path: Path) -> _LastLine | None:
    """Return what the end of a file says; None = it isn't whole (K1). Raises: OSError."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - LAST_LINE_BYTES_MAX))
        text = file.read().removesuffix(b"\n").rpartition(b"\n")[2]
    try:
        line = msgspec.json.decode(text, type=_LastLine)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    held = sum(length for _, length in line.pieces)
    return line if held + len(text) + 2 == size else None
