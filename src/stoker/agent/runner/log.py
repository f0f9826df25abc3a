"""What does the runner say to people?"""

from __future__ import annotations

import os
from contextlib import suppress

from stoker.agent.runner import clock


def complain(text: str) -> None:
    """One line in the runner's log, unless that is on the disk which is full: then nobody hears it."""
    with suppress(OSError):
        os.write(2, f"{clock.wall_ms()} {text}\n".encode("utf-8", "replace"))
