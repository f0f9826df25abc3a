"""What a newer version wrote is refused as such by this one, and left as it was."""

import asyncio
import gzip
import hashlib
import io
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from stoker.adapters.log_policy import checksum
from stoker.brain.domain.errors import StokerError
from stoker.brain.state.codec import FORMAT
from stoker.brain.state.snapshot_format import framed, unframed
from stoker.cli.wiring.restore import restore_backup
from stoker.control.settings import GrpcSettings, HttpSettings
from stoker.live.main import run_control
from stoker.live.settings.control import ControlSettings
from stoker.wire.backup import HISTORY, SNAPSHOT, BackupHead, BackupWriter, Part, read_backup
from stoker.wire.endpoints import PRODUCT
from tests.compat.make_backup import HERE

NEWER = "999.0.0"
NEWER_FORMAT = b'"v":%d' % (FORMAT + 1)
BACKUP = gzip.decompress((HERE / f"backup-{PRODUCT}.tar.gz").read_bytes())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "b.tar").write_bytes(BACKUP)
    restore_backup(tmp_path / "b.tar", tmp_path / "data", force=False)
    return tmp_path / "data"


def rewritten(folder: Path, change: Callable[[bytes], bytes]) -> None:
    """The newest record, with the checksum that belongs to it."""
    with closing(sqlite3.connect(folder / "stoker.db")) as db, db:
        at, epoch, old = db.execute("SELECT position, epoch, record FROM event ORDER BY 1 DESC LIMIT 1").fetchone()
        new = change(old)
        assert new != old
        db.execute("UPDATE event SET record = ?, crc = ? WHERE position = ?", (new, checksum(at, epoch, new), at))


def a_record_of_a_newer_format(folder: Path) -> None:
    rewritten(folder, lambda record: record.replace(b'"v":%d' % FORMAT, NEWER_FORMAT, 1))


def a_kind_of_event_that_was_added(folder: Path) -> None:
    rewritten(folder, lambda record: record.replace(b'"type":"', b'"type":"later_', 1))


def a_snapshot_of_a_newer_format(folder: Path) -> None:
    (path,) = folder.glob("snapshot-*")
    content = path.read_bytes()
    position = msgspec.json.decode(content.partition(b"\n")[0])["position"]
    first, *others = unframed(position, content)
    path.write_bytes(b"".join(framed(position, [first.replace(b'"v":1', NEWER_FORMAT, 1), *others])))


def a_newer_schema(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "stoker.db")) as db:
        db.execute("PRAGMA user_version = 999")


def a_newer_schema_of_the_history(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "history.db")) as db:
        db.execute("PRAGMA user_version = 999")


def contents(folder: Path) -> dict[str, bytes]:
    with closing(sqlite3.connect(folder / "stoker.db")) as db:
        log = repr(db.execute("SELECT * FROM event").fetchall()).encode()
    kept = [*folder.glob("snapshot-*"), folder / "history.db"]
    return {path.name: path.read_bytes() for path in kept} | {"log": log}


@pytest.mark.parametrize(
    "newer",
    [
        a_record_of_a_newer_format,
        a_kind_of_event_that_was_added,
        a_snapshot_of_a_newer_format,
        a_newer_schema,
        a_newer_schema_of_the_history,
    ],
)
def test_a_folder_of_a_newer_version_is_refused_and_not_changed(folder: Path, newer: Callable[[Path], None]) -> None:
    newer(folder)
    before = contents(folder)
    settings = ControlSettings(data_dir=folder, http=HttpSettings(port=0), grpc=GrpcSettings(port=0))
    with pytest.raises(StokerError) as caught:
        asyncio.run(run_control(settings, stop=asyncio.Event(), on_ready=lambda: None))
    assert caught.value.refusal.code == "store_too_new"
    assert contents(folder) == before


def written(head: BackupHead, content: dict[str, bytes]) -> bytes:
    parts = [Part(name=name, size=len(some), sha256=hashlib.sha256(some).hexdigest()) for name, some in content.items()]
    writing = BackupWriter(msgspec.structs.replace(head, parts=tuple(parts)))
    members = (writing.before(part) + writing.passed(content[part.name]) + writing.after(part) for part in parts)
    return writing.head() + b"".join(members) + writing.end()


def test_a_backup_of_a_newer_version_is_refused_although_this_one_could_read_it(tmp_path: Path) -> None:
    """It may hold fields that this version would overlook."""
    content = {SNAPSHOT: bytearray(), HISTORY: bytearray()}
    head = read_backup(io.BytesIO(BACKUP), {name: into.extend for name, into in content.items()})
    whole = {name: bytes(some) for name, some in content.items()}
    assert written(head, whole) == BACKUP
    (tmp_path / "b.tar").write_bytes(written(msgspec.structs.replace(head, version=NEWER), whole))
    with pytest.raises(StokerError, match=f"written by version {NEWER}; this is {PRODUCT}") as caught:
        restore_backup(tmp_path / "b.tar", tmp_path / "data", force=False)
    assert caught.value.refusal.code == "backup_too_new"
    assert not (tmp_path / "data").exists()
