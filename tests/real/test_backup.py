"""A cluster that is backed up under load, killed, and goes on from the backup in another folder."""

import http.client
import os
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

from stoker.brain.domain.access import Role
from stoker.brain.state.admit.leadership import EPOCHS_SKIPPED, IDS_SKIPPED
from stoker.wire.backup import HISTORY
from stoker.wire.rest.token import NewTokenBody
from tests.real.agent_process import AgentProcess, job, submit, until, until_state
from tests.real.backups import RUN_S_MAX, at_most, backed_up, known_jobs, refused, restored, stoker
from tests.real.control_process import ControlProcess, ask_on
from tests.real.tokens import token_in

JOB = {"command": "true", "gpu_count": 1}


def actions(control: ControlProcess, query: str) -> list[str]:
    status, trail = control.ask("GET", f"/api/v1/audit?{query}")
    assert status == 200, trail
    return [row["action"] for row in trail["rows"]]


class Submitting:
    """Clients that submit until the control plane is gone."""

    def __init__(self, control: ControlProcess, clients: int) -> None:
        self.acknowledged: list[int] = []
        self._control = control
        self._threads = [threading.Thread(target=self._submit) for _ in range(clients)]
        for thread in self._threads:
            thread.start()

    def _submit(self) -> None:
        client = http.client.HTTPConnection("127.0.0.1", self._control.http_port, timeout=20)
        try:
            while True:
                status, answer = ask_on(client, "POST", "/api/v1/jobs", JOB, self._control.headers)
                if status == 201:
                    self.acknowledged.append(int(answer["id"]))
        except (OSError, http.client.HTTPException):
            client.close()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(20)


def test_what_was_acknowledged_before_a_backup_began_is_there_after_a_kill_and_a_restore(tmp_path: Path) -> None:
    backup = tmp_path / "b.tar"
    with ControlProcess(tmp_path / "data") as control:
        load = Submitting(control, 4)
        until(lambda: len(load.acknowledged) >= 100, "100 jobs are acknowledged")
        before = set(load.acknowledged)
        head = backed_up(control, backup)
        control.kill()
        load.join()
        given = set(load.acknowledged)
    with restored(backup, tmp_path / "new") as control:
        known = known_jobs(control)
        assert before <= known <= given
        assert head.counts.jobs == len(known)
        _, status = control.ask("GET", "/api/v1/cluster/status")
        assert status["cluster_id"] == head.cluster_id
        assert status["epoch"] > head.epoch + EPOCHS_SKIPPED
        following = int(submit(control, "true"))
        assert following not in given
        assert following > IDS_SKIPPED + max(known)
        assert actions(control, "limit=2") == ["submit", "restore"]
        assert [actions(control, f"job={one}") for one in (min(known), max(known))] == [["submit"], ["submit"]]
        control.kill()
    time.sleep(1)  # an epoch skips one for each second since the backup
    with restored(backup, tmp_path / "again") as control:
        assert int(submit(control, "true")) > following, "what came of the same backup before gave that id away"
        assert control.ask("GET", "/api/v1/cluster/status")[1]["epoch"] > status["epoch"]


def test_jobs_that_ended_tokens_and_tenants_are_as_they_were(tmp_path: Path) -> None:
    backup = tmp_path / "b.tar"
    with ControlProcess(tmp_path / "data") as control, AgentProcess(tmp_path / "node", control):
        assert control.ask("POST", "/api/v1/tenants", {"name": "vision"})[0] == 201
        ended = submit(control, "exit 7", tenant_id="vision")
        until_state(control, ended, "failed")
        backed_up(control, backup)
        user = token_in(control.folder, NewTokenBody(role=Role.VIEWER))  # too late for the backup
        known = control.ask("GET", "/api/v1/tenants")
        control.kill()
    with restored(backup, tmp_path / "new") as control:
        assert (job(control, ended)["state"], job(control, ended)["exit_code"]) == ("failed", 7)
        assert [one["name"] for one in control.ask("GET", "/api/v1/tenants")[1]["tenants"]] == [
            one["name"] for one in known[1]["tenants"]
        ]
        usage = control.ask("GET", "/api/v1/usage")[1]
        assert [line["key"] for line in usage["lines"]] == ["vision"]
        done = stoker("list", env={"STOKER_SERVER": control.url, "STOKER_TOKEN": user})
        assert refused(done, 4) == "token_unknown"


def test_what_runs_at_the_backup_runs_on_and_what_came_later_is_stopped(tmp_path: Path) -> None:
    backup = tmp_path / "b.tar"
    go = tmp_path / "go"
    with ControlProcess(tmp_path / "data") as old, AgentProcess(tmp_path / "node", old) as agent:
        runs = submit(old, f"until [ -e {go} ]; do sleep 0.05; done; exit 3")
        until_state(old, runs, "running")
        backed_up(old, backup)
        pid_file = tmp_path / "pid"
        later = submit(old, f"echo $$ > {pid_file}; exec sleep 600")
        until_state(old, later, "running")
        until(pid_file.exists, "the later job says its pid")
        old.kill()
        control = restored(backup, tmp_path / "new")
        control.http_port, control.grpc_port = old.http_port, old.grpc_port
        with control:
            until(lambda: not _is_alive(int(pid_file.read_text())), "what the backup doesn't know is stopped")
            assert job(control, runs)["state"] == "running"
            go.touch()
            ended = until_state(control, runs, "failed")
            assert (ended["exit_code"], len(ended["attempts"])) == (3, 1)
            assert int(later) not in known_jobs(control)
            again = submit(control, "exit 5", gpu_count=4)
            assert until_state(control, again, "failed")["exit_code"] == 5
        assert agent.output().count("stale_epoch_ignored") == 0


def test_a_job_that_started_after_the_backup_is_stopped_and_starts_anew(tmp_path: Path) -> None:
    backup, starts, go = tmp_path / "b.tar", tmp_path / "starts", tmp_path / "go"
    with ControlProcess(tmp_path / "data") as old, AgentProcess(tmp_path / "node", old):
        first = submit(old, "sleep 600", gpu_count=4)
        until_state(old, first, "running")
        waits = submit(old, f"echo $STOKER_ATTEMPT >> {starts}; until [ -e {go} ]; do sleep 0.05; done", gpu_count=4)
        backed_up(old, backup)
        assert old.ask("DELETE", f"/api/v1/jobs/{first}")[0] < 300
        until(starts.exists, "the second job starts")
        old.kill()
        control = restored(backup, tmp_path / "new")
        control.http_port, control.grpc_port = old.http_port, old.grpc_port
        with control:
            until(lambda: job(control, waits)["state"] == "pending", "it waits, as it did")
            assert control.ask("DELETE", f"/api/v1/jobs/{first}")[0] < 300
            until(lambda: len(starts.read_text().split()) == 2, "it starts anew")
            go.touch()
            assert until_state(control, waits, "succeeded")["exit_code"] == 0


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_two_backups_at_once_are_one_and_a_refusal(tmp_path: Path) -> None:
    with ControlProcess(tmp_path / "data") as control:
        slow = http.client.HTTPConnection("127.0.0.1", control.http_port, timeout=20)
        many = {"jobs": [{"command": "true", "env": {"A": "x" * 30_000}}] * 200}
        for _ in range(3):
            assert control.ask("POST", "/api/v1/jobs", many)[0] == 201
        slow.request("GET", "/api/v1/backup", headers=control.headers)
        assert slow.getresponse().status == 200  # and nobody reads on
        done = stoker("backup", tmp_path / "b.tar", env=control.environ)
        assert refused(done, 4) == "backup_running"
        assert not list(tmp_path.glob("*b.tar*"))
        slow.close()
        until(lambda: stoker("backup", tmp_path / "b.tar", env=control.environ).returncode == 0, "the next one works")


def test_submits_go_on_while_a_backup_is_read_slowly(tmp_path: Path) -> None:
    with ControlProcess(tmp_path / "data") as control:
        many = {"jobs": [{"command": "true", "env": {"A": "x" * 30_000}}] * 200}
        assert control.ask("POST", "/api/v1/jobs", many)[0] == 201
        slow = http.client.HTTPConnection("127.0.0.1", control.http_port, timeout=20)
        slow.request("GET", "/api/v1/backup", headers=control.headers)
        assert slow.getresponse().status == 200
        began = time.monotonic()
        for _ in range(20):
            submit(control, "true")
        assert time.monotonic() - began < 5
        slow.close()


def test_a_kill_in_the_middle_leaves_no_file_and_no_copy(tmp_path: Path) -> None:
    with ControlProcess(tmp_path / "data") as control:
        many = {"jobs": [{"command": "true", "env": {"A": "x" * 30_000}}] * 200}
        assert control.ask("POST", "/api/v1/jobs", many)[0] == 201
        reader, writer = os.pipe()
        half = subprocess.Popen(
            [sys.executable, "-m", "stoker", "backup", "-"],
            env={**os.environ, **control.environ},
            stdout=writer,
            stderr=subprocess.PIPE,
        )
        os.close(writer)
        assert os.read(reader, 1_000)
        control.kill()
        with open(reader, "rb") as rest:
            rest.read()
        _, said = half.communicate(timeout=RUN_S_MAX)
        assert half.returncode == 5
        assert b"broke off its answer" in said
    assert not [path.name for path in (tmp_path / "data").iterdir() if "copy" in path.name]


def test_a_viewer_may_not_and_the_socket_in_the_data_folder_wants_no_token(tmp_path: Path) -> None:
    with ControlProcess(tmp_path / "data") as control:
        viewer = token_in(control.folder, NewTokenBody(role=Role.VIEWER))
        done = stoker("backup", tmp_path / "b.tar", env={"STOKER_SERVER": control.url, "STOKER_TOKEN": viewer})
        assert refused(done, 4) == "not_allowed"
        assert not (tmp_path / "b.tar").exists()
        done = stoker("backup", tmp_path / "b.tar", "--data-dir", control.folder)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "b.tar").stat().st_mode & 0o777 == 0o600
        assert refused(stoker("backup", tmp_path / "b.tar", "--data-dir", control.folder), 4) == "backup_exists"
        control.kill()
    # The same command, over the log of one that is stopped.
    assert stoker("backup", tmp_path / "b.tar", "--data-dir", tmp_path / "data", "--force").returncode == 0
    assert refused(stoker("backup", tmp_path / "c.tar", "--data-dir", tmp_path), 1) == "data_dir_unusable"


def test_where_the_file_has_no_room_one_error_says_so_and_no_part_is_left(tmp_path: Path) -> None:
    with ControlProcess(tmp_path / "data") as control:
        done = stoker("backup", tmp_path / "b.tar", env=control.environ, preexec_fn=at_most(20_000))
        assert refused(done, 1) == "backup_unwritable"
        assert not list(tmp_path.glob("*b.tar*"))
        with open("/dev/full", "wb") as full:
            done = stoker("backup", "-", env=control.environ, stdout=full)
        assert done.returncode == 1
        assert b"Traceback" not in done.stderr
        missing = stoker("backup", tmp_path / "nowhere" / "b.tar", env=control.environ)
        assert refused(missing, 1) == "backup_unwritable"


def test_where_the_control_plane_has_no_room_for_a_copy_it_says_so_and_goes_on(tmp_path: Path) -> None:
    with ControlProcess(tmp_path / "data") as control:
        for _ in range(20):
            submit(control, "true")
        control.terminate()
    with closing(sqlite3.connect(tmp_path / "data" / HISTORY)) as db, db:
        db.execute("CREATE TABLE padding (bytes BLOB)")
        db.execute("INSERT INTO padding VALUES (zeroblob(2000000))")
    with ControlProcess(tmp_path / "data", file_bytes_max=1_000_000) as control:
        status, answer = control.ask("GET", "/api/v1/backup")
        assert (status, answer["code"]) == (503, "history_unavailable")
        assert submit(control, "true") == "21"
        assert not [path.name for path in control.folder.iterdir() if "copy" in path.name]
