"""`python -m stoker.agent.runner --data_dir D`: be the runner of this data folder.

Started by the agent, in a session of its own, and meant to outlive it. It exits 0 when it has nothing left to do,
2 when its arguments are wrong, 3 when another runner holds the folder, 4 when its journal is damaged, 5 when the folder
can't be used. Its only words go to standard error, which the agent points at `runner.log`.
"""

from __future__ import annotations

import fcntl
import gc
import os
import sys

from stoker.agent.runner.journal import JournalDamaged
from stoker.agent.runner.kernel import become_subreaper, forbid_new_privileges, give_back_memory
from stoker.agent.runner.launch import forget_inherited_signals, raise_file_limit
from stoker.agent.runner.loop import Loop, complain
from stoker.agent.runner.protocol import LOCK_NAME
from stoker.agent.runner.settings import parse_arguments


def main(arguments: list[str]) -> int:
    try:
        settings = parse_arguments(arguments)
    except ValueError as error:
        complain(str(error))
        return 2
    try:
        settings.keep_within(_stand_alone())
    except OSError as error:
        complain(str(error))
        return 5
    try:
        os.chdir(settings.data_dir)
        lock = _lock()
        if lock < 0:
            return 3
        loop = Loop(settings)
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


def _stand_alone() -> int:
    """Nothing of our starter's reaches jobs, and what jobs leave behind reaches us. Answers how many files we may
    open. Raises OSError."""
    os.closerange(3, 65_536)
    os.umask(0o022)
    forbid_new_privileges()  # all that is ever started here inherits it
    forget_inherited_signals()
    become_subreaper()
    return raise_file_limit()


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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
