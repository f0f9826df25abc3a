"""Attempt leases: how long a task may run while no control plane answers.

An attempt lease is counted from the moment at which the newest beat was sent that an active control plane answered; the
agent says when that was, in boot time. The control plane counts from the receipt of the same beat, or later, and adds
what clocks may drift and a kill may take: so whatever runs here is dead before its successor begins.

The time of that beat is kept in memory only: a runner that starts anew ends all that an earlier one left, whatever its
lease. Of a runner that has never been told of any, every lease is over.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

NEVER: Final = float("inf")


class Leases:
    """Leases of the open tasks that have one."""

    def __init__(self) -> None:
        self._answered_s = 0.0
        self._lease_s: dict[str, float] = {}
        self._with: dict[float, int] = {}
        # Length of a lease -> number of tasks that have one so long.

    def answered(self, at_s: float, now_s: float) -> None:
        """Note that a beat sent at `at_s` was answered, in boot time. Older news, and the future, change nothing."""
        self._answered_s = max(self._answered_s, min(at_s, now_s))

    def add(self, key: str, lease_ms: int) -> None:
        """Give a task a lease; 0 = it has none."""
        if lease_ms > 0:
            lease_s = self._lease_s[key] = lease_ms / 1000
            self._with[lease_s] = self._with.get(lease_s, 0) + 1

    def drop(self, key: str) -> None:
        """Forget the lease of a task that has ended."""
        lease_s = self._lease_s.pop(key, NEVER)
        if lease_s != NEVER:
            self._with[lease_s] -= 1
            if not self._with[lease_s]:
                del self._with[lease_s]

    @property
    def due_s(self) -> float:
        """Boot time at which the first of them is over. NEVER = none will be."""
        return self._answered_s + min(self._with, default=NEVER)

    def over(self, now_s: float) -> list[tuple[str, str]]:
        """Return the tasks whose lease is over, each once, with the reason in words."""
        if now_s <= self.due_s:
            return []
        gone = [(key, lease_s) for key, lease_s in self._lease_s.items() if now_s > self._answered_s + lease_s]
        for key, _ in gone:
            self.drop(key)
        return [(key, _words(lease_s)) for key, lease_s in gone]


def _words(lease_s: float) -> str:
    return f"no active control plane has answered this node for {lease_s:g} s: the attempt's lease is over"
