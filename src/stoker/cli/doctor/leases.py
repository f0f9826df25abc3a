"""Do tasks of this node surely end with their attempt lease? Else its silence never starts them elsewhere."""

import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from stoker.agent.runner.guard import PROCESS_NAME
from stoker.agent.runner.protocol import LOCK_NAME
from stoker.cli.doctor.finding import CheckResult, doubtful, fine


def leases(data_dir: Path) -> Iterator[CheckResult]:
    runner = running(data_dir)
    if runner and parent_name(runner) != PROCESS_NAME:
        what = f"the runner, process {runner}, has no guard: if it were killed its tasks would run on, so the silence "
        fix = (
            "drain the node and let its jobs end: a runner without a guard leaves when it is idle, and the next has one"
        )
        yield doubtful(f"{what}of this node never starts its jobs elsewhere", fix)
    elif runner:
        yield fine(
            f"the runner, process {runner}, has its guard: tasks end with their attempt lease, whoever is killed"
        )
    elif can_watch():
        yield fine("a runner started here has a guard: tasks end with their attempt lease, whoever is killed")
    else:
        what = "a runner can have no guard on this kernel, so the silence of this node never starts its jobs elsewhere"
        yield doubtful(what, "Linux 5.3 or newer is needed, and a container must allow pidfd_open")


def running(data_dir: Path) -> int:
    """The runner that serves this folder now. 0 = none, or it can't be told."""
    with suppress(OSError, ValueError):
        runner = int((data_dir / LOCK_NAME).read_text())
        if b"stoker.agent.runner" in Path(f"/proc/{runner}/cmdline").read_bytes().split(b"\0"):
            return runner
    return 0


def parent_name(pid: int) -> str:
    """Of a process. Empty = it is gone."""
    with suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return Path(f"/proc/{fields[1]}/comm").read_text().strip()
    return ""


def can_watch() -> bool:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as fault:
        return fault.errno not in (errno.ENOSYS, errno.EPERM)
    return True
