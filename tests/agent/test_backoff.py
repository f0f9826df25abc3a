"""Rules B1 to B5 of `agent/backoff.py`."""

from stoker.agent.backoff import QUICK_S, SOON_S, Backoff
from tests.rig.sim_ports import SimEntropy


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


def test_a_run_after_something_that_worked_begins_with_short_pauses_and_one_from_the_start_does_not() -> None:
    backoff = Backoff(Edge(high=True), quick=QUICK_S)
    assert backoff.next_s() == 2
    backoff.worked()
    assert [backoff.next_s() for _ in range(7)] == [0.5, 1, 1, 1, 2, 4, 8]


def test_an_answer_makes_the_next_pause_the_first_and_not_a_quick_one() -> None:
    backoff = Backoff(Edge(high=True), quick=QUICK_S)
    for _ in range(5):
        backoff.next_s()
    backoff.answered()
    assert [backoff.next_s() for _ in range(3)] == [2, 4, 8]


def test_while_somebody_may_be_about_to_become_active_pauses_stop_growing() -> None:
    backoff = Backoff(Edge(high=True))
    assert [backoff.next_s() for _ in range(4)] == [2, 4, 8, 16]
    assert [backoff.next_s(SOON_S) for _ in range(3)] == [2, 2, 2]
    assert backoff.next_s() == 30


def test_two_hundred_agents_that_lost_one_control_plane_are_no_stampede() -> None:
    """Against the clock: when each of them tries, until the usual pauses begin."""
    tries = []
    for seed in range(200):
        backoff, at_s = Backoff(SimEntropy(seed), quick=QUICK_S), 0.0
        backoff.worked()
        for _ in range(len(QUICK_S) + 1):
            at_s += backoff.next_s()
            tries.append(at_s)
    busiest = max(sum(1 for at in tries if tenth <= at * 10 < tenth + 1) for tenth in range(60))
    assert busiest <= 75, "in a tenth of a second"


def test_two_thousand_agents_of_a_pair_that_is_down_try_no_more_often_than_each_once_a_second() -> None:
    tries = []
    for seed in range(2_000):
        backoff, at_s = Backoff(SimEntropy(seed)), 0.0
        while at_s < 60:
            at_s += backoff.next_s(SOON_S)
            tries.append(at_s)
    by_second = [sum(1 for at in tries if second <= at < second + 1) for second in range(10, 60)]
    assert max(by_second) <= 1_500, "spread evenly: 2,000 in one and a half seconds"


def test_agents_that_failed_together_do_not_return_together() -> None:
    pauses = [Backoff(SimEntropy(seed)).next_s() for seed in range(1_000)]
    by_tenth = [sum(1 for pause in pauses if round((pause - 1) * 10 - 0.5) == tenth) for tenth in range(10)]
    assert all(50 < agents < 150 for agents in by_tenth), by_tenth
