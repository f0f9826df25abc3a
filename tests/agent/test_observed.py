"""Rules O1 to O5 of `agent/observed.py`."""

from hypothesis import given
from hypothesis import strategies as st

from stoker.agent import observed as module
from stoker.agent.observed import Observed
from stoker.agent.ports import RunnerInventory, TaskEnding, TaskOver, TaskRunning
from stoker.brain.domain.ids import NodeName
from stoker.brain.domain.job import EndCause, TaskEnd
from stoker.brain.domain.report import TaskFinished, TaskPhase, TaskStatus, sum_of
from stoker.brain.domain.units import Instant
from stoker.wire import agent_codec as codec
from tests.agent.twins import exited, gpu, key, start


def over(job: int) -> TaskOver:
    return TaskOver(key=key(job), end=exited())


def test_a_runners_inventory_replaces_what_was_known() -> None:
    seen = Observed()
    seen.starting(start(key(1), gpus=[0]))
    seen.inventory(RunnerInventory(tasks=(TaskStatus(key=key(2), phase=TaskPhase.RUNNING),), ends=()))
    assert list(seen.open) == [key(2)]
    assert seen.holders([gpu(0)]) == {}


def test_an_end_of_ours_survives_a_new_runner() -> None:
    """A start that was refused here is in no runner's record."""
    seen = Observed()
    seen.refused(TaskOver(key=key(1), end=TaskEnd(cause=EndCause.START_FAILED, at=Instant(1))))
    seen.inventory(RunnerInventory(tasks=(), ends=()))
    assert list(seen.offered) == [key(1)]
    assert seen.settled(key(1)) is False
    seen.inventory(RunnerInventory(tasks=(), ends=()))
    assert seen.offered == {}


def test_a_start_is_in_the_inventory_before_the_runner_knows_it() -> None:
    seen = Observed()
    seen.starting(start(key(1), gpus=[3]))
    (status,) = seen.task_inventory("boot").tasks
    assert (status.key, status.phase, status.gpus) == (key(1), TaskPhase.STARTING, (gpu(3),))


def test_a_beat_sums_up_the_tasks_that_may_have_processes_here_whatever_their_order() -> None:
    seen, other = Observed(), Observed()
    for job in (1, 2, 3):
        seen.starting(start(key(job), gpus=[job]))
    seen.over(over(2))
    for job in (3, 1):
        other.starting(start(key(job), gpus=[job]))
    assert seen.beat().tasks_sum == other.beat().tasks_sum == sum_of([key(1), key(3)])
    assert len({sum_of(tasks) for tasks in ([], [key(1)], [key(3)], [key(1), key(3)])}) == 4


def test_an_end_that_has_arrived_is_only_named_in_the_inventory() -> None:
    """A ledger that lacks it, restored from a backup, asks for it; one that has it isn't sent it again."""
    seen = Observed()
    seen.over(over(1))
    assert [status.phase for status in seen.task_inventory("boot").tasks] == [TaskPhase.ENDED]
    assert seen.settled(key(1)) is True
    inventory = seen.task_inventory("boot")
    assert (inventory.tasks, inventory.kept) == ((), (key(1),))
    assert seen.knows(key(1))
    assert not seen.reoffer(key(1)), "its runner has the end"
    seen.over(over(1))
    inventory = seen.task_inventory("boot")
    assert ([status.phase for status in inventory.tasks], inventory.kept) == ([TaskPhase.ENDED], ())


def test_an_end_of_ours_that_has_arrived_is_offered_again_without_the_runner() -> None:
    seen = Observed()
    seen.refused(over(1))
    assert seen.settled(key(1)) is False
    assert seen.reoffer(key(1))
    assert list(seen.offered) == [key(1)]
    assert seen.settled(key(1)) is False, "and it is still ours"
    assert seen.task_inventory("boot").kept == (key(1),)


def test_ends_that_arrived_in_an_earlier_agents_life_are_named_the_oldest_first() -> None:
    seen = Observed()
    ended = tuple(TaskStatus(key=key(job), phase=TaskPhase.ENDED) for job in (3, 1, 2))
    seen.inventory(RunnerInventory(tasks=ended, ends=(over(2),)))
    assert seen.task_inventory("boot").kept == (key(3), key(1))
    assert list(seen.offered) == [key(2)]


def test_a_phase_never_goes_back() -> None:
    seen = Observed()
    seen.starting(start(key(1)))
    seen.advanced(TaskEnding(key=key(1)))
    seen.advanced(TaskRunning(key=key(1), pid=5, at=Instant(9)))
    assert seen.open[key(1)].phase is TaskPhase.ENDING


def test_a_late_word_about_an_ended_task_does_not_open_it_again() -> None:
    seen = Observed()
    seen.over(over(1))
    seen.advanced(TaskRunning(key=key(1), pid=5, at=Instant(9)))
    assert seen.open == {}


def test_memory_of_settled_ends_is_bounded_and_drops_the_oldest() -> None:
    seen = Observed()
    for job in range(1, module.SETTLED_MAX + 2):
        seen.over(over(job))
        seen.settled(key(job))
    assert not seen.knows(key(1))
    assert seen.knows(key(2))


def test_an_inventory_that_names_ten_thousand_kept_ends_is_small() -> None:
    """It is sent on every stream."""
    seen = Observed()
    for job in range(1_000_001, 1_000_001 + module.SETTLED_MAX):
        seen.over(over(job))
        seen.settled(key(job))
    assert codec.encode_report(seen.task_inventory("b" * 36)).ByteSize() < 64 * 1024


def test_an_inventory_of_ten_thousand_unsettled_ends_fits_one_message() -> None:
    seen = Observed()
    for job in range(1, module.SETTLED_MAX + 1):
        seen.over(over(job))
    assert codec.encode_report(seen.task_inventory("b" * 36)).ByteSize() < 1 << 20
    finished = TaskFinished(node=NodeName("n"), key=key(1), end=exited())
    assert codec.encode_finished(finished).ByteSize() < 100


steps = st.lists(
    st.tuples(st.sampled_from(["start", "running", "ending", "over", "settled"]), st.integers(1, 4)), max_size=40
)


@given(steps)
def test_a_gpu_is_held_exactly_while_its_task_is_open(story: list[tuple[str, int]]) -> None:
    seen = Observed()
    for word, job in story:
        match word:
            case "start":
                if not seen.knows(key(job)):
                    seen.starting(start(key(job), gpus=[job]))
            case "running":
                seen.advanced(TaskRunning(key=key(job), pid=job, at=Instant(job)))
            case "ending":
                seen.advanced(TaskEnding(key=key(job)))
            case "over":
                if key(job) in seen.open:
                    seen.over(over(job))
            case _:
                if key(job) in seen.offered:
                    seen.settled(key(job))
        holders = seen.holders([gpu(i) for i in range(5)]).values()
        assert {each.key for held in holders for each in held} == set(seen.open)
        assert not seen.open.keys() & seen.offered.keys(), "a task is both open and over"
