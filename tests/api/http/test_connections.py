"""Clients who are slow: N1 to N4 of `api.http.connections`, on virtual time over a transport of the test's own."""

import asyncio
import json
from typing import Any, Final

import pytest
import uvicorn
from uvicorn.server import ServerState

from stoker.api import listen
from stoker.api.http.connections import (
    CONNECTIONS_MAX,
    FILES_PART,
    HEAD_BYTES_MAX,
    QUIET_S,
    Connections,
    HttpConnection,
    break_off,
)
from tests.control.stage import virtual

GET: Final = b"GET /%b HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
HIGH_WATER: Final = 64 * 1024
LATE_S: Final = QUIET_S + 2


class Line(asyncio.Transport):
    """A socket: what is written is taken at once, unless the client has stopped taking."""

    def __init__(self, address: str = "") -> None:
        super().__init__()
        self._address = address
        self.protocol: HttpConnection
        self.received = bytearray()
        """By the client."""
        self.takes = True
        self.end = ""
        """`closed` or `aborted`."""
        self._buffer = bytearray()

    def write(self, data: Any) -> None:  # noqa: ANN401  # bytes of any kind
        self._buffer += data
        self._flush()
        if len(self._buffer) > HIGH_WATER:
            self.protocol.pause_writing()

    def take(self) -> None:
        """The client takes all that waits for it, and what comes."""
        self.takes = True
        self._flush()
        self.protocol.resume_writing()

    def _flush(self) -> None:
        if self.takes:
            self.received += self._buffer
            self._buffer.clear()
            if self.end == "closing":
                self._lose("closed")

    def close(self) -> None:
        if not self.end:
            self.end = "closing"
            self._flush()

    def abort(self) -> None:
        if self.end in ("", "closing"):
            self._lose("aborted")

    def _lose(self, how: str) -> None:
        self.end = how
        asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    def is_closing(self) -> bool:
        return bool(self.end)

    def get_extra_info(self, name: str, default: object = None) -> object:
        return (self._address, 50_000) if name == "peername" and self._address else default

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


async def app(scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401  # an ASGI application
    """`/` answers once the body is there, `/wait` after five minutes, `/large` without end; `/broken` breaks off, and
    `/early` has begun before the body is there."""
    path = scope["path"]
    if path == "/early":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        await asyncio.sleep(300)
    while (await receive()).get("more_body"):
        pass
    if path == "/wait":
        await asyncio.sleep(300)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    while path == "/large":
        await send({"type": "http.response.body", "body": b"x" * 100_000, "more_body": True})
        await asyncio.sleep(1)
    if path == "/broken":
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        break_off(scope)
        await receive()
        return
    await send({"type": "http.response.body", "body": b"answer"})


class Server:
    def __init__(self, most: int = 100) -> None:
        self._connections = Connections(most)
        self._config = uvicorn.Config(app, http="httptools", lifespan="off", log_config=None, timeout_keep_alive=75)
        self._state = ServerState()

    def connect(self, said: bytes = b"", address: str = "") -> Line:
        line = Line(address)
        line.protocol = HttpConnection(self._connections, self._config, self._state, {}, asyncio.get_running_loop())
        line.protocol.connection_made(line)
        if said:
            line.protocol.data_received(said)
        return line


def status(line: Line) -> int:
    return int(line.received.split()[1])


def code(line: Line) -> str:
    return str(json.loads(line.received.rpartition(b"\r\n\r\n")[2])["code"])


@virtual
async def test_a_quick_request_is_answered_and_its_connection_stays_open() -> None:
    line = Server().connect(GET % b"")
    for _ in range(5):
        await asyncio.sleep(60)
        assert line.received.count(b"answer") >= 1
        assert not line.end
        line.protocol.data_received(GET % b"")


@pytest.mark.parametrize("said", [b"", b"GET / HT", GET[:-2] % b"", b"POST / HTTP/1.1\r\ncontent-length: 100\r\n\r\nx"])
def test_whoever_does_not_finish_a_request_is_closed_after_a_while(said: bytes) -> None:
    @virtual
    async def story() -> None:
        line = Server().connect(said)
        await asyncio.sleep(QUIET_S - 1)
        assert not line.end
        await asyncio.sleep(3)
        assert line.end == ("closed" if said else "aborted")
        if said:
            assert (status(line), code(line)) == (408, "request_too_slow")

    story()


@virtual
async def test_a_byte_now_and_then_wins_no_time() -> None:
    line = Server().connect(b"GET / HTTP/1.1\r\nx: ")
    for _ in range(int(QUIET_S) // 2 + 2):
        await asyncio.sleep(2)
        if line.end:
            break
        line.protocol.data_received(b"y")
    assert line.end == "closed"


@virtual
async def test_whoever_does_not_finish_a_body_gets_no_second_answer_in_the_middle_of_the_first() -> None:
    line = Server().connect(b"POST /early HTTP/1.1\r\ncontent-length: 10\r\n\r\nabc")
    await asyncio.sleep(200)
    assert line.end == "aborted"
    assert line.received.count(b"HTTP/1.1") == 1
    assert line.received.endswith(b"half\r\n")


@virtual
async def test_an_answer_that_takes_long_is_waited_for() -> None:
    line = Server().connect(GET % b"wait")
    await asyncio.sleep(299)
    assert not line.end
    await asyncio.sleep(2)
    assert status(line) == 200


@virtual
async def test_whoever_takes_nothing_of_an_answer_is_cut_off_and_one_who_takes_it_slowly_is_not() -> None:
    server = Server()
    stuck, slow = server.connect(), server.connect()
    for line in (stuck, slow):
        line.takes = False
        line.protocol.data_received(GET % b"large")
    for _ in range(5):
        await asyncio.sleep(QUIET_S / 2)
        slow.take()
        slow.takes = False
    assert (stuck.end, slow.end) == ("aborted", "")
    assert slow.received.count(b"x") >= 300_000
    slow.abort()
    await asyncio.sleep(1)


@virtual
async def test_a_new_client_takes_the_place_of_the_one_who_has_owed_something_for_longest() -> None:
    server = Server(most=4)
    served = server.connect(GET % b"wait")
    idle = server.connect(GET % b"")
    await asyncio.sleep(1)
    silent = server.connect()
    await asyncio.sleep(1)
    idle.protocol.data_received(GET % b"")
    await asyncio.sleep(1)
    begun = server.connect(b"GET / ")
    for gone in (silent, idle, begun):
        assert not gone.end
        await asyncio.sleep(1)
        assert status(await answered(server)) == 200
        assert gone.end == "aborted"
    assert not served.end


async def answered(server: Server) -> Line:
    line = server.connect(GET % b"")
    await asyncio.sleep(0.1)
    return line


@virtual
async def test_a_thousand_slow_clients_keep_nobody_out() -> None:
    server = Server(most=50)
    slow = []
    for _ in range(1_000):
        slow.append(server.connect(b"GET / HTTP/1.1\r\n"))
        if len(slow) % 100 == 0:
            assert status(await answered(server)) == 200
    assert sum(not line.end for line in slow) < 50


@virtual
async def test_where_every_client_is_owed_an_answer_a_new_one_is_turned_away() -> None:
    server = Server(most=3)
    waiting = [server.connect(GET % b"wait") for _ in range(3)]
    await asyncio.sleep(1)
    line = server.connect(GET % b"")
    await asyncio.sleep(1)
    assert (status(line), code(line), line.end) == (503, "too_many_connections", "closed")
    assert b"retry-after: 1\r\n" in line.received
    await asyncio.sleep(300)
    assert [status(each) for each in waiting] == [200, 200, 200]
    assert status(await answered(server)) == 200


@virtual
async def test_an_address_with_half_of_all_places_takes_the_next_ones_from_itself() -> None:
    server = Server(most=6)
    other = server.connect(address="192.0.2.7")
    waiting = [server.connect(GET % b"wait", "192.0.2.9") for _ in range(2)]
    idle = server.connect(address="192.0.2.9")
    assert not idle.end
    await asyncio.sleep(1)
    waiting.append(server.connect(GET % b"wait", "192.0.2.9"))
    assert idle.end == "aborted", "though the other address has owed something for longer"
    await asyncio.sleep(1)
    line = server.connect(GET % b"", "192.0.2.9")
    assert (status(line), code(line), line.end) == (503, "too_many_connections", "closed")
    assert b"3 clients of 192.0.2.9" in line.received
    await asyncio.sleep(1)
    assert not other.end
    assert status(await answered(server)) == 200
    await asyncio.sleep(300)
    assert [status(each) for each in waiting] == [200, 200, 200]


@virtual
async def test_a_head_without_end_is_refused() -> None:
    line = Server().connect(b"GET / HTTP/1.1\r\n")
    for _ in range(HEAD_BYTES_MAX // 1_000 + 1):
        if not line.end:
            line.protocol.data_received(b"x: " + b"y" * 995 + b"\r\n")
    await asyncio.sleep(0.1)
    assert (status(line), code(line), line.end) == (431, "head_too_large", "closed")


@virtual
async def test_an_answer_that_is_broken_off_is_seen_to_be_not_whole() -> None:
    line = Server().connect(GET % b"broken")
    await asyncio.sleep(1)
    assert line.received.endswith(b"4\r\nhalf\r\n"), "without the chunk that ends it"
    assert line.end == "closed"


def test_the_bound_leaves_half_of_the_files_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    for files, expected in ((1_024, 512), (1 << 20, 10_000), (8, 16), (-1, 10_000)):
        monkeypatch.setattr(listen.resource, "getrlimit", lambda kind, files=files: (files, files))
        assert listen.connections_max(CONNECTIONS_MAX, FILES_PART) == expected
