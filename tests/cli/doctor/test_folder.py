"""What the doctor makes of a data folder and of what it lies on."""

import errno
import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from stoker.adapters.secret_keys import SecretKeys
from stoker.cli.doctor import folder
from stoker.cli.doctor.finding import CheckResult, Level

MOUNTS = r"""22 1 254:1 / / rw,relatime - ext4 /dev/root rw
30 22 0:25 / /run rw,nosuid - tmpfs tmpfs rw
31 22 0:40 / /srv rw,relatime shared:5 - nfs4 filer:/srv rw,vers=4.2
32 22 0:41 / /srv/my\040disk ro,relatime - xfs /dev/sdb rw
33 31 0:42 / /srv/local rw,relatime - xfs /dev/sdc rw
"""


def one(said: Iterable[CheckResult]) -> CheckResult:
    (only,) = said
    return only


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/srv/stoker", "nfs4"), ("/srv/local/stoker", "xfs"), ("/run/x", "tmpfs"), ("/srvx", "ext4"), ("/", "ext4")],
)
def test_the_mount_of_a_folder_is_the_deepest_around_it(path: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "_existing", lambda path: path)
    mount = folder.mount_of(Path(path), MOUNTS)
    assert mount is not None
    assert mount.kind == kind


def test_a_mount_point_with_a_blank_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "_existing", lambda path: path)
    assert folder.mount_of(Path("/srv/my disk/a"), MOUNTS) == folder.Mount("/srv/my disk", "xfs", read_only=True)


@pytest.mark.parametrize(
    ("mount", "control", "agent"),
    [
        (folder.Mount("/srv", "nfs4", False), Level.ERROR, Level.WARNING),
        (folder.Mount("/srv", "ext4", True), Level.ERROR, Level.ERROR),
        (folder.Mount("/run", "tmpfs", False), Level.WARNING, Level.WARNING),
        (folder.Mount("/", "overlay", False), Level.WARNING, Level.WARNING),
        (folder.Mount("/", "ext4", False), Level.OK, Level.OK),
        (None, Level.WARNING, Level.WARNING),
    ],
)
def test_an_event_log_wants_a_local_disk_that_lasts(mount: folder.Mount | None, control: Level, agent: Level) -> None:
    assert one(folder.file_system("control", mount)).level is control
    assert one(folder.file_system("agent", mount)).level is agent


def test_a_folder_that_is_not_there_is_judged_and_not_made(tmp_path: Path) -> None:
    said = one(folder.data_dir("control", tmp_path / "a" / "b"))
    assert said.level is Level.OK
    assert f"made in {tmp_path}" in said.what
    assert one(folder.disk_sync(tmp_path / "a")).level is Level.OK
    assert not (tmp_path / "a").exists()


def test_a_file_in_place_of_the_folder_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    assert one(folder.data_dir("control", tmp_path / "f")).level is Level.ERROR


def test_a_folder_that_everybody_may_enter_is_doubtful(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    assert [said.level for said in folder.data_dir("control", tmp_path)] == [Level.OK, Level.WARNING]
    assert [said.level for said in folder.data_dir("agent", tmp_path)] == [Level.OK, Level.WARNING]
    tmp_path.chmod(0o711)
    assert [said.level for said in folder.data_dir("agent", tmp_path)] == [Level.OK]
    tmp_path.chmod(0o700)
    assert [said.level for said in folder.data_dir("control", tmp_path)] == [Level.OK]


def test_d1_measuring_the_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    said = one(folder.disk_sync(tmp_path))
    assert "median of" in said.what
    assert list(tmp_path.iterdir()) == []


def test_on_a_full_disk_the_time_of_a_write_is_not_measured_and_that_is_no_defect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    said = one(folder.disk_sync(tmp_path))
    assert (said.level, said.what) == (Level.ERROR, "not measured: No space left on device")


def test_d1_a_file_system_without_nameless_files_gets_one_whose_name_is_gone_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = os.open

    def refuses(path: Path, flags: int, mode: int) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(95, "not supported")
        return whole(path, flags, mode)

    monkeypatch.setattr(os, "open", refuses)
    fd = folder.nameless_file(tmp_path)
    assert list(tmp_path.iterdir()) == []
    os.close(fd)


def test_the_holder_of_a_folder_is_found_without_touching_its_lock(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.touch()
    seen = lock.stat()
    device = f"{os.major(seen.st_dev):02x}:{os.minor(seen.st_dev):02x}:{seen.st_ino}"
    locks = f"1: FLOCK  ADVISORY  WRITE 4711 {device} 0 EOF\n1: -> FLOCK  ADVISORY  WRITE 12 {device} 0 EOF\n"
    assert folder.held_by(tmp_path, locks) == 4711
    assert folder.held_by(tmp_path, "2: POSIX ADVISORY WRITE 3 00:01:2 0 EOF\n") == 0
    assert folder.held_by(tmp_path / "nowhere", locks) == 0


@pytest.mark.parametrize(
    ("free", "level"),
    [(63 << 20, Level.ERROR), (1_023 << 20, Level.WARNING), (2 << 30, Level.OK)],
)
def test_space_is_judged_by_what_is_left(free: int, level: Level) -> None:
    assert folder.by_room(free, "room", "free some").level is level


@pytest.mark.parametrize(("median_s", "level"), [(0.6, Level.ERROR), (0.02, Level.WARNING), (0.002, Level.OK)])
def test_a_slow_disk_is_told_with_its_time(median_s: float, level: Level) -> None:
    said = folder.sync_time(median_s, 1.0, 32)
    assert said.level is level
    assert f"{median_s * 1_000:.2f} ms" in said.what


def test_a_key_of_secrets_that_others_may_read_or_that_is_copied_with_the_folder_is_wrong(tmp_path: Path) -> None:
    data_dir, path = tmp_path / "data", tmp_path / "keys" / "secrets.key"
    assert one(folder.secret_key(path, data_dir)).level is Level.OK
    SecretKeys(path).seal("label", b"value", first=True)
    assert one(folder.secret_key(path, data_dir)).level is Level.OK
    path.chmod(0o644)
    said = one(folder.secret_key(path, data_dir))
    assert (said.level, "others may read it" in said.what, "chmod 600" in said.fix) == (Level.ERROR, True, True)
    assert one(folder.secret_key(data_dir / "secrets.key", data_dir)).level is Level.ERROR


def test_an_archive_of_outputs_that_cannot_be_written_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert one(folder.archive("")).level is Level.OK
    assert one(folder.archive(str(tmp_path))).level is Level.OK
    assert one(folder.archive(str(tmp_path / "new"))).level is Level.OK
    file = tmp_path / "file"
    file.touch()
    for path in (file, file / "below"):
        assert one(folder.archive(str(path))).level is Level.ERROR

    def refused(folder: Path) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(folder, "nameless_file", refused)
    said = one(folder.archive(str(tmp_path)))
    assert (said.level, "Permission denied" in said.what) == (Level.ERROR, True)
