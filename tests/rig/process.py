"""Whose turn is it? A simulated process owns tasks; a stopped one runs none of them.

Every task, timer and callback that begins inside a process belongs to it, wherever it was born: the virtual loop asks
before it runs one, and puts what belongs to a stopped process aside until that process goes on. That is SIGSTOP and
SIGCONT, at the grain of one step between two awaits: the whole process stands still, and then hears everything at once.
"""

import asyncio
from collections import deque
from collections.abc import Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any

RUNNING: "ContextVar[SimProcess | None]" = ContextVar("RUNNING", default=None)


class SimProcess:
    """One process of the simulated world."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.stopped = False
        self.dead = False
        self.held: deque[asyncio.Handle] = deque()
        """What would have run, had it not been stopped."""
        self._context: Context = copy_context()
        self._context.run(RUNNING.set, self)
        self._tasks: list[asyncio.Task[Any]] = []
        """Those that should never end by themselves."""
        self._living: dict[asyncio.Task[Any], None] = {}
        """All that haven't ended, whoever began them."""

    def start(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """A task of the process that should run for as long as it lives."""
        task = self._begin(work)
        self._tasks.append(task)
        return task

    def visit(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Something that the process does because somebody outside asked, and that ends."""
        return self._begin(work)

    def _begin(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        return asyncio.get_running_loop().create_task(work, context=self._context.copy())

    def own(self, task: "asyncio.Task[Any]") -> None:
        """The loop tells of each task that begins inside."""
        self._living[task] = None
        task.add_done_callback(self._living.pop)

    def stop(self) -> None:
        """SIGSTOP. The dead aren't stopped."""
        self.stopped = not self.dead

    def go_on(self) -> None:
        """SIGCONT."""
        self.stopped = False
        loop = asyncio.get_running_loop()
        loop._ready.extend(self.held)  # type: ignore[attr-defined]  # the queue of every event loop of CPython
        self.held.clear()

    async def kill(self) -> None:
        """SIGKILL: none of its tasks gets a step further, and none has a chance to tidy up in the world."""
        self.dead = True
        tasks = tuple(self._living)
        for task in tasks:
            task.cancel()
        self.go_on()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def ended(self) -> bool:
        """Has all that should run for as long as it lives come to an end?"""
        return bool(self._tasks) and all(task.done() for task in self._tasks)

    def crashes(self) -> list[BaseException]:
        """What ended a task that should run for ever."""
        done = [task for task in self._tasks if task.done() and not task.cancelled()]
        return [error for task in done if (error := task.exception()) is not None]


def owned(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], context: Context | None = None
) -> "asyncio.Task[Any]":
    """A task factory: whose task is it?"""
    task = asyncio.Task(work, loop=loop, context=context)
    process = context.get(RUNNING) if context is not None else RUNNING.get()
    if process is not None:
        process.own(task)
    return task


def within(process: SimProcess | None, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
    """Let a process do it; None = nobody in particular, who is never stopped."""
    return process.visit(work) if process is not None else asyncio.get_running_loop().create_task(work)
