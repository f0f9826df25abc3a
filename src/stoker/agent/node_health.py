"""Health of this machine as a node: the site's own check, and the disk of the data folder.

Rules: K1  a check that ends with status 0 finds nothing; one that ends otherwise, can't be run or takes too long is a
           fault of the node, in the last line that it wrote, until a later one finds nothing
       K2  a data folder with less than `disk_min_mb` left, or a twentieth of a smaller disk, is a fault of the node
           until a quarter more is left
       K3  neither holds up anything else: a check runs in a thread, one at a time, and is killed when its time is over,
           with all that it has started, also in sessions of their own
       K4  what a person drained stays drained: a fault, and its end, are the node's own
"""

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, NamedTuple

from stoker.brain.domain.health import REASON_MAX
from stoker.ports import Clock

DISK_EVERY_S: Final = 30.0
_MIB: Final = 1 << 20

Check = Callable[[], Awaitable[tuple[int, str]]]
"""Runs the site's check; returns its exit status and what it wrote. Raises: OSError, in words for people."""


class NodeChecks(NamedTuple):
    """Checks of a node that its agent makes by itself."""

    data_dir: Path
    disk_min_mb: int = 0
    """0 = its disk isn't watched."""
    check: Check | None = None
    """None = the site has none."""
    check_every_s: float = 60.0


class NodeHealth:
    """Watch over one node."""

    def __init__(self, checks: NodeChecks, clock: Clock, changed: Callable[[str], None]) -> None:
        """`changed` is told what is wrong, empty = nothing, whenever that changes."""
        self._checks = checks
        self._clock = clock
        self._changed = changed
        self._faults = {"disk": "", "check": ""}
        self._told = ""

    async def watch_disk(self) -> None:
        """Look at the disk again and again, until cancelled (K2)."""
        while self._checks.disk_min_mb:
            self._take("disk", self._disk_fault(self._faults["disk"]))
            await self._clock.sleep(DISK_EVERY_S)

    async def run_check(self) -> None:
        """Run the site's check again and again, until cancelled (K1)."""
        while self._checks.check is not None:
            self._take("check", await _found(self._checks.check))
            await self._clock.sleep(self._checks.check_every_s)

    def _disk_fault(self, before: str) -> str:
        try:
            seen = os.statvfs(self._checks.data_dir)
        except OSError:
            return before
        left, size = (blocks * seen.f_frsize // _MIB for blocks in (seen.f_bavail, seen.f_blocks))
        least = min(self._checks.disk_min_mb, size // 20)
        if left < least or (before and left < least * 5 // 4):
            return before or f"its data folder has {left} MiB left, and is to have {least}"
        return ""

    def _take(self, which: str, fault: str) -> None:
        self._faults[which] = fault
        said = "; ".join(filter(None, self._faults.values()))
        if said != self._told:
            self._told = said
            self._changed(said)


async def _found(check: Check) -> str:
    """What a check finds, in words; empty = nothing."""
    try:
        status, wrote = await check()
    except OSError as fault:
        return f"health.check: {fault}"[:REASON_MAX]
    if status == 0:
        return ""
    lines = [line.strip() for line in wrote.splitlines() if line.strip()]
    ended = f"signal {-status}" if status < 0 else f"exit {status}"
    return f"health.check ({ended}): {lines[-1] if lines else 'it wrote nothing'}"[:REASON_MAX]
