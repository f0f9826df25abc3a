"""An event loop in which an hour costs milliseconds and every run is the same run.

Instead of waiting for the world it moves the clock to the next timer. Threads and executors are refused: one real
thread would make a wait of microseconds cost virtual hours, silently. What belongs to a stopped process doesn't run.
"""

import asyncio
import functools
import gc
import heapq
import inspect
import math
import selectors
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from tests.rig.process import RUNNING, owned

T = TypeVar("T")
Suite = TypeVar("Suite", bound=type)


class Deadlock(RuntimeError):
    """Every task waits, and no timer is set."""


_TIMERS_MIN: Final = 100
"""As in asyncio: fewer cancelled timers than this are never swept."""
_GARBAGE_MAX: Final = 50_000
"""Objects after which Python looks for dead cycles: a world of processes is one web of them, and looking as often as
Python does took a fifth of the time."""


_TURNS_MAX: Final = 10_000
"""Turns at one moment, after which the clock moves by the least that it can: who waits for less than that, since$
its own clock is told more finely, would wait for ever. In the world whatever runs takes time."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """What asyncio's own loop does, but for waiting: the order of steps is the same."""

    _ready: "deque[asyncio.Handle]"
    _scheduled: list[asyncio.TimerHandle]
    _timer_cancelled_count: int
    _stopping: bool

    def __init__(self) -> None:
        self.now_s = self._since_s = 0.0
        self._turns = 0
        self._home = threading.get_ident()
        super().__init__(selectors.SelectSelector())
        self.set_task_factory(owned)  # type: ignore[arg-type]  # which of asyncio's kinds of factory depends on the version
        # Python rounds timers to the clock's resolution; ours is exact.
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self.now_s

    def _run_once(self) -> None:
        """One turn: whatever is ready and due now. Asked for by `run_forever`."""
        self._sweep()
        ready, timers = self._ready, self._scheduled
        self._turns = self._turns + 1 if self.now_s == self._since_s else 0
        if self._turns >= _TURNS_MAX:
            self.now_s = math.nextafter(self.now_s, math.inf)
        self._since_s = self.now_s
        if not ready and not self._stopping:
            if not timers:
                raise Deadlock("every task waits and no timer is set")
            self.now_s = max(self.now_s, timers[0].when())
        due = self.now_s + self._clock_resolution
        while timers and timers[0].when() < due:
            first: Any = heapq.heappop(timers)
            first._scheduled = False
            ready.append(first)
        for _ in range(len(ready)):
            handle: Any = ready.popleft()
            if handle._cancelled:
                continue
            process = handle._context.get(RUNNING)
            if process is not None and process.stopped:
                process.held.append(handle)
            else:
                handle._run()

    def _sweep(self) -> None:
        """Drop timers that were cancelled: those in front, and all once they are the larger part."""
        timers = self._scheduled
        if len(timers) > _TIMERS_MIN and self._timer_cancelled_count * 2 > len(timers):
            gone: list[Any] = [timer for timer in timers if timer.cancelled()]
            for timer in gone:
                timer._scheduled = False
            timers[:] = [timer for timer in timers if not timer.cancelled()]
            heapq.heapify(timers)
            self._timer_cancelled_count = 0
        while timers and timers[0].cancelled():
            first: Any = heapq.heappop(timers)
            first._scheduled = False
            self._timer_cancelled_count -= 1

    def call_soon_threadsafe(  # type: ignore[override]  # looser than the base class's
        self,
        *args: Any,  # noqa: ANN401  # whatever the base class takes
        **kwargs: Any,  # noqa: ANN401  # whatever the base class takes
    ) -> asyncio.Handle:
        if threading.get_ident() == self._home:  # asyncio itself uses it to close forgotten generators
            return self.call_soon(*args, **kwargs)
        raise RuntimeError("a thread spoke to the virtual loop: something above a port uses threads")

    def run_in_executor(  # type: ignore[override]  # it answers nothing
        self,
        *args: Any,  # noqa: ANN401  # whatever the base class takes
    ) -> Any:  # noqa: ANN401  # never
        raise RuntimeError("an executor was asked for on the virtual loop: something above a port uses threads")


def run_virtual(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run `main()` to its end in virtual time; what it left running is cancelled."""
    loop, thresholds = VirtualLoop(), gc.get_threshold()
    gc.set_threshold(_GARBAGE_MAX, 20, 20)
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(main())
    finally:
        leftover = asyncio.all_tasks(loop)
        for task in leftover:
            task.cancel()
        if leftover:
            loop.run_until_complete(asyncio.gather(*leftover, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        asyncio.set_event_loop(None)
        loop.close()
        gc.set_threshold(*thresholds)


def on_virtual_time(suite: Suite) -> Suite:
    """A class of tests, each of which runs on a virtual loop of its own, also those that it inherits."""
    for name, test in inspect.getmembers(suite, inspect.isfunction):
        if name.startswith("test_"):
            setattr(suite, name, _virtual(test))
    return suite


def _virtual(test: Callable[..., object]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*args: object, **kwargs: object) -> None:
        async def story() -> None:
            told = test(*args, **kwargs)
            if inspect.isawaitable(told):
                await told

        run_virtual(story)

    return run
