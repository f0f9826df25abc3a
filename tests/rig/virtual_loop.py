"""An event loop in which an hour costs milliseconds and every run is the same run.

Instead of waiting for the world it moves the clock to the next timer. Threads and executors are refused: one real
thread would make a wait of microseconds cost virtual hours, silently.
"""

import asyncio
import functools
import inspect
import selectors
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
Suite = TypeVar("Suite", bound=type)


class Deadlock(RuntimeError):
    """Every task waits, and no timer is set."""


class _NoWaiting(selectors.SelectSelector):
    loop: "VirtualLoop"

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Deadlock("every task waits and no timer is set")
        self.loop.now_s += max(timeout, 0.0)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        selector = _NoWaiting()
        self.now_s = 0.0
        self._home = threading.get_ident()
        super().__init__(selector)
        selector.loop = self
        # Python rounds timers to the clock's resolution; ours is exact.
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self.now_s

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
    loop = VirtualLoop()
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
