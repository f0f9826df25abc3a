"""What a backup is as bytes, and that no byte of it goes wrong unseen."""

import gzip
import hashlib
import io
import tarfile

import msgspec
import pytest

from stoker.brain.domain.errors import StokerError
from stoker.wire import backup
from stoker.wire.backup import HEAD, HISTORY, SEAL, SNAPSHOT, BackupHead, BackupWriter, Counts, Part, read_backup

CONTENT = {SNAPSHOT: b"a state\n" * 100, HISTORY: bytes(range(256)) * 4}


def head_of(**fields: object) -> BackupHead:
    parts = tuple(
        Part(name=name, size=len(content), sha256=hashlib.sha256(content).hexdigest())
        for name, content in CONTENT.items()
    )
    given: dict[str, object] = {
        "version": "1",
        "cluster_id": "c",
        "epoch": 3,
        "position": 7,
        "made_at": 1_790_000_000_000,
    }
    counts = Counts(jobs=2, nodes=1, tenants=1, tokens=0)
    return BackupHead(counts=counts, parts=parts, **given | fields)  # type: ignore[arg-type]  # given by name


def written(head: BackupHead) -> bytes:
    writing = BackupWriter(head)
    pieces = [writing.head()]
    for part in head.parts:
        pieces += [writing.before(part), writing.passed(CONTENT[part.name]), writing.after(part)]
    pieces.append(writing.end())
    whole = b"".join(pieces)
    assert len(whole) == writing.size
    return whole


WHOLE = written(head_of())


def read(content: bytes) -> tuple[BackupHead, dict[str, bytes]]:
    found: dict[str, bytes] = dict.fromkeys(CONTENT, b"")

    def sink(name: str) -> backup.Sink:
        def take(piece: bytes) -> None:
            found[name] += piece

        return take

    return read_backup(io.BytesIO(content), {name: sink(name) for name in CONTENT}), found


def refused(content: bytes) -> str:
    with pytest.raises(StokerError) as fault:
        read(content)
    assert fault.value.refusal.hint
    return fault.value.refusal.code


def test_what_was_written_reads_back_as_it_was() -> None:
    assert read(WHOLE) == (head_of(), CONTENT)


def test_tar_lists_and_unpacks_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with tarfile.open(fileobj=io.BytesIO(WHOLE)) as tar:
        assert tar.getnames() == [HEAD, SNAPSHOT, HISTORY, SEAL]
        unpacked = {name: tar.extractfile(name) for name in CONTENT}
        assert {name: file.read() for name, file in unpacked.items() if file} == CONTENT


def test_a_byte_that_was_flipped_anywhere_is_found() -> None:
    """B1"""
    codes = {refused(WHOLE[:at] + bytes([WHOLE[at] ^ 4]) + WHOLE[at + 1 :]) for at in range(len(WHOLE))}
    assert codes <= {"backup_damaged", "backup_foreign", "backup_too_new"}


def test_a_file_that_was_cut_off_anywhere_is_refused_with_the_place() -> None:
    """B1"""
    for at in range(len(HEAD), len(WHOLE), 7):
        assert refused(WHOLE[:at]) == "backup_damaged"
    with pytest.raises(StokerError, match="ends after 3000 bytes"):
        read(WHOLE[:3_000])


def test_nothing_may_follow_behind_its_end() -> None:
    """B1"""
    assert refused(WHOLE + b"\0") == "backup_damaged"


@pytest.mark.parametrize("content", [b"", b"\x7fELF", bytes(2_048), b"PK\x03\x04" + bytes(600)])
def test_what_another_program_wrote_is_called_foreign(content: bytes) -> None:
    assert refused(content) == "backup_foreign"


@pytest.mark.parametrize("name", ["notes.txt", HEAD])
def test_so_is_the_tar_file_of_another_program_whatever_it_holds(name: str) -> None:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        member = tarfile.TarInfo(name)
        member.size = 2
        tar.addfile(member, io.BytesIO(b"{}"))
    assert refused(made.getvalue()) == "backup_foreign"


def test_a_backup_that_was_packed_is_to_be_unpacked() -> None:
    with pytest.raises(StokerError, match="it is packed") as fault:
        read(gzip.compress(WHOLE))
    assert "gunzip" in fault.value.refusal.hint


def test_a_head_of_nothing_but_brackets_is_refused_in_words() -> None:
    text = b'{"stoker_backup":1,"x":' + b"[" * 30_000
    block = tarfile.TarInfo(HEAD)
    block.size = len(text)
    assert refused(block.tobuf(tarfile.GNU_FORMAT) + text + bytes(-len(text) % 512)) == "backup_damaged"


def test_a_newer_format_is_told_as_such() -> None:
    """B2"""
    with pytest.raises(StokerError, match="format 2; this Stoker reads formats up to 1") as fault:
        read(written(head_of(stoker_backup=2)))
    assert fault.value.refusal.code == "backup_too_new"


def test_a_field_that_a_later_version_added_is_overlooked(monkeypatch: pytest.MonkeyPatch) -> None:
    """B3"""

    class Later(BackupHead, frozen=True, kw_only=True):
        zone: str = "Europe/Paris"

    later = Later(**msgspec.structs.asdict(head_of()))
    assert read(written(later)) == (head_of(), CONTENT)


def test_a_history_of_more_than_eight_gigabytes_fits() -> None:
    parts = (head_of().parts[0], Part(name=HISTORY, size=20 * 2**30, sha256=""))
    writing = BackupWriter(msgspec.structs.replace(head_of(), parts=parts))
    assert tarfile.TarInfo.frombuf(writing.before(parts[1]), "utf-8", "strict").size == 20 * 2**30
    assert writing.size > 20 * 2**30
