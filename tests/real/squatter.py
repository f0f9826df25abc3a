"""A program of another account that listens where a control plane should, and writes down what it is sent."""

import os
import pwd
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="NOT PROVED HERE: only root can be another account")
NOBODY: Final = 65_534
NAME: Final = pwd.getpwuid(NOBODY).pw_name
_ANSWER: Final = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


class Squatter:
    """It is asked by `heard` for all that it was sent until then."""

    def __init__(self, url: str, answers: socket.socket) -> None:
        self.url = url
        self.label = url.partition("://")[2]
        self._answers = answers

    def heard(self) -> bytes:
        self._answers.sendall(b"?")
        size = int.from_bytes(self._answers.recv(4, socket.MSG_WAITALL))
        return self._answers.recv(size, socket.MSG_WAITALL) if size else b""


@contextmanager
def squatting(family: int = socket.AF_INET, *, takes: bool = True) -> Iterator[Squatter]:
    """Listen as another account; where it doesn't take connections they stay in its queue. For root."""
    host = "::1" if family == socket.AF_INET6 else "127.0.0.1"
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        ours.close()
        try:
            _listen(family, host, theirs, takes=takes)
        finally:
            os._exit(0)
    theirs.close()
    try:
        port = int.from_bytes(ours.recv(2, socket.MSG_WAITALL))
        yield Squatter(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}", ours)
    finally:
        ours.close()
        os.waitpid(child, 0)


def _listen(family: int, host: str, asked: socket.socket, *, takes: bool) -> None:
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    with socket.create_server((host, 0), family=family) as listener:
        asked.sendall(listener.getsockname()[1].to_bytes(2))
        _write_down(listener, asked, takes=takes)


def _write_down(listener: socket.socket, asked: socket.socket, *, takes: bool) -> None:
    heard, opened = b"", [asked, *([listener] if takes else [])]
    while True:
        for each in select.select(opened, [], [])[0]:
            if each is listener:
                opened.append(listener.accept()[0])
            elif each is asked:
                if not asked.recv(1):
                    return
                asked.sendall(len(heard).to_bytes(4) + heard)
            elif data := _read(each):
                heard += data
                each.sendall(_ANSWER)
            else:
                opened.remove(each)
                each.close()


def _read(connection: socket.socket) -> bytes:
    try:
        return connection.recv(65_536)
    except OSError:
        return b""


@contextmanager
def listening(host: str) -> Iterator[Squatter]:
    """The same as this account, at any address of this machine."""
    ours, theirs = socket.socketpair()
    with theirs, socket.create_server((host, 0)) as listener:
        thread = threading.Thread(target=_write_down, args=(listener, theirs), kwargs={"takes": True})
        thread.start()
        try:
            yield Squatter(f"http://{host}:{listener.getsockname()[1]}", ours)
        finally:
            ours.close()
            thread.join()
