"""Rules A1 and A2 of `adapters/atomic_file.py`."""

from pathlib import Path

from stoker.adapters.atomic_file import make_private, sync, write_atomic, written_apart
from tests.disk_calls import disk_calls


def test_a1_a_file_has_its_name_once_its_content_is_on_the_disk_and_then_that_name_is(tmp_path: Path) -> None:
    with disk_calls() as made:
        write_atomic(tmp_path / "file", b"new")
    assert [call for call in made if not call.startswith("unlink")] == [
        "fsync .file.tmp",
        "replace .file.tmp",
        f"fsync {tmp_path.name}",
    ]
    assert (tmp_path / "file").read_bytes() == b"new"
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600


def test_a_file_apart_is_on_the_disk_before_anybody_has_its_path_and_goes_with_the_block(tmp_path: Path) -> None:
    with disk_calls() as made, written_apart(tmp_path, "x", b"content") as path:
        assert made == [f"fsync {Path(path).name}"]
        assert Path(path).read_bytes() == b"content"
        assert Path(path).stat().st_mode & 0o777 == 0o600
    assert not list(tmp_path.iterdir())


def test_a2_a_private_file_that_is_there_keeps_what_it_has(tmp_path: Path) -> None:
    make_private(tmp_path / "file")
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600
    (tmp_path / "file").write_bytes(b"kept")
    make_private(tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"kept"
    with disk_calls() as made:
        sync(tmp_path / "file")
    assert made == ["fsync file"]
