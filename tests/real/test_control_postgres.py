"""A control plane whose log is in PostgreSQL, both as real processes, under kill -9 of either."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.agent_process import until
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


def test_a_history_that_cannot_be_used_stops_nothing_says_why_where_people_look_and_loses_nothing(
    control: Control, postgres: Server
) -> None:
    database = control.url.partition("@/")[2].partition("?")[0]
    control.start()

    def ok() -> str:
        lines = control.ask("GET", "/metrics")[1].decode().splitlines()
        return next((line.split()[1] for line in lines if line.startswith("stoker_history_ok ")), "")

    def end_one() -> int:
        job = control.submit()
        assert control.ask("DELETE", f"/api/v1/jobs/{job}")[0] == 200
        return job

    jobs = [end_one()]
    until(lambda: ok() == "1.0", "it is written")
    (mine,) = postgres.sql(database, "SELECT cluster_id FROM stoker_history_mark").split()
    for hurt, mend, why in (
        ("UPDATE stoker_history_mark SET cluster_id = 'c2'", f"UPDATE stoker_history_mark SET cluster_id = '{mine}'",
         "the history is that of cluster c2"),
        ("ALTER TABLE stoker_history_audit RENAME TO away", "ALTER TABLE away RENAME TO stoker_history_audit",
         "the history in the database of store.url can't be used: relation"),
    ):  # fmt: skip
        postgres.sql(database, hurt)
        jobs.append(end_one())
        until(lambda: ok() == "0.0", "the gauge says so")
        until(lambda why=why: why in control.said(), "the log says why")  # type: ignore[misc]  # the one of this turn
        jobs.append(end_one())
        if "audit" in hurt:
            assert control.ask("GET", "/api/v1/audit")[0] == 503
        postgres.sql(database, mend)
        until(lambda: ok() == "1.0", "it is written again", 60)
    until(
        lambda: int(postgres.sql(database, "SELECT count(*) FROM stoker_history_job")) == len(jobs), "nothing is lost"
    )
    said = postgres.sql(database, "SELECT count(*) FROM stoker_history_audit WHERE action IN ('submit', 'cancel')")
    assert int(said) == 2 * len(jobs)
    assert not (control.folder / "history.db").exists()
