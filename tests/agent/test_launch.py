"""What a job finds on its node."""

from pathlib import Path

import pytest

from stoker.agent.launch import CheckpointFolders, account_variables, complete_environment
from stoker.brain.domain.ids import JobId


def test_every_attempt_of_a_job_finds_the_same_folder_with_what_the_last_one_left(tmp_path: Path) -> None:
    folders = CheckpointFolders(tmp_path / "checkpoints")
    first = Path(folders.open(JobId(7)))
    (first / "step-100").write_text("weights")
    folders.close(JobId(7))
    assert (Path(folders.open(JobId(7))) / "step-100").read_text() == "weights"


def test_a_folder_that_nobody_used_does_not_stay(tmp_path: Path) -> None:
    folders = CheckpointFolders(tmp_path)
    folder = Path(folders.open(JobId(7)))
    folders.close(JobId(7))
    assert not folder.exists()
    folders.close(JobId(7))


def test_a_folder_that_cant_be_made_says_which(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file/7"):
        CheckpointFolders(tmp_path / "file").open(JobId(7))


def test_what_the_control_plane_gave_is_never_overridden() -> None:
    env = complete_environment(
        {"PATH": "/job", "STOKER_CHECKPOINT_DIR": "/mine"}, {"PATH": "/node", "HOME": "/h"}, "/c"
    )
    assert env == {"PATH": "/job", "HOME": "/h", "STOKER_CHECKPOINT_DIR": "/mine"}


def test_a_job_without_anything_has_a_path_and_a_home_and_no_tmpdir() -> None:
    env = complete_environment({}, account_variables(), "")
    assert {"PATH", "HOME"} <= env.keys()
    assert "TMPDIR" not in env
    assert "STOKER_CHECKPOINT_DIR" not in env
