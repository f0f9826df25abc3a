"""Copier, which writes the output of a task to a file that its user named.

It is a child of the runner, forked and never another program, between the task and the runner: it reads the task's
pipes, writes each block to the file and hands it on to the runner, which keeps its own copy as ever. Why not the runner
itself: a network file system that hangs would then stop every task of the node, and here it holds up the task that
writes to it. Why not the task itself, straight into the file: nobody would have a copy that is bounded and that nobody
else writes to. Its price: a fork, 0.5 MiB, and one copy more of each block, for tasks that ask for a file.

It opens the files as the job's user, never as root: what that user may not write, by whatever links it leads there,
is refused like anything else.

Rules: F1  the file is open before the task's process exists; one that can't be opened is a failure to start
       F2  a file is written at its end, so that several tasks may share one
       F3  a write that fails loses those bytes, and the task's end says how many; nothing else is held up
       F4  it goes on, whatever signals the task gets, until the task has closed its output; once the task's tree is
           gone, or the runner is, it takes what is in the pipes and leaves
       F5  a file that nobody reads (a named pipe) is refused; a device is written to
"""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
from contextlib import suppress

from stoker.agent.runner.files import write_all
from stoker.agent.runner.process.account import VOID, CannotStart, error_text, plain
from stoker.agent.runner.process.kernel import ignore_signals, name_process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Final

    from stoker.agent.runner.process.account import Actor

OUTPUT: Final = "output"
ERROR: Final = "error"
_NAME: Final = "stoker-copy"
_READ_BYTES: Final = 64 * 1024
"""What a pipe holds."""
_DRAIN_BYTES_MAX: Final = 16 * 1024 * 1024
"""Taken after the tree is gone. A foreign process that holds the pipe can't keep us longer."""
PATIENCE_S: Final = 5.0
"""How long it may write after the tree is gone. A full pipe takes milliseconds; only a disk that hangs takes longer."""
_REASON_BYTES_MAX: Final = 4096
_OPEN: Final = b"+"
"""Said first: the files are open."""
_DONE: Final = b"."
"""Said before the last words; who doesn't say it was killed."""
_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
"""Non-blocking, so that a pipe without a reader is an error; that is taken back once it is open."""


class Pipes:
    """Pipes between a task and the runner, by way of a copier or straight."""

    def __init__(self) -> None:
        """Begin with the straight way. Raises OSError."""
        self.received, self.output = os.pipe2(os.O_CLOEXEC)
        """The runner's end, and what becomes the task's standard output."""
        self.error = self.output
        os.set_blocking(self.received, False)

    def lead(self, name: str, sink: int) -> None:
        """Lead a stream of the task elsewhere. Errors follow the output until they are led apart."""
        self.error = sink
        if name == OUTPUT:
            self.output = sink

    def close_task_ends(self) -> None:
        """Close the ends of the task, which has them by now, or never will."""
        if self.output >= 0:
            os.close(self.output)
        if self.error not in (-1, self.output):
            os.close(self.error)
        self.output = self.error = -1

    def take(self) -> int:
        """Return the runner's end, which is now the caller's to close."""
        received, self.received = self.received, -1
        return received

    def close(self) -> None:
        """Close all ends that were not taken."""
        self.close_task_ends()
        if self.received >= 0:
            os.close(self.take())


class Target:
    """File that gets a copy."""

    def __init__(self, name: str, path: str, *, fresh: bool) -> None:
        """`path` is absolute. `fresh`: empty it first. `name`: OUTPUT or ERROR."""
        self.name = name
        self.path = path
        self.fresh = fresh
        self._lost = 0
        self._why = ""
        self._file = -1

    def open(self) -> None:
        """Open the file at its end; a named pipe that nobody reads is refused (F2, F5). Raises OSError."""
        self._file = os.open(self.path, _FLAGS | (os.O_TRUNC if self.fresh else 0), 0o666)
        os.set_blocking(self._file, True)

    def write(self, block: bytes) -> None:
        """Write a block; what can't be written is lost and counted (F3)."""
        view = memoryview(block)
        while view:
            try:
                view = view[os.write(self._file, view) :]
            except OSError as error:
                self._lost += len(view)
                self._why = error.strerror or str(error)
                return

    def loss(self) -> str:
        return f"{self._lost} bytes didn't get into {self.path}: {self._why}" if self._lost else ""


class Copier:
    """The copying process as the runner sees it."""

    def __init__(self, targets: list[Target], names: list[str], pipes: Pipes, line: socket.socket) -> None:
        """`names`: under which the runner keeps account of the files."""
        self._paths = " and ".join(target.path for target in targets)
        self._said = b""
        self.names = names
        self.pipes = pipes
        self.line = line
        """Its messages come here; it leaves when our side is shut down (F4). Closed = it has left."""
        self.pid = 0
        """0 = it is reaped."""
        self.until_s = 0.0
        """When it is waited for no longer. 0 = nobody waits for it yet."""
        self.late = False
        """It was waited for in vain."""

    @property
    def opened(self) -> bool:
        """Whether all files are open."""
        return self._heard.startswith(_OPEN)

    @property
    def left(self) -> bool:
        """Whether it has left, or is waited for no longer."""
        return self.line.fileno() < 0

    @property
    def words(self) -> str:
        """Reason for a file that couldn't be opened, or what was lost, once it has left; empty = all is well."""
        if not self.opened and self._heard:
            return self._heard.decode("utf-8", "replace")
        _, done, losses = self._heard.partition(_DONE)
        if done:
            return losses.decode("utf-8", "replace")
        why = f"took more than {PATIENCE_S:.0f} s for its last bytes" if self.late else "was killed"
        return f"output is missing in {self._paths}: the process that writes it {why}"

    @property
    def _heard(self) -> bytes:
        """What still holds of what it said."""
        return self._said.rpartition(VOID)[2]

    def hear(self) -> bool:
        """Read from its line, which is readable. False = it has left."""
        try:
            received = self.line.recv(_REASON_BYTES_MAX)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._said += received
        return bool(received)

    def finish(self) -> None:
        """Tell it to take what is in the pipes and leave (F4)."""
        with suppress(OSError):  # it has left, and nobody has heard it yet
            self.line.shutdown(socket.SHUT_WR)

    def kill(self) -> None:
        """Kill it; one that hangs in a system call goes when that ends."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)


def fork_copier(targets: list[Target], names: list[str], actor: Actor, umask: int) -> Copier:
    """Fork a copier for these files, which acts as `actor` and makes them with this umask. Raises OSError."""
    pipes, sources = Pipes(), dict[int, Target]()
    onward, sinks = pipes.output, list[int]()
    line, theirs = socket.socketpair()
    try:
        line.setblocking(False)
        for target in targets:
            source, sink = os.pipe2(os.O_CLOEXEC)
            sources[source] = target
            sinks.append(sink)
            pipes.lead(target.name, sink)
        pid = os.fork()
    except OSError:
        line.close()
        for descriptor in (pipes.received, onward, *sinks):
            os.close(descriptor)
        raise
    else:
        if pid == 0:
            os.umask(umask)
            _be_copier(sources, theirs, onward, actor)
    finally:
        theirs.close()
        for source in sources:
            os.close(source)
    if onward not in (pipes.output, pipes.error):
        os.close(onward)
    copier = Copier(targets, names, pipes, line)
    copier.pid = pid
    return copier


# --- in the child -----------------------------------------------------------------------------------------------


def _be_copier(sources: dict[int, Target], line: socket.socket, onward: int, actor: Actor) -> None:
    """Never returns."""
    said = b""
    try:
        ignore_signals((signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD))
        name_process(_NAME)
        # Among them the lock of the data folder, which must be free once the runner is dead.
        _close_all_but((*sources, line.fileno(), onward))
        said = _prepare(sources.values(), actor, line)
        if not said:
            line.send(_OPEN)
            _copy(sources, line.fileno(), onward)
            losses = filter(None, (target.loss() for target in sources.values()))
            said = _DONE + "; ".join(losses).encode("utf-8", "surrogateescape")
    finally:
        line.send(plain(said)[:_REASON_BYTES_MAX])
        os._exit(0)


def _prepare(targets: Iterable[Target], actor: Actor, line: socket.socket) -> bytes:
    """Take the account on and open the files (F1). Answers why not; empty when all are open."""
    try:
        actor.take_on(line.send)
    except CannotStart as error:
        return str(error).encode("utf-8", "replace")
    for target in targets:
        try:
            target.open()
        except (OSError, ValueError) as error:  # ValueError: a NUL, or what no encoding has
            why = _said(error) if isinstance(error, OSError) else f"that can't be a file's name: {error}"
            return f"cannot write its {target.name} to {target.path}{actor.words}: {why}".encode("utf-8", "replace")
    return b""


def _copy(sources: dict[int, Target], line: int, onward: int) -> None:
    """Until the task has closed its output."""
    poll = select.poll()
    poll.register(line, select.POLLIN)
    for source in sources:
        os.set_blocking(source, False)
        poll.register(source, select.POLLIN)
    open_ones, heard = dict(sources), True
    while open_ones:
        for descriptor, _ in poll.poll():
            if descriptor == line:
                for source in open_ones:
                    _drain(source, sources[source], onward if heard else -1)
                return
            block = os.read(descriptor, _READ_BYTES)
            if not block:
                poll.unregister(descriptor)
                del open_ones[descriptor]
                continue
            sources[descriptor].write(block)
            heard = heard and _hand_on(block, onward)


def _drain(source: int, target: Target, onward: int) -> None:
    """What is there, without waiting for more."""
    left, heard = _DRAIN_BYTES_MAX, onward >= 0
    while left > 0:
        try:
            block = os.read(source, _READ_BYTES)
        except BlockingIOError:
            return
        if not block:
            return
        target.write(block)
        heard = heard and _hand_on(block, onward)
        left -= len(block)


def _hand_on(block: bytes, onward: int) -> bool:
    """To the runner. False = it is gone."""
    try:
        write_all(onward, block)
    except OSError:
        return False
    return True


def _close_all_but(kept: tuple[int, ...]) -> None:
    start = 3
    for descriptor in sorted(kept):
        os.closerange(start, descriptor)
        start = descriptor + 1
    os.closerange(start, 1 << 20)


def _said(error: OSError) -> str:
    hint = "; the folder must exist before the job starts" if error.errno == errno.ENOENT else ""
    return error_text(error) + hint
