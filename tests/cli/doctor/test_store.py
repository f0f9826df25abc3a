"""What the doctor makes of the store of a control plane, before one is started on it. With a server of its own:
tests/real/test_log_store.py."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from stoker.adapters.data_folder.marks import ELSEWHERE_NAME
from stoker.cli.doctor.finding import CheckResult, Level
from stoker.cli.doctor.folder import store


def wrong(url: str, folder: Path) -> list[CheckResult]:
    return [said for said in store(url, folder) if said.level is Level.ERROR]


def with_version(path: Path, version: int) -> Path:
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA user_version = {version}")
    return path


def test_t1_a_folder_without_a_store_is_fine_whether_it_is_there_or_not(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nope"):
        assert [said.level for said in store("", folder)] == [Level.OK]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["stoker.db", "history.db"])
def test_t1_t2_a_file_of_a_newer_version_is_told_and_not_opened(tmp_path: Path, name: str) -> None:
    path = with_version(tmp_path / name, 99)
    before = path.read_bytes()
    (said,) = wrong("", tmp_path)
    assert f"{path} has schema 99; this Stoker knows" in said.what
    assert "the version of Stoker that wrote it" in said.fix
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_t1_a_log_that_is_in_the_other_store_is_told(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    with_version(tmp_path / "here" / "stoker.db", 1)
    said, _ = wrong("postgresql://127.0.0.1:1/stoker", tmp_path / "here")
    assert "has a log of its own" in said.what
    (tmp_path / ELSEWHERE_NAME).touch()
    (said,) = wrong("", tmp_path)
    assert "store.url is empty" in said.what
    assert ELSEWHERE_NAME in said.fix


@pytest.mark.parametrize(
    ("url", "what", "fix"),
    [
        ("postgresql://anna:secret@127.0.0.1:1/stoker", "Connection refused", "see that the server runs"),
        ("postgresql://anna:sec%zzret@db/stoker", "that URL can't be read", "mend it"),
        ("postgresql://anna:secret@/stoker?host=/nowhere", "No such file", "see that the server runs"),
    ],
)
def test_t1_a_database_that_cannot_be_reached_is_told_without_its_password(
    tmp_path: Path, url: str, what: str, fix: str
) -> None:
    (said,) = wrong(url, tmp_path)
    assert what in said.what
    assert said.fix.startswith(fix)
    assert "sec" not in said.what + said.fix
    assert list(tmp_path.iterdir()) == []
