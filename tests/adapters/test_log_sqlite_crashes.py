"""A process that dies at any step on the disk while its log is cut, replaced or given an id.

A death is an exception that nothing catches, at the n-th call of whatever changes names or waits for the disk; after it
each further call dies too. What SQLite itself does is a transaction, there or not.
"""

import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from stoker.adapters.data_folder.folder_swap import REPLACED_MAX
from stoker.adapters.data_folder.marks import ID_NAME, replica_id
from stoker.adapters.entropy import SystemEntropy
from stoker.brain.domain.ids import Epoch, Position
from stoker.ports import LogBeginning
from tests.adapters.folder_store import FolderStore
from tests.contracts.event_log import ONE, TWO, everything, numbered, opened, records
from tests.contracts.replica_log import CLUSTER, found, history_reaches, noted

STEPS = ("fsync", "rename", "replace", "unlink", "mkdir", "rmdir")
STEPS_MAX = 100


class Died(BaseException):
    """Not to be caught."""


@contextmanager
def dying_at(step: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], bool]]:
    """Within, the process dies at that step. Did it?"""
    calls = itertools.count(1)
    dead = [False]

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def step_or_die(*args: object, **named: object) -> object:
            if next(calls) >= step:
                dead[0] = True
                raise Died
            return real(*args, **named)

        return step_or_die

    with monkeypatch.context() as patched:
        for name in STEPS:
            patched.setattr(os, name, counted(getattr(os, name)))
        yield lambda: dead[0]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("template")


def copied(template: Path, to: Path) -> FolderStore:
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(template, to)
    return FolderStore(to / "data")


async def two_epochs(folder: Path) -> None:
    """Nine records under two epochs, snapshots at 3 and 8, a history up to 9."""
    store = FolderStore(folder / "data")
    if store.folder.exists():
        return
    async with opened(store) as (log, _):
        await log.append(ONE, Position(0), records(1, 5))
        await log.append(TWO, Position(5), records(6, 4))
        await log.save_snapshot(Position(3), [b"at 3"])
        await log.save_snapshot(Position(8), [b"at 8"])
    await noted(store, 1, 9)


async def test_k4_a_death_anywhere_in_a_cut_leaves_a_log_that_opens_and_the_same_cut_finishes_it(
    template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await two_epochs(template)
    ends: set[int] = set()
    for step in range(1, STEPS_MAX):
        store = copied(template, tmp_path / "crash")
        log = store.log()
        await log.open()
        with dying_at(step, monkeypatch) as died, suppress(Died):
            await log.cut(Position(6))
        await log.close()
        async with opened(store) as (again, end):
            ends.add(end)
            assert end in (6, 9)
            assert await everything(again) == numbered(1, end)
            if end == 9:
                await again.cut(Position(6))
        assert await found(store) == (6, 3, numbered(4, 3), [(2, 6), (1, 5)])
        assert store.tails() == [numbered(7, 3)]
        async with opened(store):
            assert (await history_reaches(store))[0].position == 6
        assert not list(store.folder.glob("*.tmp"))
        if not died():
            break
    assert ends == {6, 9}
    assert 4 < step < STEPS_MAX - 1, "each step was one to die at"


async def incoming_to(store: FolderStore, folder: Path) -> None:
    other = FolderStore(folder)
    await noted(other, 1, 103)
    history = other.history()
    await history.open()
    copy = await history.copy()
    coming = store.incoming()
    await coming.begin()
    while piece := await copy.read():
        await coming.write(piece)
    await copy.close()
    await history.close()
    await coming.finish(LogBeginning(CLUSTER, (Epoch(3), Position(100)), [b"state"], Epoch(3)))


async def test_l8_a_death_anywhere_in_an_install_leaves_the_old_log_or_the_new_one_each_with_its_history(
    template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await two_epochs(template)
    old = (9, 8, numbered(9, 1), [(2, 9), (1, 5)])
    new: tuple[object, ...] = (100, 100, [], [(3, 100)])
    seen: list[bool] = []
    for step in range(1, STEPS_MAX):
        store = copied(template, tmp_path / "crash")
        log = store.log()
        await log.open()
        uid = log.uid
        await log.promise(TWO)
        await incoming_to(store, tmp_path / "crash" / "other")
        with dying_at(step, monkeypatch) as died, suppress(Died):
            await log.install(Epoch(3), Position(100), store.folder / "incoming")
            await log.close()
            async with opened(store):
                pass
        await log.close()
        is_new = (now := await found(store)) == new
        assert is_new or now == old
        seen.append(is_new)
        async with opened(store) as (log, _):
            assert (log.uid, log.promised) == (uid, 2)
            assert (await history_reaches(store))[0].position == (100 if is_new else 9)
        left = {path.name for path in store.folder.iterdir()}
        assert not {name for name in left if name.startswith(("incoming", "installing", ".installing"))}, left
        assert not is_new or FolderStore(store.folder / "replaced-1").sql("SELECT max(position) FROM event") == [(9,)]
        if not died():
            break
    assert seen == sorted(seen), "once it is the new one it stays so"
    assert {*seen} == {False, True}
    assert 10 < step < STEPS_MAX - 1


async def test_w3_only_so_many_replaced_logs_are_kept(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "data")
    for turn in range(1, REPLACED_MAX + 3):
        async with opened(store) as (log, end):
            await log.append(Epoch(3), end, records(end + 1, 1))
            await incoming_to(store, tmp_path / f"other{turn}")
            await log.install(Epoch(3), Position(100), store.folder / "incoming")
    async with opened(store):
        pass
    kept = sorted(path.name for path in store.folder.glob("replaced-*"))
    assert kept == [f"replaced-{turn}" for turn in range(3, REPLACED_MAX + 3)]


async def test_an_id_is_made_once_and_one_that_cannot_be_read_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in range(1, STEPS_MAX):
        with dying_at(step, monkeypatch) as died, suppress(Died):
            replica_id(tmp_path, SystemEntropy())
        if not died():
            break
    uid = replica_id(tmp_path, SystemEntropy())
    assert replica_id(tmp_path, SystemEntropy()) == uid
    assert (tmp_path / ID_NAME).stat().st_mode & 0o777 == 0o600
    for damaged in (b"", b"\xff\x00", uid.encode()[:20]):
        (tmp_path / ID_NAME).write_bytes(damaged)
        made = replica_id(tmp_path, SystemEntropy())
        assert made != uid
        uid = made
