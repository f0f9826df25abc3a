"""A control plane whose log is in PostgreSQL, as a process of its own."""

import http.client
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self

from stoker.brain.domain.access import Role
from stoker.cli.wiring.token_store import FolderTokens
from stoker.wire.rest.token import NewTokenBody
from tests.real.control_process import free_port
from tests.real.forks import Started, started

JOB: Final = b'{"name": "kept", "command": "true", "gpu_count": 1}'


class Control:
    """`stoker control` on one data folder and one database; each `start` is another process."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.port, self.grpc_port = free_port(), free_port()
        self.url = url
        self._process: Started | None = None
        self._token = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, url: str | None = None) -> None:
        words = [sys.executable, "-m", "stoker", "control", "-c", str(self.write_settings())]
        environ = {**os.environ, "STOKER__STORE__URL": self.url if url is None else url}
        with (self.folder.parent / "out").open("ab") as out:
            self._process = started(words, out=out, env=environ)
        for _ in range(600):
            if self._process.poll() is not None:
                return
            if self._is_ready():
                break
            time.sleep(0.05)
        tokens = FolderTokens(self.folder)
        self._token = self._token or tokens.create_token(NewTokenBody(role=Role.ADMIN)).token

    def write_settings(self) -> Path:
        """All but the URL, which may hold a password."""
        path = self.folder.parent / "control.yaml"
        lines = (
            f"data_dir: {self.folder}",
            f"http: {{port: {self.port}}}",
            f"grpc: {{port: {self.grpc_port}}}",
            "tls: {mode: 'off'}",
            "log: {format: text}",
        )
        path.write_text("\n".join(lines) + "\n")
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

    def state_of(self, job: int) -> str:
        status, answer = self.ask("GET", f"/api/v1/jobs/{job}")
        assert status == 200, answer
        return str(json.loads(answer)["state"])

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

    def token(self, role: Role) -> str:
        tokens = FolderTokens(self.folder)
        return tokens.create_token(NewTokenBody(role=role)).token


class Load:
    """Clients that submit, each one job after the other. An answer other than 201 ends the test."""

    def __init__(self, control: Control, clients: int) -> None:
        self.acknowledged: list[int] = []
        self._control = control
        self._done = threading.Event()
        self._threads = [threading.Thread(target=self._submit) for _ in range(clients)]

    def _submit(self) -> None:
        while not self._done.is_set():
            self.acknowledged.append(self._control.submit())

    @contextmanager
    def running(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._done.set()
            for thread in self._threads:
                thread.join()

    def more(self, within_s: float, jobs: int = 20) -> float:
        """So many seconds later that many more are acknowledged."""
        before, began = len(self.acknowledged), time.monotonic()
        while len(self.acknowledged) <= before + jobs:
            assert time.monotonic() < began + within_s, self._control.said()
            time.sleep(0.02)
        return time.monotonic() - began

    def are_all_there(self) -> None:
        assert self._control.known() == set(self.acknowledged)
        assert len(self.acknowledged) == len(set(self.acknowledged))
