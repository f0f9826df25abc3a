"""A control plane as a process of its own, on free loopback ports, over a folder that outlives it.

Whoever asks it shows the admin's token, which `tokens` made before the first start.
"""

import http.client
import json
import os
import signal
import socket
import sys
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from stoker.wire.client import Client
from tests.real.forks import Started, started
from tests.real.tokens import Tokens, tokens_of

START_S_MAX: Final = 30.0
STOP_S_MAX: Final = 15.0

_PROGRAM: Final = """
import asyncio, resource, signal, sys
from pathlib import Path
from stoker.brain.domain.errors import StokerError
from stoker.live.main import run_control
from stoker.control.settings import GrpcSettings, HttpSettings, OutputSettings, TlsSettings
from stoker.live.settings.control import AgentsSettings, ControlSettings
from stoker.live.settings.policy import PolicySettings

async def main(folder, tls, archive_dir, http_port, grpc_port, file_bytes_max, files_max, lease_s, ended_max):
    if files_max:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files_max, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    if file_bytes_max:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes_max, file_bytes_max))
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    quick = AgentsSettings(heartbeat_s=0.2, unreachable_after_s=0.6, attempt_lease_s=lease_s)
    settings = ControlSettings(
        data_dir=Path(folder), http=HttpSettings(port=http_port, rate_per_principal=0),
        grpc=GrpcSettings(port=grpc_port, node_port=0),
        agents=quick if lease_s else AgentsSettings(), policy=PolicySettings(ended_jobs_max=ended_max),
        tls=TlsSettings(mode=tls), output=OutputSettings(archive_dir=archive_dir),
    )
    await run_control(settings, stop=stop, on_ready=lambda: print("READY", flush=True), open_to_owner=False)

try:
    asyncio.run(main(*sys.argv[1:4], *(int(word) for word in sys.argv[4:])))
except StokerError as fault:
    print("REFUSED", fault.refusal.code, fault.refusal.message, fault.refusal.hint, flush=True)
    sys.exit(1)
"""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def pause(since_s: float) -> None:
    """Before one looks again for what one has looked for since then: a look costs CPU that what is waited for may need,
    and a twentieth more of a wait is little."""
    time.sleep(min(max((time.monotonic() - since_s) / 20, 0.01), 0.2))


class ControlProcess:
    """Started by `start`, ended by the test or on exit."""

    tls: str = "off"
    """Its `tls.mode`: agents show tokens in plain text, over loopback."""
    archive_dir: str = ""
    """Its `output.archive_dir`."""

    def __init__(
        self,
        folder: Path,
        *,
        file_bytes_max: int = 0,
        files_max: int = 0,
        lease_s: int = 0,
        ended_max: int = 10_000,
        flags: tuple[str, ...] = (),
    ) -> None:
        """With `lease_s` attempts have a lease of that length, and heartbeats are as quick as it wants them."""
        self.folder = folder
        self.http_port, self.grpc_port = free_port(), free_port()
        self._file_bytes_max = file_bytes_max
        self._files_max = files_max
        self._lease_s = lease_s
        self._ended_max = ended_max
        self._flags = flags
        self._process: Started | None = None
        self._output = folder.parent / f"{folder.name}.out"

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def tokens(self) -> Tokens:
        return tokens_of(self.folder)

    @property
    def headers(self) -> dict[str, str]:
        """The admin's, for requests made by hand."""
        return {"authorization": f"Bearer {self.tokens.admin}"}

    @property
    def head(self) -> bytes:
        """The same as lines of a request that is written byte by byte."""
        return f"host: 127.0.0.1\r\nauthorization: Bearer {self.tokens.admin}\r\n".encode()

    @property
    def environ(self) -> dict[str, str]:
        """What commands of the admin's are started with."""
        return {"STOKER_SERVER": self.url, "STOKER_TOKEN": self.tokens.admin}

    def metrics(self) -> bytes:
        with urllib.request.urlopen(urllib.request.Request(f"{self.url}/metrics", headers=self.headers)) as answer:
            return bytes(answer.read())

    def client(self, **settings: float) -> Client:
        return Client(self.url, token=self.tokens.admin, **settings)

    def start(self, *, until_ready: bool = True) -> Self:
        assert self.tokens, "made while nothing runs on the folder"
        bounds = (self._file_bytes_max, self._files_max, self._lease_s, self._ended_max)
        words = (str(self.folder), self.tls, self.archive_dir, *map(str, (self.http_port, self.grpc_port, *bounds)))
        with self._output.open("wb") as output:
            self._process = started([sys.executable, *self._flags, "-c", _PROGRAM, *words], out=output)
        deadline = time.monotonic() + START_S_MAX
        while until_ready and "READY" not in self.output():
            assert self._process.poll() is None, self.output()
            assert time.monotonic() < deadline, self.output()
            time.sleep(0.02)
        return self

    def output(self) -> str:
        return self._output.read_text(errors="replace") if self._output.exists() else ""

    def kill(self) -> None:
        """kill -9."""
        assert self._process is not None, "not started"
        self._process.kill()
        self._process.wait(STOP_S_MAX)

    def terminate(self) -> tuple[int, float]:
        """SIGTERM; the exit status, and how long it took."""
        assert self._process is not None, "not started"
        began = time.monotonic()
        os.kill(self._process.pid, signal.SIGTERM)
        return self._process.wait(STOP_S_MAX), time.monotonic() - began

    def wait(self) -> int:
        assert self._process is not None, "not started"
        return self._process.wait(START_S_MAX)

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """One request on a connection of its own."""
        client = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=20)
        try:
            return ask_on(client, method, path, body, self.headers)
        finally:
            client.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()


class TlsControlProcess(ControlProcess):
    """One whose nodes join by certificates; REST is plain text over loopback."""

    tls = "auto"


def ask_on(
    client: http.client.HTTPConnection, method: str, path: str, body: object, headers: Mapping[str, str]
) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body)
    client.request(method, path, data, {**headers, "content-type": "application/json"} if data else headers)
    response = client.getresponse()
    return response.status, json.loads(response.read() or b"null")
