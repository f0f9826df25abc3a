"""The marker's folder: the contract of the Lease port, and what may happen between any two system calls."""

import errno
import json
import os
from functools import partial
from pathlib import Path

import pytest

from stoker.ports import LeaseUnreachable
from tests.adapters.folder_place import (
    MANY,
    FolderPlace,
    HandClock,
    between_calls,
    calls_of_a_put,
    folder,
    newest,
    put,
)
from tests.contracts.lease import LeaseContract, lease_record


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FolderPlace:
    # Thousands of versions are put here, and what a sync does can't be seen without a power loss.
    monkeypatch.setattr(os, "fsync", lambda _: None)
    return FolderPlace(tmp_path / "marker")


class TestFileLease(LeaseContract):
    @pytest.fixture
    def place(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FolderPlace:
        monkeypatch.setattr(os, "fsync", lambda _: None)
        return FolderPlace(tmp_path / "marker")


# --- what lies there ------------------------------------------------------------------------------------------------


def test_a_version_is_a_file_that_a_person_can_read(place: FolderPlace) -> None:
    assert put(folder(place), lease_record(1)) is True
    assert [path.name for path in place.folder.iterdir()] == ["0000000000000001.marker"]
    told = json.loads(place.file(1).read_text())
    assert told["marker"]["holder"] == {"name": "a", "uid": "uid-of-a"}
    assert place.file(1).stat().st_mode & 0o777 == 0o600


def test_the_highest_number_is_the_truth_whatever_the_times_of_the_files_say(place: FolderPlace) -> None:
    place.goes_on(5)
    for version, when in ((5, 0), (4, 4_000_000_000), (1, 2_000_000_000)):
        os.utime(place.file(version), (when, when))
    assert newest(place) == lease_record(5, by="busy")


def test_files_of_others_in_the_folder_are_nobodys_business(place: FolderPlace) -> None:
    place.goes_on(3)
    for name in ("secret", "README", "00000000000000009.marker", "9.marker", "0000000000000009.marker~", "x.marker"):
        (place.folder / name).write_text("?")
    (place.folder / "folder").mkdir()
    assert newest(place) == lease_record(3, by="busy")
    place.goes_on(300)
    assert (place.folder / "9.marker").exists()


# --- stopped between two system calls -------------------------------------------------------------------------------

STEPS = ("listdir", "open", "fsync", "link", "open", "fsync", "unlink", "listdir")


def test_these_are_all_the_calls_of_a_put(place: FolderPlace) -> None:
    """The tests below stop a writer before each of them."""
    assert tuple(calls_of_a_put(place.folder)) == STEPS


@pytest.mark.parametrize("step", range(1, len(STEPS) + 1))
def test_z3_a_writer_that_slept_through_a_hundred_versions_undoes_nothing_and_knows_that_it_has_lost(
    place: FolderPlace, step: int
) -> None:
    """Its number was used, or not, and removed, before it goes on: the danger of pruning."""
    place.goes_on(1)
    sleeper = folder(place)
    with between_calls(step, partial(place.goes_on, MANY)):
        done = put(sleeper, lease_record(2, by="sleeper"))
    assert done in (False, "unreachable")
    assert newest(place) == lease_record(MANY, by="busy")
    assert put(sleeper, lease_record(2, by="sleeper")) is False
    place.goes_on(MANY + 200)
    assert newest(place) == lease_record(MANY + 200, by="busy")
    assert min(place.versions) > MANY, "what it left far below is gone"
    assert place.leftovers() == []


def test_v2_what_is_linked_far_too_low_is_noticed_by_its_own_writer_and_read_by_nobody(place: FolderPlace) -> None:
    place.goes_on(1)
    with between_calls(STEPS.index("open") + 1, partial(place.goes_on, MANY)):
        assert put(folder(place), lease_record(2, by="sleeper")) is False
    assert place.versions[0] == 2, "the link itself succeeded"
    assert newest(place) == lease_record(MANY, by="busy")


def test_a_writer_that_comes_late_leaves_nothing(place: FolderPlace) -> None:
    place.goes_on(MANY)
    before = sorted(place.folder.iterdir())
    assert put(folder(place), lease_record(2)) is False
    assert sorted(place.folder.iterdir()) == before


@pytest.mark.parametrize("code", [errno.ENOENT, errno.ESTALE])
def test_a_reader_whose_version_was_removed_meanwhile_looks_again(
    place: FolderPlace, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    place.goes_on(1)
    real, left = os.open, [code]

    def gone_once(path: Path, flags: int) -> int:
        if left:
            _raises(left.pop())
        return real(path, flags)

    monkeypatch.setattr(os, "open", gone_once)
    assert newest(place) == lease_record(1, by="busy")
    monkeypatch.setattr(os, "open", partial(_raises, code))
    with pytest.raises(LeaseUnreachable, match="vanish"):
        newest(place)


@pytest.mark.parametrize("step", range(1, len(STEPS) + 1))
def test_z2_a_writer_that_another_overtakes_by_one_version_has_lost(place: FolderPlace, step: int) -> None:
    place.goes_on(1)

    def other() -> None:
        at = (place.versions or [0])[-1]
        place.goes_on(at + 1, by="other")

    with between_calls(step, other):
        assert put(folder(place), lease_record(2)) is False
    assert newest(place) in (lease_record(2, by="other"), lease_record(3, by="other"))


@pytest.mark.parametrize("step", range(1, len(STEPS) + 1))
def test_z4_a_writer_that_dies_leaves_its_version_whole_or_not_at_all_and_may_put_it_again(
    place: FolderPlace, step: int
) -> None:
    class Killed(BaseException):
        pass

    def kill() -> None:
        raise Killed

    place.goes_on(1)
    with pytest.raises(Killed), between_calls(step, kill):
        put(folder(place), lease_record(2))
    assert newest(place) in (lease_record(1, by="busy"), lease_record(2))
    assert put(folder(place), lease_record(2)) is True
    assert newest(place) == lease_record(2)


@pytest.mark.parametrize("step", range(1, len(STEPS) + 1))
def test_z5_a_write_that_took_too_long_is_never_told_as_won(place: FolderPlace, step: int) -> None:
    """Whoever was stopped after its last look can't know what has happened since."""
    clock = HandClock()

    def sleeps() -> None:
        clock.at_s += 6

    with pytest.raises(LeaseUnreachable, match=r"took 6\.0 s"), between_calls(step, sleeps):
        folder(place, clock).put(lease_record(1), clock.mono())
    assert (newest(place) is None) is (step <= STEPS.index("link")), "whoever has given up links nothing any more"


# --- links that say something else than they did --------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.EEXIST, errno.EIO, errno.ETIMEDOUT, errno.ENOENT])
def test_v4_a_link_that_was_made_counts_whatever_its_answer_says(
    place: FolderPlace, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """NFS asks again when an answer is lost, and is told EEXIST for what it did itself."""
    real = os.link

    def lied(source: str, target: Path) -> None:
        real(source, target)
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", lied)
    assert put(folder(place), lease_record(1)) is True
    assert newest(place) == lease_record(1)


def test_v4_a_link_that_was_not_made_counts_as_unreachable_and_the_version_is_free(
    place: FolderPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(os, "link", partial(_raises, errno.EIO))
        assert put(folder(place), lease_record(1)) == "unreachable"
    assert newest(place) is None
    assert place.leftovers() == []
    assert put(folder(place), lease_record(1, by="b")) is True


def _raises(code: int, *_: object) -> None:
    raise OSError(code, os.strerror(code))


def test_a_folder_that_does_not_show_what_was_linked_is_not_trusted(
    place: FolderPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = folder(place)
    assert put(writer, lease_record(1)) is True
    monkeypatch.setattr(os, "listdir", lambda _: ["0000000000000001.marker"])
    assert put(writer, lease_record(2)) == "unreachable"
