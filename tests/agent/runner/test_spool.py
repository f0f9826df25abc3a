"""Output files: the head, the tail, and what a reader is told of the rest (rules S1 to S3)."""

import errno
import os
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.agent.runner.output import spool
from stoker.agent.runner.output.spool import Spool

HEAD, TAIL = 10, 8


@pytest.fixture
def base(tmp_path: Path) -> str:
    return str(tmp_path / "1.1.0")


def written(base: str, *parts: bytes) -> Spool:
    writer = Spool(base, HEAD, TAIL)
    for part in parts:
        writer.write(part)
    return writer


def test_short_output_is_kept_whole(base: str) -> None:
    written(base, b"\xff\n", b"ab").close()
    assert spool.read(base, 0, 100) == (0, b"\xff\nab", 4, True)


def test_a_reader_sees_that_more_may_come_until_the_writer_closes(base: str) -> None:
    writer = written(base, b"ab")
    assert spool.read(base, 0, 100) == (0, b"ab", 2, False)
    assert spool.read(base, 2, 100) == (2, b"", 2, False)
    writer.close()
    assert spool.read(base, 2, 100) == (2, b"", 2, True)


def test_an_offset_beyond_the_end_is_answered_with_the_end(base: str) -> None:
    written(base, b"ab").close()
    assert spool.read(base, 99, 100) == (2, b"", 2, True)


def test_a_negative_offset_counts_from_the_end_and_stops_at_the_beginning(base: str) -> None:
    written(base, b"abcdef").close()
    assert spool.read(base, -2, 100)[:2] == (4, b"ef")
    assert spool.read(base, -100, 100)[:2] == (0, b"abcdef")


def test_a_limit_is_kept_across_segments(base: str) -> None:
    written(base, b"0123456789abcdefgh").close()
    assert spool.read(base, 8, 4)[:2] == (8, b"89ab")
    assert spool.read(base, 8, 0)[:2] == (8, b"")


def test_bytes_that_were_dropped_are_skipped_and_the_answer_says_where_it_begins(base: str) -> None:
    whole = bytes(range(65, 65 + 50))
    written(base, whole).close()
    begin, found, size, _ = spool.read(base, HEAD, 100)
    assert begin > HEAD
    assert found == whole[begin:]
    assert size == 50


def test_one_answer_never_joins_what_did_not_lie_together(base: str) -> None:
    written(base, bytes(50)).close()
    assert spool.read(base, 0, 100)[:2] == (0, bytes(HEAD))


@pytest.mark.parametrize("tails_in_the_listing", [1, 2])
def test_what_is_dropped_while_it_is_read_is_never_taken_for_missing_output(
    base: str, monkeypatch: pytest.MonkeyPatch, tails_in_the_listing: int
) -> None:
    """A gigabyte a second goes through a segment in the time that it takes to list and open it. A reader who was told
    that there is nothing, or sent back, would stop or say everything twice."""
    writer = written(base, b"x" * (HEAD + tails_in_the_listing * TAIL))
    listed = spool._segments(base)
    writer.write(b"y" * (5 * TAIL))
    monkeypatch.setattr(spool, "_segments", lambda _: listed)
    begin, found, size, ended = spool.read(base, HEAD + 3, 100)
    assert (found, ended) == (b"", False)
    assert begin == size == max(HEAD + 3, HEAD + (tails_in_the_listing - 1) * TAIL)


def test_what_was_dropped_between_listing_and_opening_is_skipped(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = written(base, b"x" * (HEAD + TAIL), b"y" * TAIL)
    listed = spool._segments(base)
    writer.write(b"z")
    monkeypatch.setattr(spool, "_segments", lambda _: listed)
    assert spool.read(base, HEAD, 100)[:2] == (HEAD + TAIL, b"y" * TAIL)


@given(st.lists(st.binary(max_size=40), max_size=30))
def test_whatever_is_written_the_head_and_the_tail_are_exact(parts: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        base = f"{folder}/1.1.0"
        written(base, *parts).close()
        whole = b"".join(parts)
        assert spool.read(base, 0, HEAD) == (0, whole[:HEAD], len(whole), True)
        last = min(TAIL, max(0, len(whole) - HEAD))
        if last:
            assert spool.read(base, -last, last) == (len(whole) - last, whole[-last:], len(whole), True)
        assert spool.kept_bytes(base) <= HEAD + 2 * TAIL
        spool.drop(base)
        assert os.listdir(folder) == []


def test_output_that_a_dead_runner_left_is_closed_by_the_next(base: str) -> None:
    written(base, bytes(30))
    spool.seal(base)
    assert spool.read(base, -1, 1)[3]


def test_a_task_that_never_wrote_has_an_empty_output_once_it_is_sealed(base: str) -> None:
    with pytest.raises(FileNotFoundError):
        spool.read(base, 0, 1)
    spool.seal(base)
    assert spool.read(base, 0, 1) == (0, b"", 0, True)


def test_a_full_disk_costs_output_and_says_so_but_never_the_task(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = written(base, b"abc")

    def full(fd: int, block: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        writer.write(b"def")
    writer.close()
    assert writer.lost == "3 bytes of output, from byte 3 on, are lost: No space left on device"
    assert spool.read(base, 0, 10) == (0, b"abc", 3, True)


def test_s3_output_is_kept_again_once_there_is_room(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last lines are those that say how a task ended."""
    writer = written(base, b"abc")
    free: list[int] = []

    def full(fd: int, block: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        patched.setattr(os, "fstatvfs", lambda fd: SimpleNamespace(f_bavail=free.pop(0), f_frsize=1 << 20))
        free += [9, 9, 0]
        for _ in range(4):
            writer.write(b"def")
        assert not free, "whether there is room is asked before another try"
        assert len(os.listdir(f"{base}.tail")) == 1, "tries in vain leave no file each"
    writer.write(b"end")
    writer.close()
    assert "12 bytes of output, from byte 3 on" in writer.lost
    assert spool.read(base, 0, 99) == (0, b"abc", 18, True)
    assert spool.read(base, 3, 99) == (15, b"end", 18, True)
