"""Checkpoint folders: what stays, what goes, and that nobody waits for a storage that hangs (rules H1, H2)."""

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
        self.may, self.asked = threading.Event(), threading.Event()
        monkeypatch.setattr(os, "rmdir", self._slowly(os.rmdir))

    def _slowly(self, rmdir: object) -> object:
        assert callable(rmdir)

        def slow(path: str) -> None:
            self.asked.set()
            self.may.wait(20)
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
    monkeypatch.setattr(checkpoint_folders, "PATIENCE_S", 0.2)
    storage = SlowStorage(monkeypatch)
    began_s = time.monotonic()
    folders.close(JobId(1))
    assert storage.asked.wait(20)
    for job in range(2, 100):
        folders.close(JobId(job))
        await folders.claim(JobId(job))
    assert time.monotonic() - began_s < 0.2
    with pytest.raises(OSError, match=f"being removed.*{tmp_path / '1'}"):
        await folders.claim(JobId(1))
    folders.stop()
    assert time.monotonic() - began_s < 5, "nor does the end of the process"
    storage.may.set()
