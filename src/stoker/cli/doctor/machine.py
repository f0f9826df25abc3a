"""Checks of this machine and its Python: clock, open files, assertions; names of its processes and accounts.

Source: adjtimex(2) for the clock's state; getrlimit(2).
"""

import ctypes
import os
import pwd
import resource
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from stoker.cli.clock import now_ms
from stoker.cli.doctor.finding import Check, CheckResult, doubtful, fine, wrong

PYTHON_MIN: Final = (3, 11)
WRITTEN_MS: Final = 1_750_000_000_000
"""June 2025: no clock that is right shows an earlier time."""
FILES_WANTED: Final = {"control": 4_096, "agent": 1_024}
"""Open files: each agent, client and follower of a control plane is one; an agent has a few for each of its tasks."""
FILES_MIN: Final = 256
WORDS_MAX: Final = 80
"""Characters of a command that a finding shows."""
_TIME_ERROR: Final = 5
_MS_PER_DAY: Final = 86_400_000


class _Timex(ctypes.Structure):
    """`struct timex`, as far as it is read, with room for the rest."""

    _fields_ = (("modes", ctypes.c_uint), ("rest", ctypes.c_long * 64))


def checks(kind: str) -> list[Check]:
    return [
        Check("python", python),
        Check("clock", lambda: clock(clock_state(), now_ms())),
        Check("open_files", lambda: open_files(kind, resource.getrlimit(resource.RLIMIT_NOFILE))),
    ]


def python() -> Iterator[CheckResult]:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] < PYTHON_MIN:
        yield wrong(f"Python {version} is too old", f"install Stoker under Python {'.'.join(map(str, PYTHON_MIN))}")
    elif not __debug__:
        fix = "start Stoker without -O and without PYTHONOPTIMIZE"
        yield wrong("Python runs with -O, which removes the checks that guard the ledger", fix)
    else:
        yield fine(f"Python {version}, assertions on")


def clock_state() -> int | None:
    """Return the state that adjtimex reports; None where it can't be asked."""
    try:
        asked = _Timex()
        state: int = ctypes.CDLL(None).adjtimex(ctypes.byref(asked))
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state


def clock(state: int | None, now: int) -> Iterator[CheckResult]:
    """`state` as of `clock_state`, `now` in milliseconds since 1970."""
    fix = "run chrony, ntpd or systemd-timesyncd; `timedatectl` shows whether it has taken hold"
    if now < WRITTEN_MS:
        yield wrong(f"the clock stands {(WRITTEN_MS - now) // _MS_PER_DAY} days before Stoker was written", fix)
    elif state == _TIME_ERROR:
        words = "nothing keeps the clock right: times that people read may differ from one machine to the next"
        yield doubtful(words, fix)
    elif state is None:
        yield fine("the clock stands after 2025; whether something keeps it right can't be asked here")
    else:
        yield fine("the kernel says that the clock is synchronised")


def open_files(kind: str, limits: tuple[int, int]) -> Iterator[CheckResult]:
    """`limits`: soft and hard."""
    soft, hard = limits
    wanted = FILES_WANTED[kind]
    fix = f"raise it: `LimitNOFILE=65536` in the unit, or `ulimit -n {wanted}` before the start"
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        yield fine(f"{'unlimited' if soft == resource.RLIM_INFINITY else soft} open files are allowed")
    elif soft < FILES_MIN:
        yield wrong(f"only {soft} open files are allowed, {FILES_MIN} are the least to work with", fix)
    else:
        most = "" if hard in (soft, resource.RLIM_INFINITY) else f" ({hard} can be asked for)"
        yield doubtful(f"{soft} open files are allowed{most}; {wanted} are wanted here", fix)


def account(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def words_of(pid: int, proc: Path = Path("/proc")) -> str:
    """Return a process's command without the values of its options, where a secret may be."""
    try:
        words = (proc / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return "of another account"
    shown = " ".join(word for word in words[:4] if word and "=" not in word)
    return shown[:WORDS_MAX] or "a kernel thread"


def holder_of(inode: str, proc: Path = Path("/proc")) -> int:
    """The process that has the socket with that inode open; 0 = none that we may look into."""
    wanted = f"socket:[{inode}]"
    for entry in proc.iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):
            for fd in (entry / "fd").iterdir():
                with suppress(OSError):
                    if os.readlink(fd) == wanted:
                        return int(entry.name)
    return 0
