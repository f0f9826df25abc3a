"""A whole control plane in a thread of its own, on real sockets, for tests of what asks it."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from stoker.brain.domain.access import Role
from stoker.control.settings import GrpcSettings, HttpSettings, TlsSettings
from stoker.live.main import run_control
from stoker.live.settings.control import ControlSettings, LogSettings, WebSettings
from stoker.wire.client import Client, JobBody
from stoker.wire.rest.token import NewTokenBody
from tests.real.tokens import token_in, tokens_of


class Served(NamedTuple):
    """Where it answers, and the admin's token."""

    url: str
    token: str

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.token}"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def serving(folder: Path, port: int, *, secure: bool = False, web: WebSettings | None = None) -> Iterator[Served]:
    """With `secure` REST speaks TLS, and the token names the authority."""
    served = Served(f"http{'s' if secure else ''}://127.0.0.1:{port}", tokens_of(folder).admin)
    loop, stop, ready = asyncio.new_event_loop(), asyncio.Event(), threading.Event()
    settings = ControlSettings(
        data_dir=folder,
        http=HttpSettings(port=port),
        grpc=GrpcSettings(port=0, node_port=0),
        log=LogSettings(level="error"),
        tls=TlsSettings(mode="on" if secure else "off"),
        web=web or WebSettings(),
    )

    def serve() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(run_control(settings, stop=stop, on_ready=ready.set, open_to_owner=False))

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        assert ready.wait(30), "the control plane didn't come up"
        if secure:
            served = served._replace(token=token_in(folder, NewTokenBody(role=Role.ADMIN)))
        _every_part_awake(served)
        yield served
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)


def _every_part_awake(served: Served) -> None:
    """Some threads begin with what they first do, and would be taken for leaked by the test that they began in."""
    with Client(served.url, token=served.token) as client:
        client.cancel(client.submit(JobBody(command="true", name="first")).id)
        client.jobs()
    give_up_s = time.monotonic() + 10
    while not all(map(_has_thread, ("stoker-history_", "stoker-history-read_"))) and time.monotonic() < give_up_s:
        time.sleep(0.01)


def _has_thread(name: str) -> bool:
    return any(thread.name.startswith(name) for thread in threading.enumerate())
