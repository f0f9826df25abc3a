"""When a lease is over (`runner/leases.py`), and how patient the guard is (G2 and G3 of `runner/guard.py`)."""

from hypothesis import given
from hypothesis import strategies as st

from stoker.agent.runner import guard
from stoker.agent.runner.guard import STUCK_S, Patience
from stoker.agent.runner.task import NEVER, Leases


def over(leases: Leases, now_s: float) -> list[str]:
    return [key for key, _ in leases.over(now_s)]


def test_a_lease_counts_from_the_newest_beat_that_was_answered() -> None:
    leases = Leases()
    leases.answered(100.0, now_s=101.0)
    leases.add("1.1.0", 2_000)
    assert leases.due_s == 102.0
    leases.answered(101.5, now_s=101.6)
    leases.answered(99.0, now_s=101.7)  # older news
    assert leases.due_s == 103.5
    assert over(leases, 103.5) == []
    assert over(leases, 103.6) == ["1.1.0"]
    assert over(leases, 200.0) == [], "it is named once"
    assert leases.due_s == NEVER


def test_nobody_beats_in_the_future() -> None:
    leases = Leases()
    leases.answered(1e9, now_s=100.0)
    leases.add("1.1.0", 2_000)
    assert over(leases, 102.1) == ["1.1.0"]


def test_a_task_without_a_lease_is_never_over() -> None:
    leases = Leases()
    leases.add("1.1.0", 0)
    assert leases.due_s == NEVER
    assert over(leases, 1e9) == []


def test_of_a_runner_that_was_never_told_of_an_answer_every_lease_is_over() -> None:
    leases = Leases()
    leases.add("1.1.0", 600_000)
    assert over(leases, 5_000.0) == ["1.1.0"]


def test_the_shortest_lease_is_due_first_and_an_ended_task_is_due_no_more() -> None:
    leases = Leases()
    leases.answered(10.0, now_s=10.0)
    for key, lease_ms in (("1.1.0", 9_000), ("2.1.0", 3_000), ("3.1.0", 3_000)):
        leases.add(key, lease_ms)
    assert leases.due_s == 13.0
    leases.drop("2.1.0")
    assert leases.due_s == 13.0
    leases.drop("3.1.0")
    leases.drop("3.1.0")
    assert leases.due_s == 19.0


@given(st.lists(st.tuples(st.sampled_from(["add", "drop", "answer", "look"]), st.integers(1, 5)), max_size=60))
def test_due_is_when_the_first_of_them_is_over(story: list[tuple[str, int]]) -> None:
    leases, held, answered_s, now_s = Leases(), dict[str, float](), 0.0, 0.0
    for word, number in story:
        now_s += 0.25
        key = str(number)
        if word == "add" and key not in held:
            leases.add(key, number * 1_000)
            held[key] = float(number)
        elif word == "drop":
            leases.drop(key)
            held.pop(key, None)
        elif word == "answer":
            answered_s = max(answered_s, now_s - number / 10)
            leases.answered(now_s - number / 10, now_s)
        else:
            gone = [key for key, lease_s in held.items() if now_s > answered_s + lease_s]
            assert sorted(over(leases, now_s)) == sorted(gone)
            for each in gone:
                del held[each]
        assert leases.due_s == answered_s + min(held.values(), default=NEVER)


def test_a_runner_that_lets_a_lease_pass_is_given_its_time_and_no_more() -> None:
    patience = Patience()
    assert not patience.is_over(50.0, 49.9, 10.0)
    assert not patience.is_over(50.0, 50.1, 10.2)
    assert not patience.is_over(50.0, 52.9, 10.1 + STUCK_S)
    assert patience.is_over(50.0, 53.3, 10.3 + STUCK_S)


def test_a_runner_that_acts_on_it_is_left_alone() -> None:
    patience = Patience()
    assert not patience.is_over(50.0, 50.1, 10.0)
    assert not patience.is_over(60.0, 58.0, 18.0), "another beat was answered, or that task has ended"
    assert not patience.is_over(60.0, 60.1, 20.1)
    assert not patience.is_over(guard.NEVER, 99.0, 59.0)


def test_after_a_suspend_a_runner_is_given_the_same_time() -> None:
    """An hour went by on the boot clock, and nobody was awake in it."""
    patience = Patience()
    assert not patience.is_over(50.0, 49.0, 10.0)
    assert not patience.is_over(50.0, 3_649.0, 10.1)
    assert patience.is_over(50.0, 3_653.0, 10.2 + STUCK_S)
