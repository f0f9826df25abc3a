"""The control plane as a process: killed, stopped, started wrongly, and over a disk that fills."""

import errno
import http.client
import os
import socket
import sqlite3
import threading
from pathlib import Path

import pytest

from stoker.api.listen import bind, why_not
from stoker.brain.domain.errors import StokerError
from tests.real.control_process import ControlProcess, ask_on

JOB = {"command": "true", "gpu_count": 1}


def known_jobs(control: ControlProcess) -> set[int]:
    status, listed = control.ask("GET", "/api/v1/jobs?limit=1000")
    assert status == 200
    return {int(job["id"]) for job in listed["jobs"]}


def test_three_hundred_acknowledged_jobs_survive_a_kill(tmp_path: Path) -> None:
    acknowledged: list[int] = []
    with ControlProcess(tmp_path / "data") as control:
        client = http.client.HTTPConnection("127.0.0.1", control.http_port, timeout=20)
        for _ in range(300):
            status, job = ask_on(client, "POST", "/api/v1/jobs", JOB, control.headers)
            assert status == 201
            acknowledged.append(int(job["id"]))
        control.kill()
        client.close()
    with ControlProcess(tmp_path / "data") as control:
        assert known_jobs(control) == set(acknowledged)
        assert len(acknowledged) == 300


def test_a_kill_in_the_middle_of_many_submits_loses_none_that_was_acknowledged(tmp_path: Path) -> None:
    acknowledged: list[int] = []
    with ControlProcess(tmp_path / "data") as control:

        def submit_until_it_dies() -> None:
            client = http.client.HTTPConnection("127.0.0.1", control.http_port, timeout=20)
            try:
                while True:
                    status, job = ask_on(client, "POST", "/api/v1/jobs", JOB, control.headers)
                    if status == 201:
                        acknowledged.append(int(job["id"]))
            except (OSError, http.client.HTTPException):
                client.close()

        clients = [threading.Thread(target=submit_until_it_dies) for _ in range(8)]
        for thread in clients:
            thread.start()
        while len(acknowledged) < 200:
            assert any(thread.is_alive() for thread in clients), control.output()
        control.kill()
        for thread in clients:
            thread.join(20)
    with ControlProcess(tmp_path / "data") as control:
        assert set(acknowledged) <= known_jobs(control)
        assert len(acknowledged) == len(set(acknowledged))


def test_a_term_signal_ends_it_in_two_seconds_also_under_an_open_event_stream(tmp_path: Path) -> None:
    with ControlProcess(tmp_path / "data") as control:
        following = http.client.HTTPConnection("127.0.0.1", control.http_port, timeout=20)
        following.request("GET", "/api/v1/events", headers=control.headers)
        stream = following.getresponse()
        assert stream.status == 200
        control.ask("POST", "/api/v1/jobs", JOB)
        status, took_s = control.terminate()
        assert status == 0, control.output()
        assert took_s < 2
        assert b"job_submitted" in stream.read()
        following.close()
    with ControlProcess(tmp_path / "data") as control:
        assert known_jobs(control) == {1}


def test_a_second_control_plane_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    with ControlProcess(tmp_path / "data") as first:
        second = ControlProcess(tmp_path / "data")
        second._output = tmp_path / "second.out"
        assert second.start(until_ready=False).wait() == 1
        assert "REFUSED data_dir_held" in second.output()
        assert str(first.pid) in second.output()
        assert first.ask("GET", "/ready")[0] == 200


@pytest.mark.parametrize("which", ["http", "grpc"])
def test_a_port_in_use_is_refused_by_number_before_anything_is_written(tmp_path: Path, which: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        control = ControlProcess(tmp_path / "data")
        port = taken.getsockname()[1]
        setattr(control, f"{which}_port", port)
        assert control.start(until_ready=False).wait() == 1
    assert "REFUSED port_in_use" in control.output()
    assert str(port) in control.output()
    assert f"{which}.port" in control.output()
    assert "role_changed" not in control.output()


def test_two_listeners_never_share_a_port_in_silence() -> None:
    with bind("127.0.0.1", 0, "http") as first:
        refused = why_not("127.0.0.1", first.getsockname()[1], "grpc")
        assert refused.refusal.code == "port_in_use"


def test_an_address_of_another_machine_is_refused_with_the_reason() -> None:
    with pytest.raises(StokerError) as refused:
        bind("192.0.2.1", 0, "http")
    assert refused.value.refusal.code == "cannot_listen"
    assert refused.value.refusal.message.endswith(f" port 0: {os.strerror(errno.EADDRNOTAVAIL)}")


def test_python_without_assertions_is_refused(tmp_path: Path) -> None:
    control = ControlProcess(tmp_path / "data", flags=("-O",))
    assert control.start(until_ready=False).wait() == 1
    assert "REFUSED assertions_off" in control.output()


def test_a_full_disk_stops_it_with_an_error_and_loses_nothing_acknowledged(tmp_path: Path) -> None:
    acknowledged: list[int] = []
    statuses: list[int] = []
    with ControlProcess(tmp_path / "data", file_bytes_max=400_000) as control:
        client = http.client.HTTPConnection("127.0.0.1", control.http_port, timeout=20)
        for _ in range(3_000):
            try:
                status, job = ask_on(client, "POST", "/api/v1/jobs", JOB, control.headers)
            except (OSError, http.client.HTTPException):
                break
            statuses.append(status)
            if status != 201:
                assert job["code"] == "log_failed"
                break
            acknowledged.append(int(job["id"]))
        assert control.wait() != 0
        assert "REFUSED log_failed" in control.output()
        client.close()
    assert statuses[-1] in (201, 503)
    assert acknowledged
    with ControlProcess(tmp_path / "data") as control:
        assert set(acknowledged) <= known_jobs(control)


def test_a_damaged_record_is_refused_at_the_start_with_the_way_back(tmp_path: Path) -> None:
    with ControlProcess(tmp_path / "data") as control:
        control.ask("POST", "/api/v1/jobs", JOB)
        control.kill()
    with sqlite3.connect(tmp_path / "data" / "stoker.db") as store:
        (column,) = (row[1] for row in store.execute("PRAGMA table_info(event)") if row[2].upper() == "BLOB")
        store.execute(f"UPDATE event SET {column} = CAST('{{}}' AS BLOB) WHERE position = 3")
    store.close()
    control = ControlProcess(tmp_path / "data")
    assert control.start(until_ready=False).wait() == 1
    assert "REFUSED log_damaged" in control.output()
    assert "3" in control.output()
    assert "To recover" in control.output()
