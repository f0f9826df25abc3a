"""What is restored and what is refused, into which folder."""

import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from stoker.brain.domain.errors import StokerError
from stoker.cli.wiring.restore import restore_backup
from stoker.wire.backup import HEAD
from tests.real.agent_process import submit
from tests.real.backups import at_most, backed_up, known_jobs, refused, stoker
from tests.real.control_process import ControlProcess


class Kept:
    """One backup, and a place for what is made of it."""

    def __init__(self, file: Path) -> None:
        self.file, self.content = file, file.read_bytes()

    def restore(self, content: bytes, folder: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
        changed = folder.parent / "changed.tar"
        changed.write_bytes(content)
        return stoker("restore", changed, "--data-dir", folder, *words)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    folder = tmp_path_factory.mktemp("kept")
    with ControlProcess(folder / "data") as control:
        for _ in range(3):
            submit(control, "true")
        backed_up(control, folder / "b.tar")
    return Kept(folder / "b.tar")


def places(content: bytes) -> dict[str, tuple[bytes, str]]:
    """What may have become of a file, and how it is called."""
    half, later = len(content) // 2, content.index(b"made_at")
    return {
        "cut off in its head": (content[:700], "backup_damaged"),
        "cut off in the middle": (content[:half], "backup_damaged"),
        "cut off before its end": (content[:-1], "backup_damaged"),
        "a byte of its head is flipped": (_flipped(content, later + 12), "backup_damaged"),
        "a byte of its state is flipped": (_flipped(content, 3_000), "backup_damaged"),
        "a byte of its history is flipped": (_flipped(content, half), "backup_damaged"),
        "empty": (b"", "backup_foreign"),
        "another program's": (b"PK\x03\x04" + content, "backup_foreign"),
        "of a newer format": (content.replace(b'"stoker_backup": 1', b'"stoker_backup": 9', 1), "backup_too_new"),
    }


def _flipped(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


def test_a_file_that_is_not_whole_and_ours_is_refused_and_nothing_is_written(kept: Kept, tmp_path: Path) -> None:
    for what, (content, code) in places(kept.content).items():
        done = kept.restore(content, tmp_path / "new")
        assert refused(done, 1) == code, what
        assert [path.name for path in tmp_path.iterdir()] == ["changed.tar"], what


def test_a_tar_file_of_another_program_is_refused(kept: Kept, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "other.tar", "w") as tar:
        tar.add(kept.file, HEAD)
    assert refused(stoker("restore", tmp_path / "other.tar", "--data-dir", tmp_path / "new"), 1) == "backup_foreign"


def test_a_folder_that_has_a_log_is_refused_or_moved_aside(kept: Kept, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    assert stoker("restore", kept.file, "--data-dir", folder).returncode == 0
    (folder / "mine").touch()
    assert refused(stoker("restore", kept.file, "--data-dir", folder), 4) == "data_dir_not_empty"
    assert (folder / "mine").exists()
    assert stoker("restore", kept.file, "--data-dir", folder, "--force").returncode == 0
    assert not (folder / "mine").exists()
    assert (tmp_path / "data.before-restore-1" / "mine").exists()


def test_a_folder_that_a_control_plane_holds_is_refused_even_by_force(kept: Kept, tmp_path: Path) -> None:
    with ControlProcess(tmp_path / "data") as control:
        submit(control, "true")
        for words in ((), ("--force",)):
            assert refused(stoker("restore", kept.file, "--data-dir", control.folder, *words), 1) == "data_dir_held"
        assert known_jobs(control) == {1}


def test_the_folder_may_be_named_by_the_settings_of_the_control_plane(kept: Kept, tmp_path: Path) -> None:
    settings = tmp_path / "control.yaml"
    settings.write_text(f"data_dir: {tmp_path / 'data'}\n")
    assert stoker("restore", kept.file, "-c", settings).returncode == 0
    assert (tmp_path / "data" / "stoker.db").exists()
    both = stoker("restore", kept.file, "-c", settings, "--data-dir", tmp_path / "new")
    assert both.returncode == stoker("restore", kept.file).returncode == 2


def test_an_empty_folder_keeps_its_owner_and_its_mode(kept: Kept, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir(mode=0o750)
    folder.chmod(0o750)
    if os.geteuid() == 0:
        os.chown(folder, 4_242, 4_243)
    before = folder.stat()
    assert stoker("restore", kept.file, "--data-dir", folder).returncode == 0
    for entry in (folder, *folder.iterdir()):
        assert (entry.stat().st_uid, entry.stat().st_gid) == (before.st_uid, before.st_gid)
    assert folder.stat().st_mode == before.st_mode


def test_a_link_to_the_folder_stays_and_what_it_names_is_replaced(kept: Kept, tmp_path: Path) -> None:
    (tmp_path / "disk" / "data").mkdir(parents=True)
    (tmp_path / "disk" / "data" / "mine").touch()
    link = tmp_path / "data"
    link.symlink_to(tmp_path / "disk" / "data")
    restore_backup(kept.file, link, force=True)
    assert link.is_symlink()
    assert (link / "stoker.db").exists()
    assert (tmp_path / "disk" / "data.before-restore-1" / "mine").exists()


def test_nothing_is_put_into_a_folder_that_is_refused(kept: Kept, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "mine").touch()
    with pytest.raises(StokerError, match="isn't empty"):
        restore_backup(kept.file, tmp_path / "home", force=False)
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["mine"]


def test_where_a_disk_is_mounted_nothing_is_moved_and_a_folder_on_it_is_proposed(kept: Kept) -> None:
    with pytest.raises(StokerError, match="disk is mounted") as caught:
        restore_backup(kept.file, Path("/proc"), force=True)
    assert "/proc/restored" in caught.value.refusal.hint


def test_a_pipe_is_refused_since_a_backup_is_read_twice(kept: Kept, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StokerError, match="read twice"):
        restore_backup(tmp_path / "pipe", tmp_path / "new", force=False)


def test_a_restore_that_finds_no_room_leaves_nothing(kept: Kept, tmp_path: Path) -> None:
    done = stoker("restore", kept.file, "--data-dir", tmp_path / "new", preexec_fn=at_most(20_000))
    assert refused(done, 1) == "data_dir_unusable"
    assert list(tmp_path.iterdir()) == []


def test_a_restore_that_was_killed_is_done_again(kept: Kept, tmp_path: Path) -> None:
    half = tmp_path / "new" / "incoming"
    half.mkdir(parents=True)
    (half / "history.db").write_bytes(b"half")
    assert stoker("restore", kept.file, "--data-dir", tmp_path / "new").returncode == 0
    assert not half.exists()
