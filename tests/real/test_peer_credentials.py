"""Callers are known by their Unix account where no token is wanted: P1 to P3 of `wire.socket_owner`."""

import http.client
import json
import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from stoker.api.peer_credentials import foreign_peer, peer_uid
from stoker.wire import socket_owner
from stoker.wire.client import Client
from stoker.wire.local_socket import SOCKET_NAME, connected
from stoker.wire.socket_owner import GONE
from tests.real.up_process import UpProcess, until

NOBODY: Final = 65_534
ROOT: Final = os.geteuid() == 0
as_root = pytest.mark.skipif(not ROOT, reason="only root can be another account")
FAMILIES: Final = pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6], ids=["ipv4", "ipv6"])
WAYS: Final = pytest.mark.parametrize("way", ["netlink", "table"])


def from_way(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def not_to_be_had(one: object, other: object, diag: object) -> int:
        raise OSError("no netlink here")

    if way == "table":
        monkeypatch.setattr(socket_owner, "_from_netlink", not_to_be_had)


def pair(family: int) -> tuple[socket.socket, socket.socket]:
    """The client's end and ours."""
    with socket.socket(family) as listener:
        listener.bind(("::1" if family == socket.AF_INET6 else "127.0.0.1", 0))
        listener.listen()
        client = socket.create_connection(listener.getsockname()[:2])
        ours, _ = listener.accept()
        return client, ours


def as_nobody(work: Callable[[], str]) -> str:
    """What `work` says in a process of another account."""
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        try:
            said = work()
        except BaseException as fault:
            said = f"broke: {fault!r}"
        os.write(into, said.encode()[:4_000])
        os._exit(0)
    os.close(into)
    with os.fdopen(out) as said_there:
        told = said_there.read()
    os.waitpid(child, 0)
    return told


@FAMILIES
@WAYS
def test_the_kernel_tells_whose_the_other_end_is(family: int, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from_way(way, monkeypatch)
    client, ours = pair(family)
    with client, ours:
        assert peer_uid(ours) == os.geteuid()
        assert foreign_peer(peer_uid(ours)) is None


@FAMILIES
@WAYS
def test_who_hung_up_before_he_was_looked_for_is_nobody(family: int, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a request sent and left behind would be taken for root's, whose number the kernel shows for it."""
    from_way(way, monkeypatch)
    client, ours = pair(family)
    with ours:
        client.close()
        assert peer_uid(ours) == GONE
        assert foreign_peer(peer_uid(ours)) is not None


def test_where_the_kernel_does_not_tell_nobody_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from_way("table", monkeypatch)
    monkeypatch.setattr(socket_owner, "_TABLES", dict.fromkeys(socket_owner._TABLES, str(tmp_path / "none")))
    client, ours = pair(socket.AF_INET)
    with client, ours:
        assert peer_uid(ours) is None
        assert foreign_peer(None) is None


def test_the_other_end_of_a_unix_socket_is_told_too() -> None:
    one, other = socket.socketpair()
    with one, other:
        assert peer_uid(one) == os.geteuid()


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    with UpProcess(tmp_path_factory.mktemp("up"), "--nodes", "1", "--gpus-per-node", "1") as cluster:
        yield cluster


@as_root
def test_another_account_of_this_machine_is_refused_in_one_clear_problem(up: UpProcess) -> None:
    def submit() -> str:
        client = http.client.HTTPConnection("127.0.0.1", up.http_port, timeout=10)
        client.request("POST", "/api/v1/jobs", json.dumps({"command": "id"}), {"content-type": "application/json"})
        response = client.getresponse()
        return f"{response.status} {response.read().decode()}"

    said = as_nobody(submit)
    assert said.startswith("403 ")
    assert json.loads(said[4:])["code"] == "foreign_user"
    assert f"uid {NOBODY}" in said
    with Client(up.url) as client:
        assert client.jobs().total == 0, "and its own account goes on being served"


@as_root
def test_a_request_left_behind_by_another_account_submits_nothing(up: UpProcess) -> None:
    body = json.dumps({"command": "id", "name": "left-behind"})
    request = "POST /api/v1/jobs HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    request += f"content-length: {len(body)}\r\n\r\n{body}"

    def send_and_go() -> str:
        for _ in range(50):
            with socket.create_connection(("127.0.0.1", up.http_port)) as line:
                line.sendall(request.encode())
        return "gone"

    assert as_nobody(send_and_go) == "gone"
    with Client(up.url) as client:
        until(lambda: client.health().status == "ok", 10, "an answer after all of them")
        assert client.jobs().total == 0


@as_root
def test_the_socket_in_the_data_folder_is_the_owners_alone(tmp_path_factory: pytest.TempPathFactory) -> None:
    with UpProcess(tmp_path_factory.mktemp("up"), "--nodes", "1", "--gpus-per-node", "1") as up:
        (folder,) = up.folder.glob("stoker-up-*/control")
        path = folder / SOCKET_NAME
        assert path.stat().st_mode & 0o777 == 0o600

        def ask() -> str:
            with connected(path, 10) as line:
                line.sendall(b"GET /api/v1/jobs HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
                return line.recv(4_000).decode()

        with _open_to_all(path):
            assert as_nobody(ask).startswith("HTTP/1.1 403"), "even then"
        assert ask().startswith("HTTP/1.1 200")


@contextmanager
def _open_to_all(path: Path) -> Iterator[None]:
    """The socket, and the way to it."""
    temporary = Path(tempfile.gettempdir())
    opened = [path, *(above for above in path.parents if above.is_relative_to(temporary) and above != temporary)]
    modes = [each.stat().st_mode & 0o777 for each in opened]
    for each in opened:
        each.chmod(0o777)
    try:
        yield
    finally:
        for each, mode in zip(opened, modes, strict=True):
            each.chmod(mode)
