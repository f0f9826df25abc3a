"""A control plane whose log is in PostgreSQL, both as real processes, under kill -9 of either."""

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from stoker.brain.domain.access import Role
from stoker.cli.token_store import tokens_in
from stoker.wire.rest.token import NewTokenBody
from tests.real.control_process import free_port
from tests.real.postgres import Server, programs, server

pytestmark = pytest.mark.skipif(programs() is None, reason="no PostgreSQL here (Debian: apt-get install postgresql)")
JOB = b'{"name": "kept", "command": "true", "gpu_count": 1}'


@pytest.fixture(scope="module")
def postgres() -> Iterator[Server]:
    with server() as made:
        yield made


class Control:
    """`stoker control` on one data folder and one database; each `start` is another process."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = url
        self._process: subprocess.Popen[bytes] | None = None
        self._token = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, url: str | None = None) -> None:
        words = [sys.executable, "-m", "stoker", "control", "-c", str(self._settings())]
        environ = {**os.environ, "STOKER__STORE__URL": self.url if url is None else url}
        with (self.folder.parent / "out").open("ab") as out:
            self._process = subprocess.Popen(words, env=environ, stdout=out, stderr=out)
        for _ in range(600):
            if self._process.poll() is not None:
                return
            if self._is_ready():
                break
            time.sleep(0.05)
        with tokens_in(self.folder) as tokens:
            self._token = self._token or tokens.create_token(NewTokenBody(role=Role.ADMIN)).token

    def _settings(self) -> Path:
        path = self.folder.parent / "control.yaml"
        path.write_text(
            f"data_dir: {self.folder}\nhttp: {{port: {self.port}}}\ngrpc: {{port: 0}}\nlog: {{format: text}}\n"
        )
        return path

    def _is_ready(self) -> bool:
        try:
            return self.ask("GET", "/ready")[0] == 200
        except OSError:
            return False

    @property
    def returncode(self) -> int | None:
        assert self._process is not None, "not started"
        return self._process.poll()

    def said(self) -> str:
        return (self.folder.parent / "out").read_text()

    def ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=40)
        try:
            client.request(method, path, body, {"authorization": f"Bearer {self._token}"} if self._token else {})
            answer = client.getresponse()
            return answer.status, answer.read()
        finally:
            client.close()

    def submit(self) -> int:
        status, answer = self.ask("POST", "/api/v1/jobs", JOB)
        assert status == 201, answer
        return int(json.loads(answer)["id"])

    def known(self) -> set[int]:
        found: set[int] = set()
        after = ""
        while True:
            status, answer = self.ask("GET", f"/api/v1/jobs?limit=1000{after}")
            assert status == 200, answer
            page = json.loads(answer)
            found |= {int(job["id"]) for job in page["jobs"]}
            if page["next"] is None:
                return found
            after = f"&after={page['next']}"

    def kill(self) -> None:
        assert self._process is not None, "not started"
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(20)


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


def test_writes_go_on_by_themselves_after_the_server_was_killed_and_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    with server() as own, Control(tmp_path / "data", own.database("stoker")) as control:
        control.start()
        acknowledged: list[int] = []
        done = threading.Event()

        def submit() -> None:
            while not done.is_set():
                acknowledged.append(control.submit())

        clients = [threading.Thread(target=submit) for _ in range(4)]
        for client in clients:
            client.start()
        for hurt in (own.kill, own.stop):
            time.sleep(0.5)
            hurt()
            own.start()
            before = len(acknowledged)
            for _ in range(400):
                if len(acknowledged) > before + 20:
                    break
                time.sleep(0.05)
            assert len(acknowledged) > before + 20, control.said()
        done.set()
        for client in clients:
            client.join()
        assert control.known() == set(acknowledged)
        assert len(acknowledged) == len(set(acknowledged))
        control.kill()
        control.start()
        assert control.known() == set(acknowledged)


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
