"""Bugs planted on purpose into the real code, and the search for a history in which the rig notices one.

A bug that the rig doesn't notice says one of three things, and the search says which: what it replaces is never called
any more, so that it changes nothing; it runs and is harmless, since something else keeps the promise; or the rig hits
too seldom where it hurts.
"""

import functools
import re
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

import pytest
from _pytest.mark.structures import ParameterSet

CPU_S_MAX: Final = 60.0
"""Of one core: a planted bug that takes longer to find is as good as not found."""


class Bugs:
    """Replaces attributes as a MonkeyPatch does, and counts how often each replacement is used."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self.used: dict[str, int] = {}

    def setattr(self, where: Any, name: str, value: Any) -> None:  # noqa: ANN401  # whatever can be replaced
        """Raises: AttributeError when there is nothing of that name any more."""
        if isinstance(value, property):
            assert value.fget is not None, f"{name} can't be read"
            self._patch.setattr(where, name, property(self._counted(where, name, value.fget)))
        else:
            self._patch.setattr(where, name, self._counted(where, name, value))

    def _counted(self, where: Any, name: str, value: Callable[..., Any]) -> Callable[..., Any]:  # noqa: ANN401  # as above
        full = f"{getattr(where, '__name__', where)}.{name}"
        self.used.setdefault(full, 0)

        @functools.wraps(value)
        def counted(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  # passed on as they come
            self.used[full] += 1
            return value(*args, **kwargs)

        return counted


Plant = Callable[[Bugs], None]


def cases(found: Iterable[tuple[Any, ...]], *slow: Plant) -> list[ParameterSet]:
    """A case for each row, which begins with its bug. `slow`: those that take longer than some 8 s to find."""
    return [pytest.param(row, id=row[0].__name__, marks=[pytest.mark.heavy] if row[0] in slow else []) for row in found]


def must_be_noticed(plant: Plant, promise: str, histories: Iterable[Callable[[], object]]) -> None:
    """One of these histories must break this promise, a pattern, within `CPU_S_MAX`."""
    with pytest.MonkeyPatch.context() as patch:
        bugs = Bugs(patch)
        plant(bugs)
        began, tried, others = time.process_time(), 0, dict[str, None]()
        for history in histories:
            if time.process_time() - began > CPU_S_MAX:
                break
            tried += 1
            try:
                history()
            except AssertionError as fault:
                if re.search(promise, str(fault)):
                    return
                others[str(fault).splitlines()[0]] = None
    name = getattr(plant, "__name__", str(plant))
    unused = [what for what, times in bugs.used.items() if not times]
    if unused:
        why = f"what it replaces is never called: {', '.join(unused)}. The product has moved on: plant it where it went"
    else:
        why = f"it ran ({bugs.used}), so another defence keeps the promise, or the rig hits too seldom where it hurts"
    seen = f"; other promises broke: {list(others)[:3]}" if others else ""
    raise AssertionError(f"{tried} histories didn't notice {name}: {why}{seen}")
