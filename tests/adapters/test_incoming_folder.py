"""Another log beside ours: what its callers can't see. The rest is in the contract of `ReplicaLog`."""

import asyncio
import threading
from pathlib import Path

from stoker.adapters.sqlite.incoming_folder import IncomingFolder

HANGS_S = 5.0


class HangingDisk:
    """It takes the next write only when it is told to, or when that took too long."""

    def __init__(self) -> None:
        self.asked, self.may_go_on = threading.Event(), threading.Event()
        self.was_let_go = False

    def write(self, piece: bytes) -> int:
        self.asked.set()
        self.was_let_go = self.may_go_on.wait(HANGS_S)
        return len(piece)

    def close(self) -> None:
        """Nothing is open."""


async def test_a_disk_that_hangs_holds_up_nobody_but_who_drops_what_lies_there(tmp_path: Path) -> None:
    """A standby that is sent a backup answers people and peers meanwhile, and looks at the marker."""
    incoming, disk = IncomingFolder(tmp_path), HangingDisk()
    await incoming.begin()
    assert incoming._history is not None
    incoming._history.close()
    incoming._history = disk  # type: ignore[assignment]  # a stand-in
    writing = asyncio.create_task(incoming.write(b"piece"))
    await asyncio.to_thread(disk.asked.wait)
    writing.cancel()
    dropping = asyncio.create_task(incoming.drop())
    await asyncio.sleep(0)
    disk.may_go_on.set()
    await dropping
    assert disk.was_let_go
    assert list(tmp_path.iterdir()) == []
