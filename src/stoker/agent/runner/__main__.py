"""Program `python -m stoker.agent.runner --data_dir D`: the runner of a data folder, and its guard.

Started by the agent, in a session of its own, and meant to outlive it. It exits 0 when it has nothing left to do,
2 when its arguments are wrong, 3 when another runner holds the folder, 4 when its journal is damaged, 5 when the folder
can't be used. Its only words go to standard error, which the agent points at `runner.log`.
"""

from __future__ import annotations

import os
import sys

from stoker.agent.runner.guard import guarded
from stoker.agent.runner.log import complain
from stoker.agent.runner.process import kernel
from stoker.agent.runner.process.procfs import threads_of
from stoker.agent.runner.settings import parse_arguments


def main(arguments: list[str]) -> int:
    """Run with these command line arguments, and return the exit status."""
    try:
        settings = parse_arguments(arguments)
    except ValueError as error:
        complain(str(error))
        return 2
    try:
        files_max, processes_max = _stand_alone()
        settings.keep_within(files_max, processes_max, threads_of(os.getuid()) if processes_max >= 0 else 0)
    except OSError as error:
        complain(str(error))
        return 5
    guard = guarded(settings.data_dir)
    # Not before: the guard, which stays behind in that call, shall hold nothing of it in memory.
    from stoker.agent.runner.loop import serve

    return serve(settings, guard)


def _stand_alone() -> tuple[int, int]:
    """Let nothing of our starter's reach jobs, and what jobs leave behind reach us. Raises OSError.

    Returns how many files this process may open, and how many processes its account may have.
    """
    os.closerange(3, 65_536)
    os.umask(0o022)
    kernel.forbid_new_privileges()  # all that is ever started here inherits it
    kernel.forget_inherited_signals()
    kernel.become_subreaper()
    return kernel.raise_limits()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
