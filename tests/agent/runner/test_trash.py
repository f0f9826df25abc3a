"""What jobs leave behind goes, whatever it is, and takes nobody along (rules X1 to X4)."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from stoker.agent.runner.output.retention import OutputRetention, Trash, open_up
from stoker.agent.runner.protocol import SPOOL_NAME

DEEPER_THAN_PYTHON_RECURSES = 1_500
TURNS_MAX = 10_000


def emptied(trash: Trash) -> None:
    for _ in range(TURNS_MAX):
        if not trash.busy:
            return
        trash.empty(100)
    raise AssertionError("the trash is never empty")


@pytest.fixture
def trash(tmp_path: Path) -> Trash:
    return Trash(str(tmp_path / "trash"))


@pytest.fixture
def left(tmp_path: Path) -> Path:
    folder = tmp_path / "left"
    folder.mkdir()
    return folder


def test_a_folder_deeper_than_python_recurses_and_than_a_path_is_long_goes(
    trash: Trash, left: Path, tmp_path: Path
) -> None:
    here = os.open(left, os.O_RDONLY)
    for _ in range(DEEPER_THAN_PYTHON_RECURSES):
        os.mkdir("deep", dir_fd=here)
        inner = os.open("deep", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    trash.take(str(left))
    emptied(trash)
    assert os.listdir(tmp_path / "trash") == []


def test_a_link_that_a_job_puts_in_the_place_of_a_folder_just_looked_at_opens_nothing(tmp_path: Path) -> None:
    """X1: a job of the same user may still be inside; root would otherwise change the mode of whatever it names."""
    precious = tmp_path / "precious"
    precious.mkdir(mode=0o500)
    (tmp_path / "link").symlink_to(precious)
    with pytest.raises(NotADirectoryError):
        open_up(str(tmp_path / "link"))
    assert precious.stat().st_mode & 0o777 == 0o500


def test_a_folder_that_was_replaced_by_a_link_goes_and_what_it_points_at_stays(
    trash: Trash, left: Path, tmp_path: Path
) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis").write_text("years")
    (left / "inner").symlink_to(precious)
    (tmp_path / "link").symlink_to(precious)
    trash.take(str(left))
    trash.take(str(tmp_path / "link"))
    emptied(trash)
    assert (precious / "thesis").read_text() == "years"
    assert os.listdir(tmp_path / "trash") == []


@pytest.mark.parametrize("mode", [0o000, 0o555])
def test_folders_that_a_job_closed_or_froze_go(trash: Trash, left: Path, tmp_path: Path, mode: int) -> None:
    for name in ("a", "b"):
        (left / name / "inner").mkdir(parents=True)
        (left / name / "inner" / "file").write_text("x")
        (left / name / "inner").chmod(mode)
        (left / name).chmod(mode)
    left.chmod(0o700)
    trash.take(str(left))
    emptied(trash)
    assert os.listdir(tmp_path / "trash") == []


def test_what_an_earlier_runner_left_in_the_trash_goes(trash: Trash, left: Path, tmp_path: Path) -> None:
    (left / "file").write_text("x")
    trash.take(str(left))
    emptied(Trash(str(tmp_path / "trash")))
    assert os.listdir(tmp_path / "trash") == []


def test_a_turn_removes_no_more_than_its_share(trash: Trash, left: Path) -> None:
    for number in range(50):
        (left / str(number)).write_text("x")
    trash.take(str(left))
    trash.empty(10)
    assert trash.busy


def test_the_outputs_and_folders_of_forgotten_ends_go(tmp_path: Path) -> None:
    output_retention = OutputRetention(str(tmp_path), 1 << 20)
    Path(output_retention.workdir("5.1.0"), "file").write_text("x")
    Path(output_retention.output("5.1.0") + ".out").write_text("said")
    output_retention.forget(["5.1.0", "6.1.0"], live=[])
    while output_retention.trash.busy:
        output_retention.trash.empty()
    assert os.listdir(tmp_path / "work") == os.listdir(tmp_path / "trash") == os.listdir(tmp_path / SPOOL_NAME) == []


def test_an_output_that_cannot_be_removed_ends_nothing(tmp_path: Path) -> None:
    """As on a disk that the kernel has made read-only: every task of the node would go with its runner."""
    output_retention = OutputRetention(str(tmp_path), 1)
    stuck = Path(output_retention.output("5.1.0") + ".out")
    (stuck / "inner").mkdir(parents=True)
    Path(output_retention.output("5.1.0") + ".tail").mkdir()
    Path(output_retention.output("5.1.0") + ".tail", "stranger").write_text("x")
    output_retention.ended("5.1.0", live=[])
    output_retention.forget(["5.1.0"], live=[])
    output_retention.recount([])
    assert stuck.is_dir()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")
def test_outputs_of_ended_tasks_never_fill_the_disk_that_the_runner_needs(tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "none", str(tmp_path)], check=True)
    try:
        output_retention = OutputRetention(str(tmp_path), 1 << 40)
        keys = [f"{number}.1.0" for number in range(1, 40)]
        for key in keys:
            Path(output_retention.output(key) + ".out").write_bytes(bytes(1 << 20))
            output_retention.ended(key, live=[])
        kept = [key for key in keys if Path(output_retention.output(key) + ".out").exists()]
        assert kept == keys[-len(kept) :], "the oldest go"
        assert 8 <= len(kept) <= 12
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def test_a_host_file_that_cannot_be_removed_ends_neither_this_runner_nor_the_next(tmp_path: Path) -> None:
    output_retention = OutputRetention(str(tmp_path), 1 << 20)
    Path(output_retention.host_file("7.1.0"), "in-the-way").mkdir(parents=True)  # as root no mode keeps a file
    output_retention.ended("7.1.0", ())
    output_retention.recount(())
    assert Path(output_retention.host_file("7.1.0")).exists()


def test_a_folder_and_a_host_file_that_a_task_left_as_they_were_serve_the_next(tmp_path: Path) -> None:
    """Two inodes less to make and to remove for each task (X4)."""
    retention = OutputRetention(str(tmp_path), 1 << 20)
    inodes = []
    for number in range(1, 4):
        key = f"{number}.1.0"
        folder, file = Path(retention.workdir(key)), Path(retention.write_host_file(key, "node-1 slots=1\n"))
        assert (folder.name, file.read_text()) == (f"{number}.1", "node-1 slots=1\n")
        inodes.append((folder.stat().st_ino, file.stat().st_ino))
        retention.ended(key, ())
        assert not folder.exists()
        assert not file.exists()
    assert len(set(inodes)) == 1


def test_an_empty_folder_for_checkpoints_serves_a_later_job_when_its_last_task_here_has_ended(tmp_path: Path) -> None:
    retention, folder = OutputRetention(str(tmp_path), 1 << 20), tmp_path / "checkpoints" / "1.9f3ac01b77de"
    for key in ("1.1.0", "1.1.1"):
        assert retention.left_to_make(key, str(folder)) == str(folder), "nothing is spare yet"
    folder.mkdir(0o700, parents=True)
    made = folder.stat().st_ino
    retention.ended("1.1.0", ["1.1.1"])
    assert folder.exists()
    retention.ended("1.1.1", ())
    assert not folder.exists()
    later = tmp_path / "checkpoints" / "2.9f3ac01b77de"
    assert retention.left_to_make("2.1.0", str(later)) == ""
    assert later.stat().st_ino == made
    (later / "step-1").write_text("weights")
    retention.ended("2.1.0", ())
    assert (later / "step-1").read_text() == "weights"


@pytest.mark.parametrize("other", ["a link", "another place"])
def test_folders_for_checkpoints_on_other_storage_are_never_touched_here(tmp_path: Path, other: str) -> None:
    """It may hang, and the runner with it."""
    state, root = tmp_path / "state", tmp_path / "storage"
    root.mkdir()
    state.mkdir()
    if other == "a link":
        (state / "checkpoints").symlink_to(root)
        root = state / "checkpoints"
    retention, folder = OutputRetention(str(state), 1 << 20), root / "1.9f3ac01b77de"
    assert retention.left_to_make("1.1.0", str(folder)) == str(folder)
    folder.mkdir(0o700)
    retention.ended("1.1.0", ())
    assert folder.exists()


CHANGES: list[Callable[[Path, Path], object]] = [
    lambda folder, _: folder.chmod(0o750),
    lambda folder, _: os.setxattr(folder, "user.left", b"x"),
    lambda folder, _: (folder / "left").write_text("x"),
    lambda _, file: (file.write_text("node-9 slots=8\n"), os.utime(file, (1, 1))),
    lambda _, file: file.write_text("node-1 slots=1\nnode-2 slots=1\n"),
    lambda _, file: file.chmod(0o600),
    lambda _, file: file.unlink(),
]


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_task_changed_serves_no_other(tmp_path: Path, change: Callable[[Path, Path], object]) -> None:
    retention = OutputRetention(str(tmp_path), 1 << 20)
    folder, file = Path(retention.workdir("1.1.0")), Path(retention.write_host_file("1.1.0", "node-1 slots=1\n"))
    try:
        change(folder, file)
    except OSError:
        pytest.skip("no extended attributes here")
    retention.ended("1.1.0", ())
    folder, file = Path(retention.workdir("2.1.0")), Path(retention.write_host_file("2.1.0", "node-1 slots=1\n"))
    assert (folder.stat().st_mode & 0o777, os.listdir(folder), os.listxattr(folder)) == (0o700, [], [])
    assert (file.stat().st_mode & 0o777, file.read_text()) == (0o644, "node-1 slots=1\n")


def test_spare_folders_and_host_files_have_a_bound_and_end_with_their_runner(tmp_path: Path) -> None:
    retention = OutputRetention(str(tmp_path), 1 << 20)
    keys = [f"{number}.1.0" for number in range(1, 41)]
    for key in keys:
        retention.workdir(key)
        retention.write_host_file(key, f"node-{key} slots=1\n")
    for key in keys:
        retention.ended(key, ())
    assert [len(os.listdir(tmp_path / name)) for name in ("work", "hosts")] == [32, 32]
    later = OutputRetention(str(tmp_path), 1 << 20)
    later.recount(())
    assert [os.listdir(tmp_path / name) for name in ("work", "hosts")] == [[], []]
