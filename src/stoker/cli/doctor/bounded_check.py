"""Runner of checks that may hang, each with a time limit.

In a child process of its own. A folder on a dead network file system holds whoever touches it inside the kernel, where
no alarm and no thread can end it; a child can be left behind.

Rules: H1  no check takes longer than its bound, whatever it does
       H2  a check that hangs, breaks or is killed is a finding like any other, and the others go on
       H3  what a check printed by itself is dropped: only findings are heard
"""

import os
import signal
import sys
from contextlib import suppress
from typing import Final, NoReturn

import msgspec

from stoker.adapters.bounded_run import end_session, read_to_end
from stoker.cli.doctor.finding import Check, Finding, named, wrong

_BROKE: Final = 1


def run_check(check: Check) -> list[Finding]:
    """Return the results of a check, or that it did not end in time."""
    inner, outer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(inner)
        _answer(check, outer)
    os.close(outer)
    try:
        answer = read_to_end(check.seconds, inner)
    except OSError as fault:
        answer = [bytearray(repr(fault).encode())]
    finally:
        os.close(inner)
        end_session(pid)
        with suppress(ChildProcessError):
            os.kill(pid, signal.SIGKILL)  # it may not have begun its session yet
            os.waitpid(pid, os.WNOHANG)  # one that the kernel holds stays; its end is nobody's business any more
    if answer is None:
        fix = "see whether a file system, a driver or a server that it asks hangs; the other checks went on without it"
        return named(check.name, [wrong(f"no answer within {check.seconds:g} s", fix)])
    try:
        return msgspec.json.decode(answer[0], type=list[Finding])
    except msgspec.DecodeError:
        words = answer[0].decode(errors="replace").strip() or "it was killed"
        return named(check.name, [wrong(f"the check itself broke: {words}", "report this: it is a defect of Stoker")])


def _answer(check: Check, fd: int) -> NoReturn:
    """In the child: look, tell, and end without anything that belongs to the parent being flushed or closed."""
    text = b""
    try:
        os.setsid()  # so that what the check started can be ended with it
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        _silence()
        text = msgspec.json.encode(named(check.name, check.look()))
    finally:
        broke = sys.exc_info()[1]
        if broke is not None:
            text = repr(broke).encode(errors="backslashreplace")
        with suppress(OSError), open(fd, "wb") as pipe:
            pipe.write(text)
        os._exit(_BROKE if broke is not None else 0)


def _silence() -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nowhere, fd)
