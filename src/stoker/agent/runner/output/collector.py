"""What comes of what a task writes to its output?

The runner reads it from the task's pipe and keeps it in the task's spool; a copier between the two, if there is one,
writes it to a file of the task's user as well (`copies`).
"""

from __future__ import annotations

import os
from contextlib import suppress

from stoker.agent.runner.output import spool

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Final

    from stoker.agent.runner.output.retention import OutputRetention
    from stoker.agent.runner.task import RunnerTask

_BYTES_PER_TURN: Final = 128 * 1024
"""Read of one task's output before others have their turn."""
_DRAIN_BYTES_MAX: Final = 16 * 1024 * 1024
"""Read after a tree is gone: what the pipe held. A stranger who holds it can't keep us longer."""
_READ_BYTES: Final = 64 * 1024


class Outputs:
    """Of all tasks."""

    def __init__(self, output_retention: OutputRetention, unwatch: Callable[[int], None]) -> None:
        """`unwatch` tells the loop which descriptor is about to be closed."""
        self._output_retention = output_retention
        self._unwatch = unwatch

    def take(self, task: RunnerTask) -> None:
        """Its pipe is readable."""
        self._take(task, _BYTES_PER_TURN)

    def drain(self, task: RunnerTask) -> None:
        """Its tree is gone: take what the pipe still holds."""
        if task.output >= 0:
            self._take(task, _DRAIN_BYTES_MAX)
        if task.output >= 0:
            self._close(task)

    def seal(self, task: RunnerTask) -> None:
        """Whoever reads its spool needn't wait for more."""
        with suppress(OSError):  # a reader goes on waiting for more until it asks for the task's state
            if task.spool is not None:
                task.spool.close()
            else:
                spool.seal(self._output_retention.output(task.key))

    def _take(self, task: RunnerTask, limit: int) -> None:
        assert task.spool is not None, f"output without a spool: {task.key}"
        while limit > 0 and task.output >= 0:
            try:
                received = os.read(task.output, _READ_BYTES)
            except BlockingIOError:
                return
            if not received:
                self._close(task)
                return
            task.spool.write(received)
            limit -= len(received)

    def _close(self, task: RunnerTask) -> None:
        self._unwatch(task.output)
        os.close(task.output)
        task.output = -1
