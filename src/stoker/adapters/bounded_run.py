"""Run a program within a time and an output size, although it may hang, flood or refuse to die.

A child that is forked without a program is read and ended by the same means.

A stuck driver leaves `nvidia-smi` in a sleep that not even a kill ends, so waiting for its end (as `subprocess.run`
does after a time-out) would hang whoever asked. Here the program is killed and then left alone.
"""

import contextlib
import os
import selectors
import signal
import subprocess
from collections.abc import Sequence
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


def run_bounded(argv: Sequence[str], timeout_s: float) -> ProgramOutput:
    """Run a program to its end.

    Raises: OSError when it can't be started (by its errno), doesn't end in time, or writes more than OUTPUT_MAX.
    """
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "LC_ALL": "C"},
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdout as out, process.stderr as err:
        clock = SystemClock()
        deadline = clock.mono() + timeout_s
        try:
            texts = read_to_end(timeout_s, out.fileno(), err.fileno())
            process.wait(max(0.0, deadline - clock.mono()))
        except subprocess.TimeoutExpired:
            texts = None
        finally:
            end_session(process.pid)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_LAST_WAIT_S)
    if texts is None:
        raise OSError(f"{argv[0]} didn't answer within {timeout_s:g} s")
    return ProgramOutput(texts[0].decode(errors="replace"), texts[1].decode(errors="replace"), process.returncode)


def read_to_end(timeout_s: float, *fds: int) -> list[bytearray] | None:
    """Return what comes from each until all are closed; None when time ran out first.

    Raises: OSError when it is more than OUTPUT_MAX.
    """
    clock = SystemClock()
    deadline = clock.mono() + timeout_s
    texts = {fd: bytearray() for fd in fds}
    with selectors.DefaultSelector() as selector:
        for fd in fds:
            selector.register(fd, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(max(0.0, deadline - clock.mono()))
            if not ready:
                return None
            for key, _ in ready:
                data = os.read(key.fd, _READ_BYTES)
                texts[key.fd] += data
                if not data:
                    selector.unregister(key.fd)
            if sum(map(len, texts.values())) > OUTPUT_MAX:
                raise OSError(f"more than {OUTPUT_MAX} bytes of answer")
    return list(texts.values())


def end_session(pid: int) -> None:
    """Kill a session by its first process: all of it, since a wrapper script's child may hold the pipe."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
