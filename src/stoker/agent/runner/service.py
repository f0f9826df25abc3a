"""The runner proper: behind its guard, holder of its data folder, until there is nothing left to do.

Apart from `__main__`, so that the guard, which stays there, holds none of this in memory.
"""

from __future__ import annotations

import fcntl
import gc
import os

from stoker.agent.runner.journal import JournalDamaged
from stoker.agent.runner.log import complain
from stoker.agent.runner.loop import RunnerLoop
from stoker.agent.runner.process.kernel import give_back_memory
from stoker.agent.runner.protocol import LOCK_NAME

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stoker.agent.runner.guard import Guard
    from stoker.agent.runner.settings import RunnerSettings


def serve(settings: RunnerSettings, guard: Guard | None) -> int:
    """Answers the exit status."""
    try:
        os.chdir(settings.data_dir)
        lock = _lock()
        if lock < 0:
            return 3
        if guard is not None:
            guard.succeed()
        loop = RunnerLoop(settings, guard)
    except JournalDamaged as error:
        complain(str(error))
        return 4
    except OSError as error:
        complain(f"the data folder {settings.data_dir} can't be used: {error}")
        return 5
    # Forked children must not copy pages only because the collector looked at them.
    gc.collect()
    gc.freeze()
    give_back_memory()
    loop.run()
    return 0


def _lock() -> int:
    """Held until this process ends, however it ends. -1 = another runner holds it."""
    lock = os.open(LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(lock, 32).decode("ascii", "replace").strip()
        complain(f"another runner, process {holder}, holds {os.getcwd()}")
        os.close(lock)
        return -1
    os.ftruncate(lock, 0)
    os.write(lock, f"{os.getpid()}\n".encode())
    return lock
