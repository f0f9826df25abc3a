"""Rules B1 to B3 of `agent/link.py`."""

from stoker.agent.link import Backoff
from tests.rig.world import SimEntropy


class Edge:
    """Dice that always show one side of the range."""

    def __init__(self, high: bool) -> None:
        self._high = high

    def uid(self) -> str:
        return ""

    def seed(self) -> int:
        return 0

    def jitter(self, low: float, high: float) -> float:
        return high if self._high else low


def test_pauses_lie_between_one_and_thirty_seconds_and_double() -> None:
    shortest, longest = Backoff(Edge(high=False)), Backoff(Edge(high=True))
    assert [shortest.next_s() for _ in range(7)] == [1, 2, 4, 8, 15, 15, 15]
    assert [longest.next_s() for _ in range(7)] == [2, 4, 8, 16, 30, 30, 30]


def test_a_connection_that_worked_makes_the_next_failure_the_first() -> None:
    backoff = Backoff(Edge(high=True))
    for _ in range(5):
        backoff.next_s()
    backoff.worked()
    assert backoff.next_s() == 2


def test_agents_that_failed_together_do_not_return_together() -> None:
    pauses = [Backoff(SimEntropy(seed)).next_s() for seed in range(1_000)]
    by_tenth = [sum(1 for pause in pauses if round((pause - 1) * 10 - 0.5) == tenth) for tenth in range(10)]
    assert all(50 < agents < 150 for agents in by_tenth), by_tenth
