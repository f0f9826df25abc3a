"""Servers of https prove who they are by a certificate: V1, V2, V5 of `wire.client.trust`, and `api.http.tls`."""

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from queue import Queue
from typing import Final

import pytest

from stoker.adapters.entropy import SystemEntropy
from stoker.api.http import tls
from stoker.api.http.tls import server_context
from stoker.wire.client import AsyncClient, Client
from stoker.wire.client.http_message import LINE
from stoker.wire.client.servers import parsed_servers
from stoker.wire.client.transport import Connection
from stoker.wire.client.trust import Credentials, ServerProof
from stoker.wire.token import fresh_token, with_fingerprint
from tests.certificates import DAY, Certified, Site
from tests.real.asking import CLIENTS, Asks, ask, refused, said
from tests.real.tls_served import TlsServed

TOKEN: Final = fresh_token(SystemEntropy())
HERE: Final = ("127.0.0.1", "localhost")


@pytest.fixture(scope="module")
def site() -> Site:
    return Site()


@pytest.fixture(scope="module")
def server(site: Site) -> Iterator[TlsServed]:
    with TlsServed(site.server(*HERE)) as served:
        yield served


@pytest.fixture
def ca_file(site: Site, tmp_path: Path) -> str:
    path = tmp_path / "ca.pem"
    path.write_bytes(site.root)
    return str(path)


def pinned(site: Site) -> str:
    return with_fingerprint(TOKEN, site.fingerprint)


def is_answered(asks: Asks, served: TlsServed, url: str = "", **options: str) -> bool:
    """Whether the server was asked, with the token as it is sent."""
    before = len(served.asked)
    assert refused(asks, url or f"https://{served.label}", **options).code == "bad_answer", "it says nothing but {}"
    return served.asked[before:] == [("/api/v1/cluster/status", f"Bearer {TOKEN}")]


@CLIENTS
def test_the_fingerprint_in_a_token_or_a_file_of_certificates_is_all_that_a_client_has_to_know(
    asks: Asks, server: TlsServed, site: Site, ca_file: str
) -> None:
    assert is_answered(asks, server, token=pinned(site))
    assert is_answered(asks, server, token=TOKEN, ca_file=ca_file)
    assert is_answered(asks, server, f"https://localhost:{server.port}", token=pinned(site))


@CLIENTS
def test_the_authorities_of_the_system_are_trusted_where_nothing_else_is_named(
    asks: Asks, server: TlsServed, ca_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = refused(asks, f"https://{server.label}", token=TOKEN)
    assert (refusal.code, "isn't signed by" in refusal.message) == ("server_not_proved", True)
    assert f"stoker login https://{server.label} --token T" in refusal.hint
    monkeypatch.setenv("SSL_CERT_FILE", ca_file)
    assert is_answered(asks, server, token=TOKEN)


@CLIENTS
def test_an_authority_that_the_token_does_not_name_gets_nothing(asks: Asks, server: TlsServed) -> None:
    before = len(server.asked)
    refusal = refused(asks, f"https://{server.label}", token=pinned(Site()))
    assert (refusal.code, "authority that the token names" in refusal.message) == ("server_not_proved", True)
    assert len(server.asked) == before


@CLIENTS
def test_a_server_that_only_shows_the_authority_but_is_not_certified_by_it_gets_nothing(asks: Asks, site: Site) -> None:
    """Anybody may put a certificate that he has seen at the end of his own chain."""
    key, chain = Site().server(*HERE)
    with TlsServed(site.server(*HERE)._replace(key=key, chain=chain + site.root)) as liar:
        refusal = refused(asks, f"https://{liar.label}", token=pinned(site))
        assert refusal.code == "server_not_proved"
        assert liar.asked == []


@CLIENTS
@pytest.mark.parametrize("trusts", ["fingerprint", "file"])
def test_a_certificate_for_another_name_expired_or_not_yet_valid_is_told_in_so_many_words(
    asks: Asks, trusts: str, site: Site, ca_file: str
) -> None:
    options = {"token": pinned(site)} if trusts == "fingerprint" else {"token": TOKEN, "ca_file": ca_file}
    faults = {
        "is for other names": site.server("head.example.org"),
        "has expired": site.server(*HERE, begins_in=-2 * DAY, ends_in=-DAY / 24),
        "isn't valid yet": site.server(*HERE, begins_in=DAY / 24),
    }
    for words, credentials in faults.items():
        with TlsServed(credentials) as served:
            begun = time.monotonic()
            refusal = refused(asks, f"https://{served.label}", patience_s=300.0, **options)
            assert time.monotonic() - begun < 100, "it doesn't heal, and isn't waited for"
            assert (refusal.code, served.asked) == ("server_not_proved", [])
            assert words in refusal.message
            assert refusal.hint


@CLIENTS
def test_a_client_of_tls_at_a_plain_port_and_the_other_way_round_are_told_what_to_write(
    asks: Asks, server: TlsServed, site: Site
) -> None:
    with TlsServed(None) as plain:
        for token in (pinned(site), TOKEN):
            refusal = refused(asks, f"https://{plain.label}", token=token)
            assert (refusal.code, f"http://{plain.label}" in refusal.hint) == ("tls_not_spoken", True)
        assert plain.asked == []
    before = len(server.asked)
    refusal = refused(asks, f"http://{server.label}", token=TOKEN)
    assert (refusal.code, "write https://" in refusal.hint) == ("tls_wanted", True)
    assert len(server.asked) == before


@CLIENTS
def test_a_server_that_says_in_tls_that_it_wants_tls_is_understood_too(asks: Asks) -> None:
    """As servers of others do."""
    with _hanging_up(b"\x15\x03\x01\x00\x02\x02\x46") as port:
        assert refused(asks, f"http://127.0.0.1:{port}").code == "tls_wanted"


@CLIENTS
def test_of_several_servers_one_without_a_good_certificate_is_passed_over(
    asks: Asks, server: TlsServed, site: Site
) -> None:
    with TlsServed(site.server("head.example.org")) as bad:
        assert is_answered(asks, server, f"https://{bad.label},https://{server.label}", token=pinned(site))
        assert bad.asked == []


@CLIENTS
def test_a_server_that_hangs_up_in_its_handshake_is_away(asks: Asks, site: Site) -> None:
    with _hanging_up(b"") as port:
        refusal = refused(asks, f"https://127.0.0.1:{port}", token=pinned(site), patience_s=0.5)
        assert refusal.code == "no_server"


@CLIENTS
def test_whoever_asks_a_port_that_speaks_no_http_is_told_which_one_does(asks: Asks) -> None:
    """The port of gRPC closes at once what isn't HTTP/2."""
    with _hanging_up(b"") as port:
        refusal = refused(asks, f"http://127.0.0.1:{port}", patience_s=0.5)
        assert refusal.code == "no_server"
        assert "closed the connection" in refusal.message
        assert "`http.port`" in refusal.hint


def test_a_file_without_certificates_is_told(tmp_path: Path, server: TlsServed) -> None:
    for name, why in (("none", "No such file"), ("empty", "holds no certificate")):
        (tmp_path / "empty").write_text("")
        with Client(f"https://{server.label}", token=TOKEN, ca_file=str(tmp_path / name)) as client:
            refusal = said(client.status)
            assert (refusal.code, why in refusal.message) == ("bad_ca_file", True)


def test_the_authority_is_looked_up_once_for_all_connections_of_a_client(server: TlsServed, site: Site) -> None:
    with Client(f"https://{server.label}", token=pinned(site)) as client:
        for _ in range(3):
            said(client.status)
        connection = client._transport._connection
        said(client.status)
        assert client._transport._connection is connection, "and one connection serves many requests"
        assert not client._transport._proof.wants_root


async def test_many_tasks_of_one_client_use_tls_at_once(server: TlsServed, site: Site) -> None:
    async with AsyncClient(f"https://{server.label}", token=pinned(site)) as client:
        before = len(server.asked)
        await asyncio.gather(*(client.status() for _ in range(50)), return_exceptions=True)
        assert len(server.asked) == before + 50


def test_a_renewed_certificate_is_served_without_a_restart_and_open_connections_go_on(site: Site) -> None:
    with TlsServed(site.server(*HERE)) as served, Client(f"https://{served.label}", token=pinned(site)) as client:
        said(client.status)
        connection = client._transport._connection
        served.renew(site.server("elsewhere.example.org"))
        said(client.status)
        assert client._transport._connection is connection
        assert len(served.asked) == 2
        client.close()
        assert said(client.status).code == "server_not_proved"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_nothing_older_than_tls_1_2_is_spoken(server: TlsServed, site: Site) -> None:
    old = _context(site)
    old.set_ciphers("ALL:@SECLEVEL=0")
    old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError):
        _secured(server, old)
    with _secured(server, _context(site)) as good:
        assert good.version() == "TLSv1.3"


def test_plain_http_at_a_tls_port_gets_one_answer_and_nothing_of_it_is_read(server: TlsServed) -> None:
    before = len(server.asked)
    with socket.create_connection(("127.0.0.1", server.port), 10) as line:
        line.sendall(b"POST /api/v1/jobs HTTP/1.1\r\nhost: x\r\ncontent-length: 70000\r\n\r\n" + b"x" * 60_000)
        said = b""
        while data := line.recv(65_536):
            said += data
    assert said.startswith(b"HTTP/1.1 400 ")
    assert b"tls_wanted" in said
    assert len(server.asked) == before


def test_half_open_handshakes_end_and_meanwhile_keep_nobody_out(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """H1 and H2."""
    monkeypatch.setattr("stoker.api.http.server.CONNECTIONS_MAX", 16)
    monkeypatch.setattr(tls, "HANDSHAKE_S", 3.0)
    with TlsServed(site.server(*HERE)) as served, ExitStack() as kept:
        lines = [socket.create_connection(("127.0.0.1", served.port), 30) for _ in range(40)]
        strangers = [kept.enter_context(line) for line in lines]
        strangers[-1].sendall(b"\x16\x03\x01")  # the beginning of a hello
        assert is_answered(ask, served, token=pinned(site))
        early = [each for each in strangers if _is_closed(each)]
        assert len(early) >= 40 - 16, "the oldest made place"
        assert all(each.recv(1) == b"" for each in strangers if each not in early), "the others had their time"


def test_records_of_tls_itself_are_no_beginning_of_an_answer(site: Site) -> None:
    """Others are asked who is active only until an answer begins."""
    (parsed,) = parsed_servers("https://127.0.0.1:1")
    with _sending(site.server(*HERE)) as (port, answers):
        server = parsed._replace(netloc=f"127.0.0.1:{port}")
        connection = Connection(server, 30.0, ServerProof(Credentials(pinned(site))))
        with closing(connection):
            assert connection._can_be_read(30.0), "tickets, which a server of OpenSSL's sends unasked"
            assert not connection.begins(0.05)
            answers.put(b"HTTP/1.1 200 OK\r\n")
            assert connection.begins(30.0)
            assert connection.begins(0.0)
            assert connection.read(LINE) == b"HTTP/1.1 200 OK\r\n"
            assert not connection.begins(0.0)
            answers.put(b"")
            assert connection.begins(30.0), "its end is one too"


@contextmanager
def _hanging_up(says: bytes) -> Iterator[int]:
    """Serve connections by saying that, whatever is sent; their port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        connection.recv(65_536)
                        connection.sendall(says)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


@contextmanager
def _sending(credentials: Certified) -> Iterator[tuple[int, "Queue[bytes]"]]:
    """Serve one connection over TLS with what is put into the queue, empty = its end; the port, and the queue."""
    context = server_context(*credentials)
    context.num_tickets = 2
    answers: Queue[bytes] = Queue()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            _look(listener, context)
            with context.wrap_socket(listener.accept()[0], server_side=True) as connection:
                while data := answers.get():
                    connection.sendall(data)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1], answers
        finally:
            answers.put(b"")
            thread.join()


def _look(listener: socket.socket, context: ssl.SSLContext) -> None:
    """The connection on which a client looks for the authority."""
    with suppress(OSError), context.wrap_socket(listener.accept()[0], server_side=True) as connection:
        connection.recv(1)


def _context(site: Site) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=site.root.decode())


def _secured(server: TlsServed, context: ssl.SSLContext) -> ssl.SSLSocket:
    line = socket.create_connection(("127.0.0.1", server.port), 30)
    try:
        return context.wrap_socket(line, server_hostname="localhost")
    except BaseException:
        line.close()
        raise


def _is_closed(line: socket.socket) -> bool:
    line.settimeout(0)
    try:
        return not line.recv(1)
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True
    finally:
        line.settimeout(30)
