"""A data folder changes places with the restored one: F1 and F2 of `adapters/data_folder/restored_folder.py`."""

import errno
from pathlib import Path
from typing import NoReturn

import pytest

from stoker.adapters.data_folder import restored_folder
from stoker.adapters.data_folder.restored_folder import new_folder


class Killed(BaseException):
    """Nobody cleans up after it."""


def replaced(path: Path) -> None:
    with new_folder(path, replace=True) as folder:
        (folder / "new").touch()


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir() if entry.name != "lock")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "old").touch()
    return tmp_path / "data"


def test_f2_what_was_there_is_kept_beside_what_takes_its_place(data: Path) -> None:
    replaced(data)
    assert names(data) == ["new"]
    assert names(data.with_name("data.before-restore-1")) == ["old"]
    assert names(data.parent) == ["data", "data.before-restore-1"]


@pytest.mark.parametrize("at", [1, 2, 3])
def test_f1_whenever_it_is_killed_there_is_a_whole_folder_that_a_control_plane_would_find(
    data: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """Where there was none, one that was started just then began a new cluster."""
    rename, left = Path.rename, [at]

    def killed(path: Path, target: Path) -> Path:
        left[0] -= 1
        if not left[0]:
            raise Killed
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", killed)
    try:
        replaced(data)
    except Killed:
        assert names(data) in (["old"], ["new"])
    monkeypatch.undo()
    replaced(data)
    assert names(data) == ["new"]
    kept = [folder for folder in data.parent.iterdir() if folder != data]
    assert ["old"] in map(names, kept)


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOSYS])
def test_where_two_folders_cannot_change_places_they_do_so_one_after_the_other(
    data: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def cannot(one: Path, other: Path) -> NoReturn:
        raise OSError(code, f"not here: {one}, {other}")

    monkeypatch.setattr(restored_folder, "exchange", cannot)
    test_f2_what_was_there_is_kept_beside_what_takes_its_place(data)
