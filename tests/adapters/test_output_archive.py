"""The archive of outputs: whole or not at all, read as from the node, and held within its bounds."""

import asyncio
import os
import stat
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.adapters import output_archive
from stoker.adapters.output_archive import OutputFolder
from stoker.brain.domain.ids import JobId
from stoker.brain.domain.instruction import TaskKey
from tests.rig.sim_ports import SimClock

DAY_S = 86_400


def key(job: int = 1, attempt: int = 1, rank: int = 0) -> TaskKey:
    return TaskKey(JobId(job), attempt, rank)


def archive(folder: Path, *, bytes_max: int = 0, days: int = 0) -> OutputFolder:
    return OutputFolder(folder, SimClock(), bytes_max=bytes_max, days=days)


async def keep(kept: OutputFolder, at: TaskKey, *pieces: tuple[int, bytes]) -> None:
    size = 0
    for offset, data in pieces:
        await kept.write(at, offset, data)
        size = offset + len(data)
    await kept.finish(at, size)


async def whole(kept: OutputFolder, at: TaskKey, offset: int = 0, limit: int = 1 << 20) -> list[tuple[int, bytes]]:
    """All that a reader gets who begins there, with where each answer begins."""
    got: list[tuple[int, bytes]] = []
    while (chunk := await kept.read(at, offset, limit)) is not None and chunk.data:
        assert chunk.ended
        assert len(chunk.data) <= limit
        got.append((chunk.offset, chunk.data))
        offset = chunk.offset + len(chunk.data)
    return got


async def test_an_output_is_there_once_it_is_finished_and_not_before(tmp_path: Path) -> None:
    kept = archive(tmp_path)
    assert await kept.read(key(), 0, 10) is None
    await kept.write(key(), 0, b"hello ")
    assert (await kept.has(key()), await kept.read(key(), 0, 10)) == (False, None)
    await kept.write(key(), 6, b"there\n")
    await kept.finish(key(), 12)
    assert await kept.has(key())
    assert await whole(archive(tmp_path), key()) == [(0, b"hello there\n")]
    assert not await kept.has(key(attempt=2))
    assert not await kept.has(key(rank=1))


async def test_clusters_that_share_a_folder_never_see_each_others_outputs(tmp_path: Path) -> None:
    ours, theirs = archive(tmp_path), archive(tmp_path, bytes_max=1)
    ours.belong_to("019a-ours")
    theirs.belong_to("019a-theirs")
    await keep(ours, key(), (0, b"ours"))
    assert not await theirs.has(key())
    assert await theirs.read(key(), 0, 10) is None
    await keep(theirs, key(), (0, b"theirs"))
    assert await theirs.sweep() == 1
    assert await whole(ours, key()) == [(0, b"ours")]


async def test_what_was_given_up_is_written_anew(tmp_path: Path) -> None:
    kept = archive(tmp_path)
    await kept.write(key(), 0, b"half")
    kept.give_up(key())
    await keep(kept, key(), (0, b"whole"))
    assert await whole(kept, key()) == [(0, b"whole")]


async def test_a_task_that_wrote_nothing_has_an_empty_output(tmp_path: Path) -> None:
    kept = archive(tmp_path)
    await keep(kept, key())
    chunk = await kept.read(key(), 0, 10)
    assert chunk is not None
    assert (chunk.data, chunk.size, chunk.ended) == (b"", 0, True)


@pytest.mark.parametrize("cut", [1, 5, 40])
async def test_k1_a_file_that_a_crash_cut_short_is_none(tmp_path: Path, cut: int) -> None:
    kept = archive(tmp_path)
    await keep(kept, key(), (0, b"a line of text\n" * 3))
    (path,) = tmp_path.glob("0/1.1.0")
    os.truncate(path, path.stat().st_size - cut)
    assert (await kept.has(key()), await kept.read(key(), 0, 10)) == (False, None)


async def test_output_that_looks_like_a_last_line_is_output(tmp_path: Path) -> None:
    kept = archive(tmp_path)
    text = b'\n{"pieces":[[0,1]],"size":1}\n'
    await keep(kept, key(), (0, text))
    assert await whole(kept, key()) == [(0, text)]


async def test_k2_nobody_else_may_read_it(tmp_path: Path) -> None:
    kept = archive(tmp_path / "made")
    await keep(kept, key(7_001), (0, b"secret"))
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "made").rglob("*")}
    assert modes == {"7": 0o700, "7001.1.0": 0o600}


async def test_k3_the_oldest_go_when_there_is_too_much_or_they_are_too_old(tmp_path: Path) -> None:
    kept = archive(tmp_path, bytes_max=3_500)
    for job in (1, 999, 1_000, 2_000):
        await keep(kept, key(job), (0, b"x" * 1_000))
    assert await kept.sweep() == 1
    assert [await kept.has(key(job)) for job in (1, 999, 1_000, 2_000)] == [False, True, True, True]
    old = archive(tmp_path, days=2)
    os.utime(next(tmp_path.glob("1/1000.1.0")), (0, SimClock().now() / 1_000 - 3 * DAY_S))
    for job in (999, 2_000):
        os.utime(next(tmp_path.glob(f"*/{job}.1.0")), (0, SimClock().now() / 1_000))
    assert await old.sweep() == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "2"], "empty folders go too"


async def test_k3_there_is_a_bound_for_the_number_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_archive, "FILES_MAX", 2)
    kept = archive(tmp_path)
    for job in (1, 2, 3):
        await keep(kept, key(job), (0, b"x"))
    assert await kept.sweep() == 1
    assert not await kept.has(key(1))


async def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        await archive(tmp_path / "file").write(key(), 0, b"x")


@given(
    pieces=st.lists(st.tuples(st.integers(0, 9), st.binary(min_size=1, max_size=20)), max_size=6),
    offset=st.integers(-80, 200),
    limit=st.integers(1, 30),
)
def test_it_is_read_as_it_is_on_the_node_from_any_place(
    pieces: list[tuple[int, bytes]], offset: int, limit: int
) -> None:
    """Shape of a piece: bytes that were dropped before it, and what was kept."""
    size, kept_bytes = 0, dict[int, int]()
    told: list[tuple[int, bytes]] = []
    for dropped, data in pieces:
        size += dropped
        told.append((size, data))
        kept_bytes |= {size + index: byte for index, byte in enumerate(data)}
        size += len(data)

    async def read() -> list[tuple[int, bytes]]:
        with tempfile.TemporaryDirectory() as folder:
            kept = archive(Path(folder))
            await keep(kept, key(), *told)
            return await whole(kept, key(), offset, limit)

    begin = max(0, size + offset) if offset < 0 else offset
    got = {at + index: byte for at, data in asyncio.run(read()) for index, byte in enumerate(data)}
    assert got == {at: byte for at, byte in kept_bytes.items() if at >= begin}
