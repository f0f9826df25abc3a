"""One session: a program with a terminal or pipes, what it wrote last, and how it ended.

Rules: X1  a client has at most `RING_BYTES` of output that it hasn't acknowledged; then the program's streams aren't
           read, and it waits, as on any slow terminal
       X2  a client that comes back says how much output it has had, and gets what follows; nothing is lost of a program
           that was executed, for it waits while nobody is connected
       X3  the terminal of a task goes on while nobody is connected: the newest `RING_BYTES` are kept for the next
       X4  input is taken once: the count of bytes taken is told, and a client sends no more than `INPUT_MAX` beyond it
       X5  the end is told after the last output; bytes that something it left behind writes later are not waited for
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import signal
import struct
import termios
from bisect import bisect_right
from contextlib import suppress

from stoker.agent.runner import clock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from stoker.agent.runner.session.client import SessionClient

MAIN: Final = "main"
"""Name of the session that is a task's own terminal."""
RING_BYTES: Final = 128 * 1024
INPUT_MAX: Final = 64 * 1024
DRAIN_S: Final = 0.2
"""How long after a program's end its streams may stay open: a terminal's last bytes come a moment later."""
NEVER: Final = float("inf")
_NOT_FOUND: Final = 127
_NOT_RUN: Final = 126
"""What a shell exits with that can't find a command, or can't execute it."""
_READ_BYTES: Final = 32 * 1024
_PIECE_BYTES: Final = 16 * 1024
_SIZE: Final = struct.Struct("HHHH")
_PID: Final = struct.Struct("i")
SIDE_MAX: Final = 9_999
"""Columns or rows of a terminal; also what a person could see is far below."""


class OutputRing:
    """The newest bytes of all streams of a program, in the order in which they were read."""

    def __init__(self) -> None:
        self.begin = 0
        self._data = bytearray()
        self._ends: list[int] = []
        self._channels: list[int] = []

    @property
    def end(self) -> int:
        """Bytes that were ever written."""
        return self.begin + len(self._data)

    def append(self, channel: int, data: bytes) -> None:
        """Add bytes of one stream; the oldest beyond `RING_BYTES` go."""
        self._data += data
        if self._channels and self._channels[-1] == channel:
            self._ends[-1] = self.end
        else:
            self._channels.append(channel)
            self._ends.append(self.end)
        beyond = len(self._data) - RING_BYTES
        if beyond > 0:
            del self._data[:beyond]
            self.begin += beyond
            gone = bisect_right(self._ends, self.begin)
            del self._ends[:gone], self._channels[:gone]

    def piece(self, offset: int) -> tuple[int, bytes]:
        """Return the stream and the bytes at an offset within it, of one stream and not too many."""
        run = bisect_right(self._ends, offset)
        until = min(self._ends[run], offset + _PIECE_BYTES)
        return self._channels[run], bytes(self._data[offset - self.begin : until - self.begin])


class ExecSession:
    """A program of one task, and the client that is connected to it, if any."""

    def __init__(self, name: str, key: str, *, tty: bool, now_s: float) -> None:
        self.name = name
        self.key = key
        self.tty = tty
        self.stays = False
        """It goes on though nobody is connected, for as long as it likes."""
        self.pid = 0
        """Of its program, which leads a session (setsid) of its own."""
        self.sources: dict[int, int] = {}
        """Descriptors that it is read from, each with its channel."""
        self.sink = -1
        """Descriptor of its input."""
        self.ring = OutputRing()
        self.sent = 0
        self.acked = 0
        self.input = bytearray()
        """Taken from the client, and not by the program."""
        self.taken = 0
        self.told_taken = 0
        self.input_over = False
        self.status: int | None = None
        """As waitpid gives it."""
        self.error = ""
        """Why its program could not be run."""
        self.mark = ""
        """Of a program in a container, by which its processes are found. Empty = it is a process here."""
        self.answer = -1
        self.said = bytearray()
        self.client: SessionClient | None = None
        self.gone_s = now_s
        """Since when nobody is connected."""
        self.ended_s = NEVER
        self.hung_up_s = -NEVER
        self.ends_s = NEVER
        """When its task is to end, since its terminal was hung up."""
        """When it was hung up last."""
        self.over = False
        """It has ended, and all that is waited for was read (X5)."""
        self.full_s = NEVER
        """Since when the client has acknowledged nothing, with all that it may have on its way."""

    @property
    def main(self) -> bool:
        """Whether it is the task's own terminal."""
        return self.name == MAIN

    @property
    def holds_place(self) -> bool:
        """Whether it counts where sessions are bounded: a program that people executed, and that hasn't ended."""
        return not self.main and self.status is None

    @property
    def is_kept(self) -> bool:
        """Whether it is there only for a client that may come back for its end."""
        return self.over and self.client is None and not self.main

    @property
    def room(self) -> int:
        """Bytes that may be read from the program now (X1, X2, X3)."""
        if self.client is None and self.main:
            return RING_BYTES
        return RING_BYTES - (self.ring.end - self.acked)

    def is_drained(self, now_s: float) -> bool:
        """Return whether the program has ended and all that it wrote was read (X5)."""
        return self.status is not None and (not self.sources or now_s >= self.ended_s + DRAIN_S)

    @property
    def is_told(self) -> bool:
        """Whether all output was sent."""
        return self.sent >= self.ring.end

    @property
    def wanted(self) -> dict[int, int]:
        """Events that its descriptors are waited for with; 0 = none."""
        reads, writes = select.EPOLLIN if self.room > 0 else 0, select.EPOLLOUT if self.input else 0
        events = {source: reads | (writes if source == self.sink else 0) for source in self.sources}
        return events if self.sink < 0 else {self.sink: writes, **events}

    # --- output ---------------------------------------------------------------------------------------------------

    def read(self, source: int) -> bytes | None:
        """Read from the program: None = nothing is there now, empty = no more will come from there."""
        try:
            received = os.read(source, min(_READ_BYTES, max(1, self.room)))
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno != errno.EIO:  # nobody has the terminal open any more
                raise
            return b""
        if received:
            self.ring.append(self.sources[source], received)
            if self.client is None and self.main:
                self.acked = self.sent = self.ring.end
        return received

    def attach(self, client: SessionClient, at: int) -> None:
        """Let a client have what follows the first `at` bytes, or all that is kept if that is negative."""
        self.client = client
        self.sent = self.acked = min(max(at, self.ring.begin), self.ring.end)
        self.gone_s, self.full_s, self.ends_s = NEVER, NEVER, NEVER

    def detach(self, now_s: float) -> None:
        """Note that nobody is connected."""
        self.client, self.gone_s, self.full_s = None, now_s, NEVER

    def acknowledge(self, end: int, now_s: float) -> None:
        """Note that the client has had so many bytes."""
        self.acked = min(max(self.acked, end), self.sent)
        self.full_s = NEVER if self.room > 0 else now_s

    # --- input ----------------------------------------------------------------------------------------------------

    def feed(self) -> None:
        """Give the program what it takes of its input now, and close it after the last byte."""
        while self.input and self.sink >= 0:
            try:
                written = os.write(self.sink, self.input[:4096])
            except BlockingIOError:
                return
            except OSError:  # it reads no more
                written = len(self.input)
            del self.input[:written]
            self.taken += written

    # --- the terminal and signals -----------------------------------------------------------------------------------

    def resize(self, columns: int, rows: int) -> None:
        """Set the size of its terminal, which tells its foreground processes (SIGWINCH)."""
        if self.tty and self.sink >= 0:
            with suppress(OSError):
                set_size(self.sink, columns, rows)

    def redraw(self) -> None:
        """Have a full-screen program draw again for a client that is new."""
        if self.tty:
            self._signal(self._foreground(), signal.SIGWINCH)

    def signal(self, number: int) -> None:
        """Send a signal to the processes in the foreground of its terminal, or to the group of its program."""
        self._signal(self._foreground() or self.pid, number)

    def hang_up(self, heed_s: float = NEVER) -> None:
        """Send what a terminal sends that is closed; one that is stopped must wake to hear it.

        A task's own, unless it stays, has `heed_s` for its end.
        """
        self.hung_up_s = clock.boot_s()
        if self.main and not self.stays:
            self.ends_s = min(self.ends_s, self.hung_up_s + heed_s)
        for group in dict.fromkeys((self.pid, self._foreground() or self.pid)):
            self._signal(group, signal.SIGHUP)
            self._signal(group, signal.SIGCONT)

    def _foreground(self) -> int:
        """Process group in the foreground of its terminal; 0 = there is none."""
        if not self.tty or self.sink < 0:
            return 0
        try:
            return int(_PID.unpack(fcntl.ioctl(self.sink, termios.TIOCGPGRP, _PID.pack(0)))[0])
        except OSError:
            return 0

    def _signal(self, group: int, number: int) -> None:
        if group > 1 and self.status is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(group, number)


def set_size(terminal: int, columns: int, rows: int) -> None:
    """Set the size of a terminal. Raises OSError."""
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, _SIZE.pack(rows, columns, 0, 0))


def open_terminal(columns: int, rows: int) -> tuple[int, int]:
    """Return both ends of a new terminal: ours, which never blocks, and the program's. Raises OSError."""
    ours, theirs = os.openpty()
    os.set_blocking(ours, False)
    set_size(ours, columns or 80, rows or 24)
    return ours, theirs


def end_of(session: ExecSession) -> dict[str, object]:
    """Return how a program ended, as `exit` says it."""
    code = os.waitstatus_to_exitcode(session.status or 0)
    if session.error:
        code = _NOT_FOUND if "(ENOENT)" in session.error or "No such file" in session.error else _NOT_RUN
    return {"code": max(code, 0), "signal": max(-code, 0), "error": session.error}
