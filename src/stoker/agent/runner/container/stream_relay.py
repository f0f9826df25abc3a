"""Relay between the standard streams of a client and a program in a container, by one connection of the engine.

With a terminal its bytes go both ways as they are. Without one the engine's frames name the stream: eight bytes, of
which the first is the stream and the last four are the length. Nothing here blocks but the wait for whatever comes
first, so a Ctrl-C gets through while output stands still, and at most `_HELD_MAX` bytes are held each way.
Source: `Attach to a container` of the Engine API.

Rules: R1  what the program has written is out before the relay ends
       R2  the end of the input is told once all of it was sent
       R3  signals are taken by whoever runs the relay, between two of its steps
"""

from __future__ import annotations

import os
import select
import signal
import socket
from collections import deque
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Final

_HELD_MAX: Final = 64 * 1024
_READ_BYTES: Final = 32 * 1024
_HEADER_BYTES: Final = 8
_OUT: Final = 1
_STREAMS: Final = {1: 1, 2: 2}


class Signals:
    """Signals of this process, taken one after another where that suits it."""

    def __init__(self, numbers: Iterable[int], heed: Callable[[int], None]) -> None:
        """`heed` is called with each of these that came."""
        self._heed = heed
        self._received, self._woken = socket.socketpair()
        for end in (self._received, self._woken):
            end.setblocking(False)
        signal.set_wakeup_fd(self._woken.fileno(), warn_on_full_buffer=False)
        for number in numbers:
            signal.signal(number, _noted)

    def fileno(self) -> int:
        """Return the descriptor that is readable when one has come."""
        return self._received.fileno()

    def take(self) -> None:
        """Heed those that have come."""
        with suppress(BlockingIOError):
            for number in self._received.recv(4096):
                self._heed(number)

    def wait(self, seconds: float) -> None:
        """Heed those that come within some time, and return early with the first."""
        if select.select([self._received], [], [], seconds)[0]:
            self.take()


def _noted(number: int, frame: object) -> None:
    """The descriptor says the rest."""


class StreamRelay:
    """The relay of one connection, until the engine ends it."""

    def __init__(self, connection: socket.socket, begun: bytes, signals: Signals, *, tty: bool) -> None:
        """`begun`: what has come already."""
        self._connection = connection
        self._signals = signals
        self._tty = tty
        self._received = bytearray(begun)
        self._to_write: deque[tuple[int, bytes]] = deque()
        self._to_send = bytearray()
        self._has_input = True
        self._is_told = False
        """The engine was told that no more input comes (R2)."""
        self._is_open = True

    def run(self) -> None:
        """Carry bytes until the engine says no more, and all of that is written (R1)."""
        self._connection.setblocking(False)
        for descriptor in (0, 1, 2):
            os.set_blocking(descriptor, False)
        with self._connection:
            self._split()
            while self._is_open or self._to_write:
                for descriptor, events in self._ready():
                    if descriptor == self._signals.fileno():
                        self._signals.take()  # R3
                    elif descriptor == self._connection.fileno():
                        self._exchange(events)
                    elif self._to_write and descriptor == self._to_write[0][0] and events & ~select.POLLIN:
                        self._write()
                    elif descriptor == 0:
                        self._read_input()

    def _ready(self) -> list[tuple[int, int]]:
        wanted = {self._signals.fileno(): select.POLLIN}
        if self._is_open:
            reads = select.POLLIN if not self._to_write else 0
            wanted[self._connection.fileno()] = reads | (select.POLLOUT if self._to_send else 0)
        if self._has_input and len(self._to_send) < _HELD_MAX:
            wanted[0] = select.POLLIN
        if self._to_write:
            writes = self._to_write[0][0]
            wanted[writes] = wanted.get(writes, 0) | select.POLLOUT
        poll = select.poll()
        for descriptor, events in wanted.items():
            if events:  # else a hang-up would be said again and again
                poll.register(descriptor, events)
        return poll.poll()

    # --- from the container -------------------------------------------------------------------------------------

    def _exchange(self, events: int) -> None:
        try:
            if events & select.POLLOUT and self._to_send:
                del self._to_send[: self._connection.send(self._to_send)]
            if events & ~select.POLLOUT and not self._to_write:
                received = self._connection.recv(_READ_BYTES)
                self._is_open = bool(received)
                self._received += received
                self._split()
        except BlockingIOError:
            return
        except OSError:  # an engine that went away
            self._is_open = False
        self._tell_end()

    def _split(self) -> None:
        """Make pieces for our streams of what has come."""
        if self._tty:
            if self._received:
                self._to_write.append((_OUT, bytes(self._received)))
                self._received.clear()
            return
        while len(self._received) >= _HEADER_BYTES:
            end = _HEADER_BYTES + int.from_bytes(self._received[4:_HEADER_BYTES], "big")
            if len(self._received) < end:
                break
            if piece := bytes(self._received[_HEADER_BYTES:end]):
                self._to_write.append((_STREAMS.get(self._received[0], _OUT), piece))
            del self._received[:end]

    def _write(self) -> None:
        stream, piece = self._to_write.popleft()
        try:
            written = os.write(stream, piece)
        except BlockingIOError:
            written = 0
        except OSError:  # nobody takes it any more
            written = len(piece)
        if written < len(piece):
            self._to_write.appendleft((stream, piece[written:]))

    # --- into the container -------------------------------------------------------------------------------------

    def _read_input(self) -> None:
        try:
            read = os.read(0, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:  # a terminal that was closed
            read = b""
        self._to_send += read
        self._has_input = bool(read)
        self._tell_end()

    def _tell_end(self) -> None:
        """Tell the engine that no more input comes, once all of it has been sent (R2)."""
        if self._is_open and not (self._has_input or self._to_send or self._is_told):
            self._is_told = True
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_WR)
