"""What stays in the marker's folder, what goes, and what is never believed."""

import errno
import hashlib
import json
import os
from pathlib import Path

import pytest

from stoker.adapters.lease_folder import versions
from stoker.adapters.lease_folder.versions import AGE_S, KEPT, PRUNE_MAX, unreachable
from stoker.brain.domain.errors import StokerError
from stoker.ports import LeaseUnreachable
from tests.adapters.folder_place import FolderPlace, HandClock, between_calls, folder, newest, put
from tests.contracts.lease import lease_record


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FolderPlace:
    # Thousands of versions are put here, and what a sync does can't be seen without a power loss.
    monkeypatch.setattr(os, "fsync", lambda _: None)
    return FolderPlace(tmp_path / "marker")


# --- pruning --------------------------------------------------------------------------------------------------------


def test_v3_versions_of_the_last_minute_stay_however_many_they_are(place: FolderPlace) -> None:
    clock = HandClock()
    writer = folder(place, clock)
    for version in range(1, 401):
        assert writer.put(lease_record(version), clock.mono())
        clock.at_s += AGE_S / 500
    assert place.versions == list(range(1, 401))


def test_the_newest_hundred_stay_however_old_they_are(place: FolderPlace) -> None:
    clock = HandClock()
    writer = folder(place, clock)
    for version in range(1, 201):
        assert writer.put(lease_record(version), clock.mono())
        clock.at_s += AGE_S
    assert place.versions == list(range(201 - KEPT, 201))


def test_a_put_removes_a_few_files_only_and_what_piled_up_goes_all_the_same(place: FolderPlace) -> None:
    young = HandClock()
    for version in range(1, 401):
        assert folder(place).put(lease_record(version), young.mono())  # none lives long enough to remove any
    clock = HandClock()
    writer = folder(place, clock)
    left = 400
    for version in range(401, 600):
        assert writer.put(lease_record(version), clock.mono())
        assert len(place.versions) >= left + 1 - PRUNE_MAX
        left = len(place.versions)
        clock.at_s += 1
    assert left == KEPT


def test_beyond_a_bound_versions_go_whatever_their_age(place: FolderPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "FILES_MAX", 120)
    for version in range(1, 301):
        assert folder(place).put(lease_record(version), HandClock().mono())
    assert len(place.versions) == 120


def test_what_a_dead_writer_left_is_swept_once_it_has_been_seen_for_a_minute(place: FolderPlace) -> None:
    (place.folder / "writing-dead.tmp").write_text("half a mar")
    clock = HandClock()
    writer = folder(place, clock)
    for version in range(1, int(AGE_S) + 1):
        assert writer.put(lease_record(version), clock.mono())
        clock.at_s += 1
    assert place.leftovers() == ["writing-dead.tmp"]
    assert writer.put(lease_record(61), clock.mono())
    assert place.leftovers() == []


# --- what can't be trusted ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "it is empty"),
        (b'{"v":1,"sha256":"', "it isn't a marker"),
        (b"\xff\xfe", "it isn't a marker"),
        (b"null", "it isn't a marker"),
        (b'{"v":1,"sha256":"00","marker":{}}', "checksum"),
        (b"x" * 70_000, "more than 65536 bytes"),
    ],
)
def test_a_newest_file_that_is_not_what_was_written_is_refused(place: FolderPlace, content: bytes, says: str) -> None:
    place.goes_on(3)
    place.file(3).write_bytes(content)
    with pytest.raises(StokerError, match=says) as caught:
        newest(place)
    refusal = caught.value.refusal
    assert refusal.code == "marker_damaged"
    assert str(place.file(3)) in refusal.message
    assert f"move the .marker files out of {place.folder}" in refusal.hint
    assert put(folder(place), lease_record(3)) == "unreachable", "nobody can say whose that is"


def test_a_version_that_somebody_renamed_is_refused(place: FolderPlace) -> None:
    place.goes_on(3)
    place.file(2).rename(place.file(7))
    with pytest.raises(StokerError, match="it says that it is version 2"):
        newest(place)


@pytest.mark.parametrize("kind", ["pipe", "link", "folder"])
def test_what_is_not_a_file_is_refused_and_nobody_waits_for_it(place: FolderPlace, kind: str) -> None:
    place.goes_on(3)
    match kind:
        case "pipe":
            os.mkfifo(place.file(4))
        case "link":
            place.file(4).symlink_to(place.file(3))
        case _:
            place.file(4).mkdir()
    with pytest.raises(StokerError, match="it isn't a file"):
        newest(place)
    assert put(folder(place), lease_record(4)) == "unreachable"
    assert put(folder(place), lease_record(5)) is True


def test_the_way_out_of_a_damaged_marker_really_works(place: FolderPlace, tmp_path: Path) -> None:
    place.goes_on(3)
    place.damage()
    (tmp_path / "aside").mkdir()
    for path in place.folder.glob("*.marker"):
        path.rename(tmp_path / "aside" / path.name)
    assert newest(place) is None
    assert put(folder(place), lease_record(1)) is True


def test_a_version_of_a_newer_stoker_is_left_as_it_is(place: FolderPlace) -> None:
    place.goes_on(1)
    place.file(1).write_text('{"v":2,"whatever":[]}\n')
    with pytest.raises(StokerError) as caught:
        newest(place)
    assert caught.value.refusal.code == "store_too_new"


def test_a_field_of_a_newer_stoker_is_passed_over_and_checked_all_the_same(place: FolderPlace) -> None:
    """During an upgrade one of the two is a version ahead."""
    place.goes_on(1)
    body = json.dumps({**json.loads(place.file(1).read_text())["marker"], "later": 1})
    place.file(1).write_text(
        '{"v":1,"sha256":"%s","marker":%s}' % (hashlib.sha256(body.encode()).hexdigest(), body)  # noqa: UP031  # braces
    )
    assert newest(place) == lease_record(1, by="busy")


# --- another folder than before -------------------------------------------------------------------------------------


def test_v6_a_folder_that_has_gone_back_is_unreachable_until_it_is_the_old_one_again(
    place: FolderPlace, tmp_path: Path
) -> None:
    """Storage that isn't mounted any more shows the empty folder beneath."""
    place.goes_on(5)
    witness = folder(place)
    assert witness.read() == lease_record(5, by="busy")
    place.folder.rename(tmp_path / "elsewhere")
    place.folder.mkdir()
    with pytest.raises(LeaseUnreachable, match=r"shows no version of the marker after version 5 .* mounted"):
        witness.read()
    assert put(witness, lease_record(6)) == "unreachable"
    assert list(place.folder.iterdir()) == []
    place.folder.rmdir()
    (tmp_path / "elsewhere").rename(place.folder)
    place.file(5).rename(tmp_path / "five")
    with pytest.raises(LeaseUnreachable, match="shows version 4"):
        witness.read()
    (tmp_path / "five").rename(place.file(5))
    assert put(witness, lease_record(6)) is True


def test_who_finds_an_old_copy_is_told_to_go_on_from_no_version_and_not_from_that_one(place: FolderPlace) -> None:
    """An old version may name a standby as in sync that has missed acknowledged events since: it would take over."""
    place.goes_on(5)
    witness = folder(place)
    assert witness.read() == lease_record(5, by="busy")
    place.file(5).unlink()
    with pytest.raises(LeaseUnreachable, match=r"stop every control plane, move the \.marker files out") as caught:
        witness.read()
    assert "restart" not in str(caught.value)


async def test_each_way_in_which_a_folder_is_unreachable_says_what_to_do(place: FolderPlace, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for path, says in ((tmp_path / "nowhere", "make that folder once"), (file, "name a folder as failover.marker")):
        lease = FolderPlace.lease(place)
        lease_there = type(lease)(path, HandClock(), timeout_s=5)
        for ask in (lease_there.read(), lease_there.put(lease_record(1))):
            with pytest.raises(LeaseUnreachable, match=says) as caught:
                await ask
            assert str(path) in str(caught.value)
        await lease.close()
        await lease_there.close()


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ESTALE, errno.EIO])
def test_every_fault_of_the_file_system_has_its_words_and_a_hint(code: int) -> None:
    said = str(unreachable(Path("/mnt/marker"), OSError(code, os.strerror(code))))
    assert said.startswith(f"the marker folder /mnt/marker can't be used: {os.strerror(code)}; ")
    assert len(said.partition("; ")[2]) > 15


def test_v7_a_version_that_is_told_is_on_disk_under_its_name(place: FolderPlace) -> None:
    place.goes_on(1)
    reader = folder(place)
    with between_calls(0, lambda: None) as first:
        assert reader.read() is not None
    with between_calls(0, lambda: None) as again:
        assert reader.read() is not None
    assert first.count("fsync") == 1, "its writer may have died before it had synced the folder"
    assert again.count("fsync") == 0
