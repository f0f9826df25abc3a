"""Ten thousand clients that begin a request and never end it, over real sockets: nobody else is kept waiting."""

import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

import pytest

from stoker.wire.client import JobBody
from tests.real.control_process import ControlProcess

MANY: Final = 10_500
"""More than are kept at once; as many as this process may open files where that is less."""
HEAD: Final = b"POST /api/v1/jobs HTTP/1.1\r\n%bcontent-length: %d\r\n\r\n"
MEMORY_MIB_MAX: Final = 400
"""All that the process may hold with all of them: about 10 KiB each."""


@pytest.fixture
def control(tmp_path: Path) -> Iterator[ControlProcess]:
    folder = tmp_path / "data"
    folder.mkdir()
    with ControlProcess(folder) as process:
        yield process


def memory_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


def until_hung_up(sender: socket.socket, size: int) -> int:
    """How many bytes went out."""
    sent = 0
    with suppress(ConnectionError):
        while sent < size:
            sent += sender.send(bytes(1 << 20))
    return sent


def test_ten_thousand_slow_clients_keep_nobody_out_and_cost_little(control: ControlProcess) -> None:
    head = HEAD % (control.head, 100_000)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as crowd, control.client(patience_s=0.0) as early:
        early.health()
        for number in range(min(MANY, soft - 200)):
            slow = crowd.enter_context(socket.create_connection(("127.0.0.1", control.http_port), timeout=10))
            slow.sendall(head + b"{" * (number % 3) if number % 2 else b"GET /api/v1/jobs HT")
        began_s = time.monotonic()
        with control.client(patience_s=0.0) as late:
            job = late.submit(JobBody(command="true"))
            for _ in range(20):
                assert late.job(job.id).state == "pending"
        assert early.job(job.id).id == job.id
        assert time.monotonic() - began_s < 30
        assert memory_mib(control.pid) < MEMORY_MIB_MAX


def test_a_body_far_too_large_is_refused_at_once_and_its_sender_is_hung_up_on(control: ControlProcess) -> None:
    size = 4 << 30
    head = HEAD % (control.head, size)
    with socket.create_connection(("127.0.0.1", control.http_port), timeout=10) as sender:
        sender.sendall(head)
        assert sender.recv(12) == b"HTTP/1.1 413"
        assert until_hung_up(sender, size) < 256 << 20, "most of it was never read"
    assert memory_mib(control.pid) < MEMORY_MIB_MAX
