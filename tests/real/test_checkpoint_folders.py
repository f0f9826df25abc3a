"""Checkpoint folders: what stays, what goes, and that nobody waits for a storage that hangs (rules H1 to H4)."""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.adapters import checkpoint_folders
from stoker.adapters.checkpoint_folders import CheckpointFolders
from stoker.adapters.clock import SystemClock
from stoker.brain.domain.ids import JobId
from tests.real.runner_node import wait_until


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[CheckpointFolders]:
    folders = CheckpointFolders(tmp_path, SystemClock())
    yield folders
    folders.stop()


class SlowStorage:
    """Removes nothing before it may."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may, self.asked, self.done = threading.Event(), threading.Event(), threading.Event()
        monkeypatch.setattr(os, "rmdir", self._slowly(os.rmdir))

    def _slowly(self, rmdir: object) -> object:
        assert callable(rmdir)

        def slow(path: str) -> None:
            self.asked.set()
            self.may.wait(60)
            self.done.set()
            rmdir(path)

        return slow


async def test_a_folder_with_content_stays_for_the_next_attempt_and_an_empty_one_goes(
    tmp_path: Path, folders: CheckpointFolders
) -> None:
    """H1."""
    for job in (1, 2):
        Path(await folders.claim(JobId(job))).mkdir()
    (tmp_path / "1" / "step-100").write_text("weights")
    for job in (1, 2, 3):
        folders.close(JobId(job))
    wait_until(lambda: not (tmp_path / "2").exists(), "the empty one goes")
    folders.stop()
    assert (tmp_path / "1" / "step-100").read_text() == "weights"


async def test_a_job_that_comes_back_before_its_folder_is_removed_keeps_it(
    tmp_path: Path, folders: CheckpointFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H2."""
    storage = SlowStorage(monkeypatch)
    for job in (1, 2):
        Path(await folders.claim(JobId(job))).mkdir()
        folders.close(JobId(job))
    assert storage.asked.wait(20)
    assert await folders.claim(JobId(2)) == str(tmp_path / "2")
    storage.may.set()
    folders.stop()
    assert not (tmp_path / "1").exists()
    assert (tmp_path / "2").exists()


async def test_while_storage_hangs_nobody_waits_but_the_job_whose_folder_is_being_removed(
    tmp_path: Path, folders: CheckpointFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H2."""
    storage = SlowStorage(monkeypatch)
    folders.close(JobId(1))
    assert storage.asked.wait(20)
    for job in range(2, 100):
        folders.close(JobId(job))
        await folders.claim(JobId(job))
    monkeypatch.setattr(checkpoint_folders, "PATIENCE_S", 0.2)
    with pytest.raises(OSError, match=f"being removed.*{tmp_path / '1'}"):
        await folders.claim(JobId(1))
    folders.stop()
    assert not storage.done.is_set(), "nor does the end of the process"
    storage.may.set()


# --- of whom they are, and for how long ---------------------------------------------------------------------------

DAY_S = 86_400


async def test_two_clusters_with_one_root_give_job_71_two_folders(tmp_path: Path, folders: CheckpointFolders) -> None:
    """H3."""
    given = [await folders.claim(JobId(71))]
    for cluster in ("01931f2e-7c00-7aaa-8aaa-00aa00aa00aa", "01931f2e-7c00-7aaa-8aaa-00aa00aa00ab", "../../etc"):
        folders.serve(cluster)
        given.append(await folders.claim(JobId(71)))
    assert [Path(path).name for path in given] == ["71", "71.00aa00aa00aa", "71.00aa00aa00ab", "71.etc"]
    assert {Path(path).parent for path in given} == {tmp_path}


def _made(path: Path, *, days: float, size: int = 0) -> Path:
    """A folder in which nothing has changed for so long."""
    (path / "deep").mkdir(parents=True)
    (path / "deep" / "weights").write_bytes(os.urandom(size))
    at = time.time() - days * DAY_S
    for each in (path / "deep" / "weights", path / "deep", path):
        os.utime(each, (at, at))
    return path


def _looking(monkeypatch: pytest.MonkeyPatch, root: Path, **bounds: float) -> CheckpointFolders:
    """One that looks at once."""
    monkeypatch.setattr(checkpoint_folders, "FIRST_S", 0.0)
    folders = CheckpointFolders(root, SystemClock(), **bounds)  # type: ignore[arg-type]  # each is what it takes
    folders.serve("c1")
    return folders


def test_old_folders_go_and_those_that_changed_or_are_in_use_or_are_no_jobs_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H4."""
    for name in ("1.c1", "2.another0ne", "3", ".removed-9.c1"):
        _made(tmp_path / name, days=91)
    stays = [_made(tmp_path / name, days=91) for name in ("4.c1", "data-of-mine", "5.c1.keep")]
    stays += [_made(tmp_path / "6.c1", days=89), _made(tmp_path / "7.c1", days=91)]
    (tmp_path / "7.c1" / "deep" / "weights").write_text("new, as only the file says")
    (tmp_path / "8.c1").symlink_to(stays[0])
    folders = _looking(monkeypatch, tmp_path, keep_s=90 * DAY_S)
    folders.keep([JobId(4)])
    gone = [tmp_path / name for name in ("1.c1", "2.another0ne", "3", ".removed-9.c1")]
    wait_until(lambda: not any(path.exists() for path in gone), "the old ones go")
    folders.stop()
    assert sorted(tmp_path.iterdir()) == sorted([*stays, tmp_path / "8.c1"])
    assert (tmp_path / "4.c1").stat().st_mtime > time.time() - DAY_S, "so that other nodes see that it is used"


def test_above_the_bound_of_bytes_the_oldest_go_first_and_none_of_this_week(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H4."""
    mib = 1 << 20
    _made(tmp_path / "1.c1", days=30, size=mib)
    stays = [_made(tmp_path / f"{job}.c1", days=days, size=mib) for job, days in ((2, 20), (3, 6), (4, 5))]
    folders = _looking(monkeypatch, tmp_path, bytes_max=3 * mib + mib // 2)
    folders.keep([])
    wait_until(lambda: not (tmp_path / "1.c1").exists(), "the oldest goes")
    folders.stop()
    assert sorted(tmp_path.iterdir()) == stays
    folders = _looking(monkeypatch, tmp_path, bytes_max=mib)
    folders.keep([])
    wait_until(lambda: not (tmp_path / "2.c1").exists(), "the next one goes")
    folders.stop()
    assert sorted(tmp_path.iterdir()) == stays[1:]


def test_without_a_bound_and_in_a_folder_too_large_to_look_at_nothing_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H4."""
    old = _made(tmp_path / "1.c1", days=9_000)
    for entries_max, bounds in ((100_000, {}), (1, {"keep_s": 90.0 * DAY_S, "bytes_max": 1})):
        monkeypatch.setattr(checkpoint_folders, "ENTRIES_MAX", entries_max)
        folders = _looking(monkeypatch, tmp_path, **bounds)
        folders.close(JobId(5))
        folders.stop()
        assert old.exists()


async def test_a_job_that_comes_while_its_old_folder_is_removed_has_a_new_one_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H4: a large one takes long."""
    _made(tmp_path / "1.c1", days=91)
    may, asked = threading.Event(), threading.Event()

    def slow(path: str, **_: object) -> None:
        asked.set()
        may.wait(20)

    monkeypatch.setattr(checkpoint_folders.shutil, "rmtree", slow)
    folders = _looking(monkeypatch, tmp_path, keep_s=90.0 * DAY_S)
    folders.keep([])
    assert asked.wait(20)
    path = Path(await folders.claim(JobId(1)))
    assert (path, path.exists()) == (tmp_path / "1.c1", False)
    may.set()
    folders.stop()
