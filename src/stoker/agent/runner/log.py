"""Log of the runner, for people."""

from __future__ import annotations

import os
from contextlib import suppress

from stoker.agent.runner import clock


def complain(text: str) -> None:
    """Write one line into the runner's log, unless the disk is full that it is on."""
    with suppress(OSError):
        os.write(2, f"{clock.wall_ms()} {text}\n".encode("utf-8", "replace"))
