"""Will a folder do for the marker, and by which secret do control planes know each other there?"""

import errno
import os
import stat
from functools import partial
from pathlib import Path

import pytest

from stoker.adapters.entropy import SystemEntropy
from stoker.adapters.lease_folder.placement import LeaseFolderCheck, check_folder
from stoker.adapters.lease_folder.secret import peer_secret
from stoker.brain.domain.errors import Refusal, StokerError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "marker folder"
    made.mkdir(mode=0o700)
    return made


def on(folder: Path, kind: str, options: str = "rw") -> LeaseFolderCheck:
    """As if that kind of file system were mounted there."""
    point = str(folder.parent).replace(" ", r"\040")
    mounts = folder.parent / "mountinfo"
    mounts.write_text(
        "27 1 254:0 / / rw,relatime - ext9 /dev/vda rw\n"
        f"28 27 0:25 / {point} rw,relatime - hidden-beneath none rw\n"
        f"29 27 0:26 / {point} rw,relatime shared:1 master:2 - {kind} server:/x {options}\n"
        f"30 27 0:27 / {point}/marker rw - other-folder none rw\n"
    )
    return check_folder(folder, mounts)


def refused(folder: Path, kind: str = "ext4", options: str = "rw") -> Refusal:
    with pytest.raises(StokerError) as caught:
        on(folder, kind, options)
    assert caught.value.refusal.code == "marker_unusable"
    assert str(folder) in caught.value.refusal.message
    assert list(folder.iterdir()) == [], "nothing is left behind"
    return caught.value.refusal


# --- the folder -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "ceph", "fuse.ceph-fuse", "lustre", "gpfs", "gfs2"])
def test_what_all_machines_see_alike_is_right_for_a_pair_on_two_machines(folder: Path, kind: str) -> None:
    found = on(folder, kind)
    assert (found.kind, found.reach) == (kind, "shared")
    assert "which is right" in found.sentence
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "overlay", "tmpfs"])
def test_a_disk_of_one_machine_is_right_only_for_control_planes_on_that_machine(folder: Path, kind: str) -> None:
    found = on(folder, kind)
    assert found.reach == "machine"
    assert "this machine" in found.sentence


def test_memory_is_said_to_be_gone_with_a_restart(folder: Path) -> None:
    assert "gone when this machine restarts" in on(folder, "tmpfs").sentence


@pytest.mark.parametrize("kind", ["cifs", "smb3", "vfat", "exfat", "fuse.s3fs", "fuse.gcsfuse", "fuse.sshfs"])
def test_what_can_never_be_right_is_refused_and_the_hint_names_what_is(folder: Path, kind: str) -> None:
    refusal = refused(folder, kind)
    assert f"is on {kind}: " in refusal.message
    assert "NFS" in refusal.hint
    assert "store.url" in refusal.hint


def test_what_nobody_has_heard_of_is_left_to_whoever_knows_it(folder: Path) -> None:
    found = on(folder, "fuse.newfs")
    assert found.reach == "unknown"
    assert "which Stoker doesn't know: right only if" in found.sentence


@pytest.mark.parametrize("fresh", ["lookupcache=none", "noac"])
def test_nfs_that_asks_the_server_at_each_look_needs_no_advice(folder: Path, fresh: str) -> None:
    assert "lookupcache=none" in on(folder, "nfs4", "rw,hard").sentence
    assert on(folder, "nfs4", f"rw,vers=4.2,{fresh},hard").sentence.endswith("every look asks the server")


def test_nfs_that_shows_old_pictures_is_refused(folder: Path) -> None:
    assert "nocto" in refused(folder, "nfs", "rw,nocto").message


def test_the_kind_of_this_machines_own_file_system_is_found(folder: Path) -> None:
    if not any(line.split()[4] == "/" for line in Path("/proc/self/mountinfo").read_text().splitlines()):
        pytest.skip("in a chroot, whose own file system isn't listed")
    assert check_folder(folder).kind not in ("", "unknown")


def test_a_folder_behind_a_symbolic_link_is_judged_by_where_it_is(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "short").symlink_to(folder)
    assert check_folder(tmp_path / "short").kind == check_folder(folder).kind


def test_a_file_system_without_hard_links_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", partial(_raises, errno.EPERM))
    assert "makes no hard links: Operation not permitted" in refused(folder).message


def test_a_link_that_is_another_file_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some file systems make symbolic links, or copies, of hard ones."""
    monkeypatch.setattr(os, "link", os.symlink)
    assert "isn't the same file" in refused(folder).message


def test_a_link_that_replaces_what_is_there_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.link

    def replaces(first: str, second: str) -> None:
        Path(second).unlink(missing_ok=True)
        real(first, second)

    monkeypatch.setattr(os, "link", replaces)
    assert "replaces a file that is there" in refused(folder).message


def test_names_that_cannot_be_made_durable_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fsync

    def files_only(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            _raises(errno.EINVAL)
        real(fd)

    monkeypatch.setattr(os, "fsync", files_only)
    assert "can't be made durable" in refused(folder).message


def test_a_folder_into_which_everybody_may_write_is_refused(folder: Path) -> None:
    folder.chmod(0o1777)
    refusal = refused(folder)
    assert "say who is active" in refusal.message
    assert "chmod 0700" in refusal.hint


def test_a_folder_that_is_not_there_may_yet_come(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        check_folder(tmp_path / "not mounted yet")


def _raises(code: int, *_: object) -> None:
    raise OSError(code, os.strerror(code))


# --- the secret -----------------------------------------------------------------------------------------------------


def test_the_first_makes_a_secret_that_only_its_account_can_read_and_the_others_read_it(folder: Path) -> None:
    first = peer_secret(folder, SystemEntropy())
    assert len(bytes.fromhex(first)) == 32
    assert peer_secret(folder, SystemEntropy()) == first
    assert [path.name for path in folder.iterdir()] == ["secret"]
    assert (folder / "secret").stat().st_mode & 0o777 == 0o600


def test_two_folders_have_two_secrets(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    assert peer_secret(tmp_path / "one", SystemEntropy()) != peer_secret(tmp_path / "other", SystemEntropy())


def test_e1_of_two_that_make_it_at_once_both_end_up_with_the_same(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, others = os.link, []

    def beaten(first: str, second: str) -> None:
        monkeypatch.setattr(os, "link", real)
        others.append(peer_secret(folder, SystemEntropy()))
        real(first, second)

    monkeypatch.setattr(os, "link", beaten)
    assert peer_secret(folder, SystemEntropy()) == others[0]
    assert [path.name for path in folder.iterdir()] == ["secret"]


def bad_secret(folder: Path) -> Refusal:
    with pytest.raises(StokerError) as caught:
        peer_secret(folder, SystemEntropy())
    assert caught.value.refusal.code == "peer_secret_unusable"
    assert str(folder / "secret") in caught.value.refusal.message
    return caught.value.refusal


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o666])
def test_e3_a_secret_that_others_can_read_is_refused(folder: Path, mode: int) -> None:
    told = peer_secret(folder, SystemEntropy())
    (folder / "secret").chmod(mode)
    refusal = bad_secret(folder)
    assert f"others may read it (mode 0{mode:o})" in refusal.message
    assert "stop every control plane, remove" in refusal.hint
    assert told not in repr(refusal)


@pytest.mark.parametrize("text", [b"", b"0123", b"g" * 64 + b"\n", b"a" * 63 + b"\n", b"a" * 64, b"a" * 65 + b"\n"])
def test_e3_a_secret_that_is_not_what_was_written_is_refused_and_stays_as_it_is(folder: Path, text: bytes) -> None:
    (folder / "secret").touch(0o600)
    (folder / "secret").write_bytes(text)
    assert "64 hex digits" in bad_secret(folder).message
    assert (folder / "secret").read_bytes() == text


def test_e3_a_secret_that_is_no_file_is_refused(folder: Path) -> None:
    (folder / "secret").symlink_to("/etc/hostname")
    assert "symbolic link" in bad_secret(folder).message
    (folder / "secret").unlink()
    os.mkfifo(folder / "secret", 0o600)
    assert "64 hex digits" in bad_secret(folder).message
    (folder / "secret").unlink()
    (folder / "secret").mkdir(0o700)
    assert "64 hex digits" in bad_secret(folder).message


def test_what_is_no_folder_is_refused_as_that_whoever_may_write_to_it(folder: Path) -> None:
    file = folder / "marker"
    file.touch()
    file.chmod(0o777)
    with pytest.raises(StokerError, match="isn't a folder"):
        on(file, "ext4", "rw")
