"""A control plane whose log is in PostgreSQL, and what happens to that: all of them real processes."""

import threading
import time
from pathlib import Path

import pytest

from stoker.brain.domain.access import Role
from tests.real.agent_process import AgentProcess, until
from tests.real.backups import known_jobs, stoker
from tests.real.control_process import ControlProcess
from tests.real.postgres import programs, server
from tests.real.postgres_control import Control, Load

DROP_ALL = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'stoker'"
pytestmark = pytest.mark.skipif(programs() is None, reason="no PostgreSQL here (Debian: apt-get install postgresql)")


def test_writes_go_on_within_ten_seconds_when_a_replica_takes_over_and_nothing_is_lost_or_doubled(
    tmp_path: Path,
) -> None:
    with server() as primary:
        primary.database("stoker")
        copy = primary.copy()
        with Control(tmp_path / "data", primary.url_with(copy, "stoker")) as control:
            control.start()
            load = Load(control, 4)
            with load.running():
                load.more(20)
                primary.kill()
                copy.promote()
                load.more(10)
                load.more(20)
            load.are_all_there()
            control.kill()
            control.start()
            load.are_all_there()


def test_connections_that_are_dropped_in_the_middle_of_transactions_are_seen_by_nobody(tmp_path: Path) -> None:
    """faults.md 128: a scheduler died, or served errors, after a short outage of its database."""
    with server() as own, Control(tmp_path / "data", own.database("stoker")) as control:
        control.start()
        load = Load(control, 4)
        with load.running():
            for _ in range(10):
                own.sql("stoker", DROP_ALL)
                load.more(20, jobs=5)
        load.are_all_there()
        assert "store_back" in control.said()


def test_after_a_restart_of_the_database_jobs_start_and_until_then_ready_says_that_they_do_not(tmp_path: Path) -> None:
    """faults.md 129: after a restart of the database all looked fine, and no job started."""
    with server() as own, Control(tmp_path / "data", own.database("stoker")) as control:
        control.start()
        agent = AgentProcess(tmp_path / "agent")
        agent.write(agent.settings.read_text().replace("127.0.0.1:1'", f"127.0.0.1:{control.grpc_port}'"))
        (tmp_path / "token").write_text(control.token(Role.AGENT))
        (tmp_path / "token").chmod(0o600)
        agent.environ["STOKER__CONTROL__TOKEN_FILE"] = str(tmp_path / "token")
        with agent:
            before = control.submit()
            until(lambda: control.state_of(before) == "succeeded", "a job runs")
            own.stop()
            late: list[int] = []
            waiting = threading.Thread(target=lambda: late.append(control.submit()))
            waiting.start()
            until(lambda: control.ask("GET", "/ready")[0] == 503, "ready says so")
            own.start()
            waiting.join(30)
            until(lambda: control.ask("GET", "/ready")[0] == 200, "ready says so")
            began = time.monotonic()
            until(lambda: control.state_of(late[0]) == "succeeded", "the job that waited runs", within_s=20)
            assert time.monotonic() - began < 15


def test_a_backup_of_a_log_in_postgresql_is_restored_into_a_folder(tmp_path: Path) -> None:
    """So a queue can move from there to SQLite, too."""
    backup = tmp_path / "b.tar"
    with server() as own, Control(tmp_path / "data", own.database("stoker")) as control:
        control.start()
        acknowledged = {control.submit() for _ in range(20)}
        environ = {"STOKER_SERVER": f"http://127.0.0.1:{control.port}", "STOKER_TOKEN": control.token(Role.ADMIN)}
        done = stoker("backup", backup, env=environ)
        assert done.returncode == 0, done.stderr
    done = stoker("restore", backup, "--data-dir", tmp_path / "new")
    assert done.returncode == 0, done.stderr
    with ControlProcess(tmp_path / "new") as again:
        assert known_jobs(again) == acknowledged
