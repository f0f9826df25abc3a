"""Launcher: has the first processes of plain tasks forked by a small process, the fork server.

The runner, which looks at all of its tasks all the time, pays 1.3 ms for a fork of its own, and its child 1.0; the fork
server and its child pay a third. The child is the runner's own all the same: that reaps it, and it dies with that.

Rules: L1  the kernel notes the pid of a child before that runs, where the runner can read it: no launch is in doubt,
           wherever the server is killed
       L2  what isn't plain (`Launch.is_plain`), what is too large, and all while there is no server, the runner forks
           by itself (`Launch.fork`), with the same outcome
       L3  a server that is gone or doesn't answer is replaced, `RESTARTS_MAX` times; one that this kernel doesn't let
           fork so is not
       L4  the server ends with the runner
"""

from __future__ import annotations

import errno
import mmap
import os
import signal
import socket
import struct
import sys
from array import array
from contextlib import suppress

from stoker.agent.runner.process import fork_server
from stoker.agent.runner.process.kernel import cpu_mask, differing_limits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Final

    from stoker.agent.runner.process.launch import Launch

RESTARTS_MAX: Final = 8
ANSWER_S_MAX: Final = 1
"""It takes a millisecond. Well below `guard.STUCK_S`: the runner waits for it."""
_POINTER_BYTES: Final = 8
_TIMEOUT: Final = struct.Struct("@ll")
_USELESS: Final = (errno.ENOSYS, errno.EPERM, errno.EINVAL, errno.E2BIG, errno.EOPNOTSUPP)
"""From an older kernel, or a container's filter."""


class Launcher:
    """The fork server as its runner sees it. It is started when the first task is."""

    def __init__(self, helped: Callable[[int], None]) -> None:
        """`helped` is told of each child that is a fork server."""
        self._helped = helped
        self.pid = 0
        """0 = there is none."""
        self._note = mmap.mmap(-1, fork_server.NOTE_BYTES)
        self._base = 0
        """Where in its memory it takes orders. 0 = it isn't ready."""
        self._starts = 0
        self._line: socket.socket | None = None

    def _begin(self) -> None:
        """Start a fork server (L3)."""
        self._starts += 1
        memory = os.memfd_create("stoker-launch", os.MFD_CLOEXEC)
        try:
            os.ftruncate(memory, fork_server.NOTE_BYTES)
            self._note, self._base = mmap.mmap(memory, fork_server.NOTE_BYTES), 0
            self._spawn(memory)
        except OSError:
            self._close()
        finally:
            os.close(memory)

    def _spawn(self, memory: int) -> None:
        """Raises OSError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._line = ours
        with theirs:
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                ours.setsockopt(socket.SOL_SOCKET, option, _TIMEOUT.pack(ANSWER_S_MAX, 0))
            socket.send_fds(ours, [b"note"], [memory])
            words = [sys.executable, "-I", "-S", str(fork_server.__file__), str(os.getpid())]
            actions = [(os.POSIX_SPAWN_DUP2, theirs.fileno(), fork_server.LINE)]
            self.pid = os.posix_spawn(sys.executable, words, os.environ, file_actions=actions, setsid=True)
            self._helped(self.pid)

    def reaped(self, pid: int) -> None:
        """Note that a child has ended, which may have been the fork server."""
        if pid == self.pid:
            self.pid = 0
            self._close()

    def fork(self, launch: Launch, streams: tuple[int, int, int]) -> tuple[int, int]:
        """As `Launch.fork`, by the fork server where it can (L2). Raises OSError."""
        if not self.pid and self._starts <= RESTARTS_MAX:
            self._begin()
        order = self._laid_out(launch) if self._line is not None and launch.is_plain and self._ready() else b""
        if not order:
            return launch.fork(streams)
        answer, reply = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            pid = self._ask(order, [*streams, reply], launch)
        except OSError:
            os.close(answer)
            raise
        finally:
            os.close(reply)
        if pid:
            return pid, answer
        os.close(answer)
        return launch.fork(streams)

    def _ready(self) -> bool:
        """Whether the server has said where it takes orders."""
        if not self._base and self._line is not None:
            with suppress(OSError):
                self._base = int.from_bytes(self._line.recv(_POINTER_BYTES, socket.MSG_DONTWAIT), sys.byteorder)
        return self._base > 0

    def _laid_out(self, launch: Launch) -> bytes:
        """Return the order for a launch, as system calls take what is in it. Empty = it is too large."""
        argc = len(launch.argv)
        words = [*launch.argv, *(b"%b=%b" % pair for pair in launch.env.items())]
        count = len(words)
        limits, cpus = differing_limits(launch.limits), cpu_mask(launch.cpu_list)
        words += (*map(os.fsencode, (launch.workdir, launch.folder)), cpus)
        words += (*limits.values(), *map(os.fsencode, launch.paths))
        integers = 1 + fork_server.FIXED + 2 * len(limits) + len(launch.paths)
        lists = self._base + _POINTER_BYTES * integers
        at, places = lists + _POINTER_BYTES * (count + 2), array("Q")
        for word in words:
            places.append(at)
            at += len(word) + 1
        if at > self._base + fork_server.ORDER_BYTES_MAX:
            return b""
        folder, checkpoints, set_of_cpus = places[count : count + 3]
        order = array("Q", (integers, lists, lists + _POINTER_BYTES * (argc + 1), folder))
        order.extend(
            (checkpoints if launch.folder else 0, set_of_cpus, len(cpus), launch.umask, bool(launch.group.born_in))
        )
        order.extend((len(limits), *limits, *places[count + 3 :], *places[:argc], 0, *places[argc:count], 0))
        return b"".join((order.tobytes(), b"\0".join(words), b"\0"))

    def _ask(self, order: bytes, descriptors: list[int], launch: Launch) -> int:
        """Return the pid of the child; 0 = the server hasn't forked it. Raises OSError."""
        assert self._line is not None, "there is no fork server"
        doors: list[int] = []
        answer, self._note[:4] = b"", bytes(4)
        try:
            launch.group.open_doors(doors)
            socket.send_fds(self._line, [order], [*descriptors, *doors])
            answer = self._line.recv(4)
        except OSError as error:
            if len(doors) < launch.group.doors:
                raise OSError(error.errno, f"it cannot enter its cgroup: {error.strerror}") from error
        finally:
            for door in doors:
                os.close(door)
        number = int.from_bytes(answer, sys.byteorder)
        if not answer:
            self._end()
        elif number in _USELESS:
            self._starts = RESTARTS_MAX + 1
            self._end()
        elif number:
            raise OSError(number, os.strerror(number))
        return int.from_bytes(self._note[:4], sys.byteorder)  # L1

    def _end(self) -> None:
        """End the server, and wait until it forks no more."""
        self._close()
        if self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(self.pid, 0)
            self.pid = 0

    def _close(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None
