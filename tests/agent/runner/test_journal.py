"""What the runner knows after a crash (rules J1 to J7)."""

import errno
import os
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from stoker.agent.runner import journal as module
from stoker.agent.runner.journal import RESERVED_BYTES, Journal, JournalDamaged
from stoker.agent.runner.process.kernel import reserve
from tests.disk_calls import disk_calls


def record(key: str) -> dict[str, object]:
    return {"key": key, "mark": f"{key}.x", "boot": "b", "at": 1, "gpus": ["G"], "groups": [], "pid": 0, "birth": 0}


def over(key: str, at: int = 5, code: int | None = 0) -> dict[str, object]:
    end = {
        "cause": "exited",
        "at": at,
        "exit_code": code,
        "signal": 0,
        "oom": False,
        "peak_memory_mb": 0,
        "error": "\u00e4",
    }
    return {"key": key, "gpus": ["G"], "started_at": 2, "end": end}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def loaded(path: Path) -> Journal:
    journal = Journal(str(path))
    journal.load()
    return journal


def written(path: Path) -> Journal:
    """Task 1 open with its process, 2 ended, 3 ended and settled."""
    journal = loaded(path)
    for key in ("1.1.0", "2.1.0", "3.1.0"):
        journal.start(record(key))  # type: ignore[arg-type]  # a shape that exists for the type checker only
    journal.ran("1.1.0", 77, 88)
    journal.end(over("2.1.0", code=4))  # type: ignore[arg-type]  # as above
    journal.end(over("3.1.0", code=6))  # type: ignore[arg-type]  # as above
    journal.settle("3.1.0")
    journal.commit(durable=True)
    return journal


def assert_as_written(journal: Journal) -> None:
    assert list(journal.open) == ["1.1.0"]
    assert (journal.open["1.1.0"]["pid"], journal.open["1.1.0"]["birth"]) == (77, 88)
    assert [entry["key"] for entry in journal.offered_ends()] == ["2.1.0"]
    assert list(journal.settled) == ["3.1.0"]
    ended = journal.end_of("2.1.0")
    assert ended == over("2.1.0", code=4)
    settled = journal.end_of("3.1.0")
    assert settled is not None
    assert settled["end"] == over("3.1.0", code=6)["end"]


def test_everything_committed_is_known_to_the_next_runner(path: Path) -> None:
    written(path)
    assert_as_written(loaded(path))
    assert_as_written(loaded(path))


def test_what_was_committed_durably_is_on_the_disk_when_that_returns(path: Path) -> None:
    """J1: the lines, and a journal that is written anew before it has its name, and that name."""
    anew = ["write journal.new", "fsync journal.new", "rename journal.new", f"fsync {path.parent.name}"]
    with disk_calls() as made:
        journal = loaded(path)
    assert made == anew
    with disk_calls() as made:
        journal.start(record("1.1.0"))  # type: ignore[arg-type]  # as above
        journal.end(over("1.1.0"))  # type: ignore[arg-type]  # as above
        journal.commit(durable=True)
    assert made == ["write journal", "fdatasync journal"]
    with disk_calls() as made:
        journal.settle("1.1.0")
        journal.commit(durable=False)
    assert made == ["write journal"], "what costs nothing when it is lost waits for nothing"
    with disk_calls() as made:
        journal.renounce()
    assert made == anew


def test_a_task_is_known_by_its_start_or_by_its_end_and_no_other_is(path: Path) -> None:
    """Else one instruction would start it twice, or another that never came would never be carried out."""
    journal = written(path)
    assert [journal.knows(f"{job}.1.0") for job in range(5)] == [False, True, True, True, False]
    assert list(journal.open) == ["1.1.0"]


def test_a_journal_written_anew_says_the_same(path: Path) -> None:
    journal = written(path)
    journal.rewrite()
    assert_as_written(journal)
    assert_as_written(loaded(path))


def test_at_every_byte_a_crash_may_cut_the_file_what_came_before_is_known(path: Path, tmp_path: Path) -> None:
    """J2."""
    written(path)
    whole = path.read_bytes()
    lines = whole.split(b"\n")
    cut = tmp_path / "cut"
    for length in range(len(lines[0]), len(whole) + 1):
        cut.write_bytes(whole[:length])
        journal = loaded(cut)
        known = journal.open.keys() | journal.offered.keys() | journal.settled.keys()
        complete = sum(b'"t":"start"' in line for line in whole[:length].split(b"\n") if line in lines)
        assert len(known) == complete


def test_a_bad_line_before_whole_ones_is_refused_with_its_number(path: Path) -> None:
    """J3."""
    written(path)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = lines[2].replace(b"G", b"H")
    path.write_bytes(b"".join(lines))
    with pytest.raises(JournalDamaged, match=r"line 3 is damaged.*To recover"):
        loaded(path)
    assert path.read_bytes() == b"".join(lines), "it was left as it is"


def test_a_journal_of_a_newer_version_is_refused(path: Path) -> None:
    path.write_bytes(module._line(b'{"t":"journal","version":2}'))
    with pytest.raises(JournalDamaged, match="newer"):
        loaded(path)


def test_settled_ends_are_forgotten_by_number_the_oldest_first(path: Path) -> None:
    """J4."""
    journal = loaded(path)
    for n in range(1, 6):
        journal.end(over(f"{n}.1.0", at=n))  # type: ignore[arg-type]  # as above
        journal.settle(f"{n}.1.0")
    assert journal.forget(3, 0) == ["1.1.0", "2.1.0"]
    journal.commit(durable=True)
    assert list(loaded(path).settled) == ["3.1.0", "4.1.0", "5.1.0"]


def test_settled_ends_are_forgotten_by_age(path: Path) -> None:
    """J4."""
    journal = loaded(path)
    for n in (1, 2, 3):
        journal.end(over(f"{n}.1.0", at=n * 1000))  # type: ignore[arg-type]  # as above
        journal.settle(f"{n}.1.0")
    assert journal.forget(100, 2000) == ["1.1.0"]


def test_an_end_that_nobody_has_taken_is_never_forgotten(path: Path) -> None:
    """J4."""
    journal = loaded(path)
    for n in range(1, 6):
        journal.end(over(f"{n}.1.0", at=n))  # type: ignore[arg-type]  # as above
    assert journal.forget(0, 1_000_000) == []
    assert len(list(journal.offered_ends())) == 5


def test_after_a_failed_write_nothing_counts_until_the_whole_was_written_anew(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J5."""
    journal = written(path)
    journal.start(record("9.1.0"))  # type: ignore[arg-type]  # as above

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", full)
        with pytest.raises(OSError, match="No space"):
            journal.commit(durable=True)
    with pytest.raises(OSError, match="anew"):
        journal.commit(durable=True)
    journal.rewrite()
    journal.commit(durable=True)
    assert "9.1.0" in loaded(path).open


def test_a_journal_grown_large_is_written_anew_with_what_still_matters(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_COMPACT_BYTES_MIN", 20_000)
    journal = loaded(path)
    for n in range(1, 501):
        journal.start(record(f"{n}.1.0"))  # type: ignore[arg-type]  # as above
        journal.end(over(f"{n}.1.0"))  # type: ignore[arg-type]  # as above
        journal.settle(f"{n}.1.0")
        journal.forget(10, 0)
        journal.commit(durable=False)
    assert path.stat().st_size < 40_000
    assert list(loaded(path).settled) == [f"{n}.1.0" for n in range(491, 501)]


# --- J6: a disk that others have filled -----------------------------------------------------------------------------


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")
def test_ends_are_written_on_a_disk_that_others_have_filled(tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(tmp_path)], check=True)
    try:
        journal = Journal(str(tmp_path / "journal"), reserve)
        journal.load()
        journal.start(record("0"))
        journal.commit(durable=True)
        with suppress(OSError), (tmp_path / "ballast").open("wb", buffering=0) as ballast:
            while True:
                ballast.write(bytes(4096))
        for number in range(4_000):
            journal.end(over(str(number)))
            journal.commit(durable=True)
        (tmp_path / "ballast").unlink()
        journal.start(record("4000"))
        journal.commit(durable=True)
        assert os.stat(journal.path).st_blocks * 512 > os.stat(journal.path).st_size + RESERVED_BYTES // 2
        assert len(loaded(tmp_path / "journal").offered) == 4_000
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)


# --- J7: a runner that begins on a disk that others have filled ------------------------------------------------------


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")
@pytest.mark.parametrize("cut", [0, 1, 2, 40])
def test_a_runner_that_begins_on_a_full_disk_knows_what_the_one_before_it_left_and_goes_on(
    tmp_path: Path, cut: int
) -> None:
    """`cut`: bytes that a crash took from the last line, which begins an end of task 4."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(tmp_path)], check=True)
    try:
        path = tmp_path / "journal"
        written(path)
        with path.open("ab") as file:
            file.write(module._line(b'{"t":"start","key":"4.1.0","pid":0}')[: -cut or None])
        before = path.stat().st_size
        with suppress(OSError), (tmp_path / "ballast").open("wb", buffering=0) as ballast:
            for size in (4096, 1):
                with suppress(OSError):
                    while True:
                        ballast.write(bytes(size))
        later = loaded(path)
        assert ("4.1.0" in later.open) is (cut < 2), "without its line break a line is whole"
        later.open.pop("4.1.0", None)
        assert_as_written(later)
        later.settle("2.1.0")
        later.commit(durable=True)
        assert path.stat().st_size > before
        assert list(tmp_path.glob("*.new")) == [], "nothing is left that fills the disk further"
        (tmp_path / "ballast").unlink()
        assert list(loaded(path).settled) == ["3.1.0", "2.1.0"]
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def test_a_journal_that_cannot_be_written_anew_for_its_size_keeps_what_it_has(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = written(path)

    def full(at: str, content: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(module, "replace_file", full)
        journal._compact_at = 1
        journal.end(over("1.1.0"))  # type: ignore[arg-type]  # as above
        journal.commit(durable=True)
        journal.settle("1.1.0")
        journal.commit(durable=True)
    assert list(loaded(path).settled) == ["3.1.0", "1.1.0"]
