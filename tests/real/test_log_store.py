"""Which store a data folder may be opened with: rules C2 and C3 of `adapters/log_store.py`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.adapters.clock import SystemClock
from stoker.adapters.entropy import SystemEntropy
from stoker.adapters.log_store import ELSEWHERE_NAME, log_at, shared_log_at
from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.ids import Epoch, Position
from stoker.ports import EventLog
from tests.real.database_store import DatabaseStore
from tests.real.postgres import Server, programs, server

pytestmark = pytest.mark.skipif(programs() is None, reason="no PostgreSQL here (Debian: apt-get install postgresql)")


@pytest.fixture(scope="module")
def postgres() -> Iterator[Server]:
    with server() as made:
        yield made


def log_of(folder: Path, store: DatabaseStore, *, shared: bool = False) -> EventLog:
    at = shared_log_at if shared else log_at
    return at(folder, store.url, SystemClock(), SystemEntropy(), store)


async def opened_and_closed(log: EventLog, *, writes: bool = False) -> Position:
    try:
        end = await log.open()
        if writes:
            await log.append(Epoch(1), end, [b"record"])
        return end
    finally:
        await log.close()


async def refused(log: EventLog) -> str:
    with pytest.raises(StokerError) as caught:
        await opened_and_closed(log)
    assert caught.value.refusal.code == "store_moved"
    return caught.value.refusal.hint


@pytest.mark.parametrize("shared", [False, True])
async def test_c3_a_wrong_name_that_is_an_empty_database_begins_no_new_cluster(
    postgres: Server, tmp_path: Path, shared: bool
) -> None:
    """Its agents would take it for another cluster's, and stop all that they run."""
    right, wrong = DatabaseStore(postgres), DatabaseStore(postgres)
    folder = tmp_path / "data"
    assert await opened_and_closed(log_of(folder, right, shared=shared)) == 0
    assert await opened_and_closed(log_of(folder, right, shared=shared), writes=True) == 0, "it was empty still"
    hint = await refused(log_of(folder, wrong, shared=shared))
    assert await opened_and_closed(log_of(folder, right, shared=shared)) == 1
    assert hint.endswith(f"remove {folder / ELSEWHERE_NAME}")
    (folder / ELSEWHERE_NAME).unlink()
    assert await opened_and_closed(log_of(folder, wrong, shared=shared)) == 0


async def test_c3_a_folder_of_before_the_mark_had_content_gets_it_when_it_is_opened(
    postgres: Server, tmp_path: Path
) -> None:
    right, wrong = DatabaseStore(postgres), DatabaseStore(postgres)
    await opened_and_closed(log_of(tmp_path, right), writes=True)
    (tmp_path / ELSEWHERE_NAME).write_text("")
    assert await opened_and_closed(log_of(tmp_path, right)) == 1
    await refused(log_of(tmp_path, wrong))


async def test_c2_a_folder_whose_log_is_in_one_store_is_not_opened_with_the_other(
    postgres: Server, tmp_path: Path
) -> None:
    store = DatabaseStore(postgres)
    await opened_and_closed(log_of(tmp_path / "elsewhere", store), writes=True)
    with pytest.raises(StokerError, match="in PostgreSQL"):
        log_at(tmp_path / "elsewhere", "", SystemClock(), SystemEntropy(), store)
    here = log_at(tmp_path / "here", "", SystemClock(), SystemEntropy(), store)
    await opened_and_closed(here, writes=True)
    assert "leave store.url empty" in await refused(log_of(tmp_path / "here", store))
