"""How does a backup become a control plane's data folder?

Rules: R1  the whole file is read and proved before anything is written, and once more while it is written
       R2  what a newer version wrote is refused: it may say what this one would overlook
       R3  what the cluster begins with is decided by the brain: `admit.leadership.restore`
       R4  a log that is to be in a database is put there last, when nothing but giving the folder its name is left
"""

import asyncio
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from msgspec import UNSET

from stoker.adapters.clock import SystemClock
from stoker.adapters.data_folder import make_private
from stoker.adapters.entropy import SystemEntropy
from stoker.adapters.logs import StructuredTelemetry
from stoker.adapters.restored_folder import Beginning, fill, history_in, new_folder, put_history_back
from stoker.brain.domain.access import OWNER
from stoker.brain.domain.errors import Refusal, StokerError
from stoker.brain.domain.ids import Position
from stoker.brain.domain.units import Instant
from stoker.brain.state.admit.dispatch import admit
from stoker.brain.state.apply.dispatch import apply
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.codec import Fact, encode_fact
from stoker.brain.state.commands import RestoreCluster
from stoker.live.failover.backup_receiver import proved
from stoker.wire.backup import HISTORY, SNAPSHOT, BackupHead, Sink, damaged, foreign, read_backup, too_new
from stoker.wire.versions import PRODUCT


class Restored(NamedTuple):
    """What was put there."""

    head: BackupHead
    state: ClusterState


def restore_backup(file: Path, data_dir: Path, *, force: bool, store_url: str = "") -> Restored:
    """`store_url`: of the database for the log; empty = it is in the folder too.

    Raises: StokerError `backup_foreign`, `backup_too_new`, `backup_damaged`, `data_dir_not_empty`,
    `data_dir_held`, `data_dir_unusable`; of a database `store_not_empty`, `store_unreachable`, `store_held`,
    `store_too_new`."""
    head, state, chunks = _proved(file)
    beginning = _beginning(state, chunks)
    with new_folder(data_dir, replace=force) as folder:
        _copy_history(file, head, history_in(folder))
        asyncio.run(put_history_back(folder, beginning.mark))
        if store_url:
            asyncio.run(_fill_database(folder, store_url, beginning))
        else:
            fill(folder, beginning)
    return Restored(head, state)


async def _fill_database(folder: Path, url: str, beginning: Beginning) -> None:
    """R4"""
    # Only who asks for it needs the driver.
    from stoker.adapters.restored_database import fill_database

    clock = SystemClock()
    await fill_database(folder, url, beginning, clock, StructuredTelemetry(clock, level="error"))


def _proved(file: Path) -> tuple[BackupHead, ClusterState, Sequence[bytes]]:
    """R1, R2"""
    snapshot = bytearray()
    head = _read(file, {SNAPSHOT: snapshot.extend})
    if _release(head.version) > _release(PRODUCT):
        raise too_new(f"was written by version {head.version}; this is {PRODUCT}")
    chunks, state = proved(head, bytes(snapshot))
    return head, state, chunks


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall("[0-9]+", version)[:3])


def _beginning(state: ClusterState, chunks: Sequence[bytes]) -> Beginning:
    """R3. `state` goes on from there."""
    base, by = (state.epoch, state.position), OWNER.principal
    now = Instant(max(SystemClock().now(), state.last_at))
    events = admit(state, RestoreCluster(by=by), now, SystemEntropy().uid)
    if isinstance(events, Refusal):
        raise StokerError(events)
    records: list[bytes] = []
    for event in events:
        fact = Fact(at=now, by=by, event=event, joined=True if records else UNSET)
        apply(state, fact, Position(state.position + 1))
        records.append(encode_fact(fact))
    return Beginning(cluster_id=state.cluster_id, base=base, chunks=chunks, epoch=state.epoch, records=records)


def _copy_history(file: Path, head: BackupHead, path: Path) -> None:
    make_private(path)
    with path.open("wb") as into:
        if _read(file, {HISTORY: into.write}) != head:
            raise damaged("it was changed meanwhile")
        into.flush()
        os.fsync(into.fileno())


def _read(file: Path, sinks: Mapping[str, Sink]) -> BackupHead:
    with _opened(file) as source:
        return read_backup(source, sinks)


@contextmanager
def _opened(file: Path) -> Iterator["_File"]:
    try:
        if not file.is_file():
            raise foreign(f"{file} is no file, and a backup is read twice", "put it into a file first")
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as fault:
        raise damaged(f"{file} can't be read: {fault.strerror}") from fault
    try:
        yield _File(file, fd)
    finally:
        os.close(fd)


class _File:
    """A file whose own faults can be told from those of where its bytes go."""

    def __init__(self, path: Path, fd: int) -> None:
        self._path, self._fd = path, fd

    def read(self, size: int, /) -> bytes:
        try:
            return os.read(self._fd, size)
        except OSError as fault:
            raise damaged(f"{self._path} can't be read: {fault.strerror}") from fault
