"""A program in a terminal of its own, and what a person sees there: a picture of text."""

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import termios
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Final, Self

import pyte

PATIENCE_S: Final = 30.0


class Terminal:
    """Started on entry, killed on exit if it hasn't ended. What it writes is read whenever somebody looks."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], columns: int = 80, lines: int = 24) -> None:
        self._command = list(command)
        # Else a size that another test left in the environment would hide that of the terminal.
        of_the_window = {name: value for name, value in env.items() if name not in ("COLUMNS", "LINES")}
        self._env = {"TERM": "xterm-256color", **of_the_window}
        self._screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self._screen)
        self.written = b""
        """All that it ever wrote."""
        self._status: int | None = None

    def __enter__(self) -> Self:
        self.pid, self._file = pty.fork()
        if self.pid == 0:
            size = struct.pack("HHHH", self._screen.lines, self._screen.columns, 0, 0)
            fcntl.ioctl(0, termios.TIOCSWINSZ, size)
            os.execvpe(self._command[0], self._command, dict(self._env))
        self._before = termios.tcgetattr(self._file)
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, at: TracebackType | None) -> None:
        if self._status is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self._file)

    def resize(self, columns: int, lines: int) -> None:
        self._screen.resize(lines, columns)
        fcntl.ioctl(self._file, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def type(self, text: str) -> None:
        os.write(self._file, text.encode())

    def kill(self, number: int) -> None:
        os.kill(self.pid, number)

    @property
    def lines(self) -> list[str]:
        """The picture as it stands, without blanks at the ends of lines."""
        self._read(0)
        return [line.rstrip() for line in self._screen.display]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def cursor_shown(self) -> bool:
        return not self._screen.cursor.hidden

    @property
    def line_settings(self) -> list[object]:
        """As the kernel has them: echo, line mode and the like."""
        return termios.tcgetattr(self._file)

    @property
    def settings_before(self) -> list[object]:
        return self._before

    def until(self, *words: str, gone: Sequence[str] = (), patience_s: float = PATIENCE_S) -> str:
        """The first picture that holds all of `words`, and none of `gone`."""
        give_up_s = time.monotonic() + patience_s
        while time.monotonic() < give_up_s:
            seen = self.text
            if all(word in seen for word in words) and not any(word in seen for word in gone):
                return seen
            self._read(0.05)
        raise AssertionError(f"waited {patience_s} s in vain for {words} without {gone} in:\n{self.text}")

    def still(self, quiet_s: float = 0.3) -> str:
        """The picture once nothing has been written for a while."""
        while self._read(quiet_s):
            pass
        return self.text

    def end(self, patience_s: float = PATIENCE_S) -> int:
        """Its exit status, as a shell would report it, once it has ended."""
        give_up_s = time.monotonic() + patience_s
        while self._status is None:
            assert time.monotonic() < give_up_s, f"it doesn't end:\n{self.text}"
            self._read(0.05)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._status = os.waitstatus_to_exitcode(status)
        self._read(0.05)
        return self._status if self._status >= 0 else 128 - self._status

    def _read(self, wait_s: float) -> bool:
        """Take in what was written; False when nothing comes."""
        came = False
        with contextlib.suppress(OSError):  # how a terminal says that the other side is gone
            while select.select([self._file], [], [], 0 if came else wait_s)[0]:
                part = os.read(self._file, 65_536)
                if not part:
                    break
                self.written += part
                self._stream.feed(part)
                came = True
        return came
