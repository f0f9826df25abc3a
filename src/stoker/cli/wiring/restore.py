"""How does a backup become a control plane's data folder?

Rules: R1  the whole file is read and proved before anything is written, and once more while it is written
       R2  what a newer version wrote is refused: it may say what this one would overlook
       R3  what the cluster begins with is decided by the brain: `admit.leadership.restore`
       R4  a log that is to be in a database is written there first, and kept once the folder is in its place: a cut
           between the two leaves a folder that waits for that log, and the one that was there before beside it
"""

import asyncio
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

from msgspec import UNSET

from stoker.adapters.clock import SystemClock
from stoker.adapters.data_folder.ownership import make_private
from stoker.adapters.data_folder.restored_folder import Beginning, fill, history_in, new_folder, put_history_back
from stoker.adapters.entropy import SystemEntropy
from stoker.adapters.log_store import mark_as_elsewhere
from stoker.adapters.logs import StructuredTelemetry
from stoker.brain.domain.access import OWNER
from stoker.brain.domain.errors import Refusal, StokerError
from stoker.brain.domain.ids import Position
from stoker.brain.domain.units import Instant
from stoker.brain.state.admit.dispatch import admit
from stoker.brain.state.apply.dispatch import apply
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.codec import Fact, encode_fact
from stoker.brain.state.commands import RestoreCluster
from stoker.cli.wiring.token_store import as_owner
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
    asyncio.run(_put_in_place(file, head, beginning, data_dir, force=force, store_url=store_url))
    return Restored(head, state)


async def _put_in_place(
    file: Path, head: BackupHead, beginning: Beginning, data_dir: Path, *, force: bool, store_url: str
) -> None:
    """R4"""
    async with AsyncExitStack() as database:
        with new_folder(data_dir, replace=force) as folder:
            _copy_history(file, head, history_in(folder))
            await put_history_back(folder, beginning.mark)
            if store_url:
                mark_as_elsewhere(folder)
                await database.enter_async_context(_filled_database(store_url, beginning, data_dir))
            else:
                fill(folder, beginning)


def _filled_database(url: str, beginning: Beginning, data_dir: Path) -> AbstractAsyncContextManager[None]:
    """Its tables belong to whoever starts the control plane: the owner of the folder, if there is one."""
    # Only who asks for it needs the driver.
    from stoker.adapters.postgres.restored_database import filled_database

    clock = SystemClock()
    telemetry = StructuredTelemetry(clock, level="error")
    account = as_owner(data_dir) if data_dir.is_dir() else nullcontext()
    return filled_database(url, beginning, clock, telemetry, account=account)


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
