"""Hundreds of clients who send slowly, or never read what they get: whoever is quick doesn't notice them.

The listener keeps 256 connections here (half of 512 files), 128 of one address, so that a few hundred are as bad for it
as ten thousand; the 80 streams among them leave places.
"""

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.real.agent_process import rss_mb
from tests.real.control_process import ControlProcess

pytestmark = pytest.mark.timeout(120)

FILES = 512
SLOW = 400
SLOW_ADDRESS = "127.0.0.2"
"""Theirs: what one address has too much of is kept from that one alone."""
LIST = b"GET /api/v1/jobs?limit=1000 HTTP/1.1\r\nHOST\r\n"
BEGINNINGS = (
    b"",
    b"GET /api/v1/jo",
    b"POST /api/v1/jobs HTTP/1.1\r\nHOSTcontent-length: 1000000\r\n\r\n" + b"x" * 1_000,
    LIST * 20,
    b"GET /api/v1/events HTTP/1.1\r\nHOST\r\n",
)
"""Nothing, half a head, a bit of a body, many long answers and none of them read, a stream that isn't read. HOST stands
for the host and the token."""


@pytest.fixture
def control(tmp_path: Path) -> Iterator[ControlProcess]:
    control = ControlProcess(tmp_path / "control", files_max=FILES).start()
    try:
        yield control
    finally:
        control.kill()


def slow_client(control: ControlProcess, beginning: bytes) -> socket.socket:
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    client.bind((SLOW_ADDRESS, 0))
    client.connect(("127.0.0.1", control.http_port))
    client.setblocking(False)
    client.send(beginning.replace(b"HOST", control.head))
    return client


def dribble(slow: list[socket.socket]) -> None:
    """A byte more from each that has begun and is still there; a complete request would be spoilt by it."""
    for client in slow[1 :: len(BEGINNINGS)] + slow[2 :: len(BEGINNINGS)]:
        try:
            client.send(b"x")
        except OSError:
            continue


def test_quick_clients_are_served_beside_hundreds_who_are_slow(control: ControlProcess) -> None:
    for _ in range(20):
        assert control.ask("POST", "/api/v1/jobs", {"jobs": [{"command": "x" * 1_000}] * 20})[0] == 201
    rss_before_mb = rss_mb(control.pid)

    def asked_s() -> float:
        began = time.monotonic()
        status, answer = control.ask("POST", "/api/v1/jobs", {"command": "x"})
        assert status == 201, answer
        assert control.ask("GET", f"/api/v1/jobs/{answer['id']}")[0] == 200
        return time.monotonic() - began

    alone_s = max(asked_s() for _ in range(5))  # on a machine that is busy with other tests
    took_s = []
    with ExitStack() as open_sockets:
        slow: list[socket.socket] = []
        for number in range(SLOW):
            slow.append(open_sockets.enter_context(slow_client(control, BEGINNINGS[number % len(BEGINNINGS)])))
            if number % 10 == 0:
                dribble(slow)
                took_s.append(asked_s())
        assert rss_mb(control.pid) < rss_before_mb + 150
    assert sorted(took_s)[len(took_s) // 2] < 0.5 + 4 * alone_s
    assert max(took_s) < 5 + 4 * alone_s
    assert control.ask("GET", "/ready")[0] == 200
