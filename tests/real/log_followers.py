"""Followers of a job's output: commands, programs that ask again and again, open connections, and some that stall."""

import http.client
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.real.control_process import ControlProcess
from tests.real.up_process import environment, stoker

GIVE_UP_S: Final = 60.0
FAULTS: Final = (OSError, http.client.HTTPException)


class CommandFollower:
    """`stoker logs -f` as a process of its own, its output in a file."""

    def __init__(self, folder: Path, control: ControlProcess, *words: str) -> None:
        self._path = folder / f"follower-{id(self)}"
        self._errors = folder / f"follower-{id(self)}.err"
        with self._path.open("wb") as out, self._errors.open("wb") as err:
            self.process = subprocess.Popen(
                stoker("logs", "-f", *words), env=environment(folder, **control.environ), stdout=out, stderr=err
            )

    @property
    def got(self) -> bytes:
        return self._path.read_bytes()

    @property
    def said(self) -> str:
        return self._errors.read_text()

    def stall(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def result(self) -> bytes:
        assert self.process.wait(GIVE_UP_S) == 0, self.said
        return self.got

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


class ThreadFollower(threading.Thread):
    """Follows in this process until the output has ended; whatever breaks, it asks again where it was."""

    def __init__(self, control: ControlProcess, job_id: str) -> None:
        super().__init__()
        self._port, self._job_id, self._headers = control.http_port, job_id, control.headers
        self._stopped = threading.Event()
        self._kept = bytearray()
        self._ended = False
        self.fault = ""
        self.start()

    def run(self) -> None:
        give_up_s = time.monotonic() + GIVE_UP_S
        while not (self._ended or self.fault or self._stopped.is_set()):
            if time.monotonic() > give_up_s:
                self.fault = f"the output hasn't ended; {len(self._kept)} bytes came"
            client = http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)
            try:
                self._read(client)
            except FAULTS:
                self._stopped.wait(0.1)
            finally:
                client.close()

    def _read(self, client: http.client.HTTPConnection) -> None:
        raise NotImplementedError

    def _ask(self, client: http.client.HTTPConnection, query: str) -> http.client.HTTPResponse:
        path = f"/api/v1/jobs/{self._job_id}/logs?attempt=1&offset={len(self._kept)}&{query}"
        client.request("GET", path, headers=self._headers)
        return client.getresponse()

    def result(self) -> bytes:
        self.join(GIVE_UP_S)
        assert not self.fault, self.fault
        return bytes(self._kept)

    def close(self) -> None:
        self._stopped.set()
        self.join(GIVE_UP_S)


class WaitingFollower(ThreadFollower):
    """Asks with `wait_s`, again and again."""

    def _read(self, client: http.client.HTTPConnection) -> None:
        while not self._stopped.is_set() and not self._ended:
            response = self._ask(client, "wait_s=3&limit=1000000")
            body = response.read()
            if response.status != 200:
                self._stopped.wait(0.1)
                continue
            if int(response.headers["x-stoker-log-offset"]) != len(self._kept):
                self.fault = f"{response.headers['x-stoker-log-offset']} was answered for {len(self._kept)}"
            self._kept += body
            size = int(response.headers["x-stoker-log-size"])
            self._ended = response.headers["x-stoker-log-ended"] == "true" and len(self._kept) == size


class StreamFollower(ThreadFollower):
    """Keeps one connection open for as long as it lasts."""

    def _read(self, client: http.client.HTTPConnection) -> None:
        response = self._ask(client, "follow=true")
        if response.status != 200:
            self._stopped.wait(0.1)
            return
        while part := response.read1(65_536):
            self._kept += part
        self._ended = response.isclosed()


class StalledFollower:
    """Asks, and never reads a byte of what it gets."""

    def __init__(self, control: ControlProcess, job_id: str, query: str) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        self._socket.connect(("127.0.0.1", control.http_port))
        self._socket.sendall(f"GET /api/v1/jobs/{job_id}/logs?{query} HTTP/1.1\r\n".encode() + control.head + b"\r\n")

    def close(self) -> None:
        self._socket.close()


Follower = CommandFollower | WaitingFollower | StreamFollower


class Crowd:
    """All of them, ended on exit."""

    def __init__(self) -> None:
        self.live: list[Follower] = []
        self.stalled: list[StalledFollower] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, at: TracebackType | None) -> None:
        for each in (*self.stalled, *self.live):
            each.close()
