"""What did whoever started the runner leave to it, and what of that do jobs get?"""

from __future__ import annotations

import resource
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

FILES_AT_START: Final = resource.getrlimit(resource.RLIMIT_NOFILE)
"""The runner raises its own soft limit; jobs get the one it was started with."""


def raise_file_limit() -> int:
    """To what the system allows us, which is answered. Negative = no limit."""
    hard = FILES_AT_START[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def forget_inherited_signals() -> None:
    """Whatever mask or ignored signals our starter left us, jobs shall not have them."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in signal.valid_signals():
        if number not in (signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
