"""Where a backup may be written, and which folder it may be taken of."""

import os
from pathlib import Path

import pytest

from stoker.adapters.data_folder.marks import ELSEWHERE_NAME
from stoker.brain.domain.errors import StokerError
from stoker.cli.wiring.backup import backup_in, file_to_be


def code_of(path: Path, *, force: bool) -> str:
    with pytest.raises(StokerError) as caught, file_to_be(path, force=force):
        pass
    return caught.value.refusal.code


def test_what_is_no_file_is_never_replaced_not_even_by_force(tmp_path: Path) -> None:
    """As root it might be /dev/null."""
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    for path in (pipe, link, tmp_path):
        assert code_of(path, force=True) == "backup_unwritable"
        assert code_of(path, force=False) == "backup_exists"
    assert pipe.is_fifo()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "pipe"]


@pytest.mark.parametrize("is_there", [True, False])
def test_a_link_stays_and_the_file_that_it_names_is_written(tmp_path: Path, is_there: bool) -> None:
    (tmp_path / "disk").mkdir()
    target, link = tmp_path / "disk" / "monday.tar", tmp_path / "latest.tar"
    if is_there:
        target.write_bytes(b"old")
    link.symlink_to(target)
    with file_to_be(link, force=True) as out:
        out.write(b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"


def test_a_stopped_one_whose_log_is_in_a_database_is_to_be_started(tmp_path: Path) -> None:
    (tmp_path / ELSEWHERE_NAME).touch()
    with (tmp_path / "out").open("wb") as out, pytest.raises(StokerError, match="in PostgreSQL") as caught:
        backup_in(tmp_path, out)
    assert "start it" in caught.value.refusal.hint
