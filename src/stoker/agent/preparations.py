"""Preparations of tasks: what is done for them on this node before the runner gets them, such as the pull of an image.

Each runs beside everything else, and says how far it is with the heartbeats.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from stoker.brain.domain.instruction import TaskKey
from stoker.brain.domain.report import Preparation
from stoker.brain.domain.units import Mono
from stoker.ports import Clock

SAID_EVERY_S: Final = 1.0
"""News of a pull come by the hundred; people read one a second."""
TOLD_MAX: Final = 1_000
"""Of one heartbeat."""


class Preparations:
    """The preparations of one agent."""

    def __init__(self, clock: Clock, say: Callable[[], None]) -> None:
        """`say` sends a heartbeat."""
        self._clock = clock
        self._say = say
        self._tasks: dict[TaskKey, asyncio.Task[None]] = {}
        self._texts: dict[TaskKey, str] = {}
        self._said_at = Mono(0.0)
        self._ending: dict[asyncio.Task[None], None] = {}
        # Those that were begun and haven't returned: a task that nobody holds may vanish.

    def begin(self, key: TaskKey, preparation: Coroutine[Any, Any, None]) -> None:
        """Run the preparation of a task."""
        task = self._tasks[key] = asyncio.create_task(preparation, name=f"prepare {key.job}.{key.attempt}.{key.rank}")
        self._ending[task] = None
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._ending[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error  # into the loop's own handler, as nobody awaits it

    def teller(self, key: TaskKey) -> Callable[[str], None]:
        """Return what a preparation says its news with."""

        def tell(text: str) -> None:
            if key not in self._tasks:
                return
            is_first = key not in self._texts
            self._texts[key] = text
            if is_first or self._clock.mono() >= self._said_at + SAID_EVERY_S:
                self._said_at = self._clock.mono()
                self._say()

        return tell

    def has(self, key: TaskKey) -> bool:
        """Return whether a task is being prepared."""
        return key in self._tasks

    def over(self, key: TaskKey) -> None:
        """Note that a preparation is over, and its task the runner's or at its end."""
        self._tasks.pop(key, None)
        self._texts.pop(key, None)

    def cancel(self, key: TaskKey) -> bool:
        """Give up the preparation of a task; False = it has none."""
        task = self._tasks.get(key)
        if task is None:
            return False
        self.over(key)
        task.cancel()
        return True

    def give_up(self) -> list[TaskKey]:
        """Give up all of them, and return their tasks."""
        keys = list(self._tasks)
        for key in keys:
            self.cancel(key)
        return keys

    def told(self) -> tuple[Preparation, ...]:
        """Return what to say of them in a heartbeat."""
        texts = list(self._texts.items())[:TOLD_MAX]
        return tuple(Preparation(key=key, text=text) for key, text in texts)
