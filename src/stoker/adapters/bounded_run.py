"""Run a program within a time and an output size, although it may hang, flood or refuse to die.

A child that is forked without a program is read and ended by the same means.

A stuck driver leaves `nvidia-smi` in a sleep that not even a kill ends, so waiting for its end (as `subprocess.run`
does after a time-out) would hang whoever asked. Here the program is killed and then left alone, one at a time.
"""

import contextlib
import os
import selectors
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from stoker.adapters.clock import SystemClock

OUTPUT_MAX: Final = 1024 * 1024
_READ_BYTES: Final = 64 * 1024
_LAST_WAIT_S: Final = 1.0


class ProgramOutput(NamedTuple):
    """Output of a program, undecodable bytes replaced, and its exit status (negative: the signal that ended it)."""

    out: str
    err: str
    status: int


class ProgramTimeout(OSError):
    """A program didn't end in time."""

    def __init__(self, words: str, out: str = "") -> None:
        super().__init__(words)
        self.out = out
        """What it had said until then."""


class BoundedRunner:
    """Runs programs, and none more while one that it killed hasn't ended.

    A driver that is stuck holds each program that asks it: one a look would fill the machine by and by.
    """

    def __init__(self) -> None:
        self._stuck: subprocess.Popen[bytes] | None = None

    def run(
        self, argv: Sequence[str], timeout_s: float, name: str = "", env: Mapping[str, str] | None = None
    ) -> ProgramOutput:
        """Run a program to its end. `name`: what errors call it, else the program's own. `env`: variables besides ours.

        Raises: ProgramTimeout when it doesn't end in time, or an earlier one hasn't ended yet; OSError when it can't be
        started (by its errno), or writes more than OUTPUT_MAX.
        """
        name = name or argv[0]
        if self._stuck is not None and self._stuck.poll() is None:
            words = f"{name} isn't asked: process {self._stuck.pid}, which asked before, was killed and doesn't end"
            raise ProgramTimeout(f"{words}, so the driver holds it")
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "LC_ALL": "C", **(env or {})},
            start_new_session=True,
        )
        assert process.stdout is not None
        assert process.stderr is not None
        with process.stdout as out, process.stderr as err:
            clock = SystemClock()
            deadline = clock.mono() + timeout_s
            texts = {out.fileno(): bytearray(), err.fileno(): bytearray()}
            try:
                in_time = _read(timeout_s, texts, process.pid)
                process.wait(max(0.0, deadline - clock.mono()))
            except subprocess.TimeoutExpired:
                in_time = False
            finally:
                end_session(process.pid)
                self._leave(process)
            said, complained = (text.decode(errors="replace") for text in texts.values())
        if not in_time:
            raise ProgramTimeout(f"{name} didn't answer within {timeout_s:g} s", said)
        return ProgramOutput(said, complained, process.returncode)

    def _leave(self, process: subprocess.Popen[bytes]) -> None:
        try:
            process.wait(_LAST_WAIT_S)
            self._stuck = None
        except subprocess.TimeoutExpired:
            self._stuck = process


def read_to_end(timeout_s: float, *fds: int) -> list[bytearray] | None:
    """Return what comes from each until all are closed; None when time ran out first.

    Raises: OSError when it is more than OUTPUT_MAX.
    """
    texts = {fd: bytearray() for fd in fds}
    return list(texts.values()) if _read(timeout_s, texts) else None


def _read(timeout_s: float, texts: dict[int, bytearray], pid: int = 0) -> bool:
    """Add what comes from each until all are closed; False when time ran out first. Raises: OSError.

    `pid`: a child with whose end all is said, although one of its own may keep them open.
    """
    clock = SystemClock()
    deadline = clock.mono() + timeout_s
    with selectors.DefaultSelector() as selector, _end_of(pid) as ended:
        for fd in texts:
            selector.register(fd, selectors.EVENT_READ)
        if ended is not None:
            selector.register(ended, selectors.EVENT_READ)
        has_ended = False
        while selector.get_map().keys() - {ended}:
            ready = selector.select(0.0 if has_ended else max(0.0, deadline - clock.mono()))
            if not ready:
                return has_ended
            for key, _ in ready:
                if key.fd == ended:
                    has_ended = True
                    selector.unregister(ended)
                    continue
                data = os.read(key.fd, _READ_BYTES)
                texts[key.fd] += data
                if not data:
                    selector.unregister(key.fd)
            if sum(map(len, texts.values())) > OUTPUT_MAX:
                raise OSError(f"more than {OUTPUT_MAX} bytes of answer")
    return True


@contextlib.contextmanager
def _end_of(pid: int) -> Iterator[int | None]:
    """A descriptor that can be read once this child has ended. None = 0 was given, or the kernel has none."""
    ended = None
    with contextlib.suppress(OSError):
        ended = os.pidfd_open(pid) if pid else None
    try:
        yield ended
    finally:
        if ended is not None:
            os.close(ended)


def end_session(pid: int) -> None:
    """Kill a session by its first process: all of it, since a wrapper script's child may hold the pipe."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
