"""Writer for the log of a control plane that doesn't run.

The log is opened under the lock that a control plane holds, read to its end, and written by the same writer: the next
start finds what was done as if it had been asked for while it ran. No epoch begins, for nothing here is active: the
facts stand under the last one that did, which the store accepts as long as nobody has begun another.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from stoker.control.committer import Committer
from stoker.control.control_ports import ControlPorts
from stoker.control.snapshots import state_of
from stoker.ports import EventLog


@asynccontextmanager
async def writing(log: EventLog, ports: ControlPorts) -> AsyncIterator[Committer]:
    """Run a writer over an open log, from entry to exit. What it acknowledged is durable.

    Raises: LogDamaged, LogFailed.
    """
    committer = Committer(await state_of(log), log, ports)
    writer = asyncio.create_task(committer.run(), name="committer")
    try:
        yield committer
    finally:
        committer.close()
        await writer
