"""A control plane whose log is in PostgreSQL, both as real processes, under kill -9 of either."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.postgres import Server, programs, server
from tests.real.postgres_control import Control, Load

pytestmark = pytest.mark.skipif(programs() is None, reason="no PostgreSQL here (Debian: apt-get install postgresql)")


@pytest.fixture(scope="module")
def postgres() -> Iterator[Server]:
    with server() as made:
        yield made


@pytest.fixture
def control(postgres: Server, tmp_path: Path) -> Iterator[Control]:
    with Control(tmp_path / "data", postgres.database(f"c{os.getpid()}_{time.monotonic_ns()}")) as made:
        yield made


def test_three_hundred_jobs_acknowledged_one_by_one_survive_a_kill_right_after_the_last(control: Control) -> None:
    control.start()
    acknowledged = [control.submit() for _ in range(300)]
    control.kill()
    control.start()
    assert control.known() == set(acknowledged)
    assert len(set(acknowledged)) == 300


def test_three_hundred_jobs_acknowledged_one_by_one_survive_a_kill_of_the_server_and_all(tmp_path: Path) -> None:
    with server() as own, Control(tmp_path / "data", own.database("stoker")) as control:
        control.start()
        acknowledged = [control.submit() for _ in range(300)]
        own.kill()
        control.kill()
        own.start()
        control.start()
        assert control.known() == set(acknowledged)


def test_writes_go_on_by_themselves_after_the_server_was_killed_and_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    with server() as own, Control(tmp_path / "data", own.database("stoker")) as control:
        control.start()
        load = Load(control, 4)
        with load.running():
            for hurt in (own.kill, own.stop):
                load.more(20)
                hurt()
                own.start()
                load.more(20)
        load.are_all_there()
        control.kill()
        control.start()
        load.are_all_there()


def test_a_folder_whose_log_is_in_postgresql_is_not_opened_without_it(control: Control) -> None:
    """The queue would seem to be empty."""
    control.start()
    control.submit()
    control.stop()
    control.start(url="")
    assert control.returncode == 1, control.said()
    assert "store.url is empty" in control.said()


def test_a_folder_with_a_log_of_its_own_is_not_opened_with_a_database(control: Control) -> None:
    control.start(url="")
    control.submit()
    control.stop()
    control.start()
    assert control.returncode == 1, control.said()
    assert "has a log of its own" in control.said()
