"""How many jobs came, were placed and ended, and how long they waited."""

from collections import Counter

import pytest

from stoker.brain.domain.array import parse_array
from stoker.brain.domain.dependency import Dependency, DependencyKind
from stoker.brain.domain.ids import JobId
from stoker.brain.domain.job import StopCause
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.domain.plan import Plan, Preempt, Victim
from stoker.control.job_metrics import JobMeters, band_word
from tests.control.stage import Stage, stage, virtual


class RecordedTelemetry:
    """A Telemetry that keeps labels and durations."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self.durations: dict[str, list[float]] = {}

    def event(self, name: str, **fields: object) -> None: ...
    def warn(self, name: str, **fields: object) -> None: ...
    def gauge(self, name: str, value: float, **labels: str) -> None: ...

    def count(self, name: str, by: int = 1, **labels: str) -> None:
        self.counts[name, ",".join(f"{key}={value}" for key, value in labels.items())] += by

    def observe(self, name: str, seconds: float, **labels: str) -> None:
        self.durations.setdefault(name, []).append(seconds)


def hear(s: Stage, *, eligible_max: int = 100) -> RecordedTelemetry:
    heard = RecordedTelemetry()
    s.committer.on_durable(JobMeters(s.state, heard, eligible_max=eligible_max).committed)
    return heard


@pytest.mark.parametrize(
    ("priority", "word"),
    [
        (-5, "low"),
        (0, "low"),
        (100, "low"),
        (499, "low"),
        (500, "normal"),
        (999, "normal"),
        (1_000, "high"),
        (1_999, "high"),
        (2_000, "urgent"),
        (1_000_000, "urgent"),
    ],
)
def test_c1_a_priority_is_counted_under_the_word_of_the_band_that_it_reaches(priority: int, word: str) -> None:
    assert band_word(priority) == word


@virtual
async def test_what_is_submitted_placed_and_ended_is_counted_by_band_and_by_end() -> None:
    async with stage() as s:
        heard = hear(s)
        player = await s.join("n1")
        good = await s.submit()
        await player.run_to_end(good)
        bad = await s.submit(priority=2_500)
        await player.run_to_end(bad, exit_code=3)
        await s.pause()
        assert heard.counts == {
            ("task_submitted", "priority=normal"): 1,
            ("task_submitted", "priority=urgent"): 1,
            ("task_scheduled", "priority=normal"): 1,
            ("task_scheduled", "priority=urgent"): 1,
            ("task_finished", "status=succeeded"): 1,
            ("task_finished", "status=failed"): 1,
            ("jobs", ""): 2,
        }


@virtual
async def test_an_array_counts_by_its_members_whether_they_run_or_are_cancelled_before() -> None:
    async with stage() as s:
        heard = hear(s)
        player = await s.join("n1", 2)
        array = await s.submit(array=parse_array("0-9"))
        starts = [await player.next_start(count) for count in (1, 2)]
        for start in starts:
            await player.say_started(start.key)
        await s.cancel(array)
        for start in starts:
            await player.end(start.key)
        await s.until(lambda: s.job(array).is_final)
        await s.pause()
        assert heard.counts["task_submitted", "priority=normal"] == heard.counts["jobs", ""] == 10
        assert heard.counts["task_scheduled", "priority=normal"] == 2
        ended = {key[1]: count for key, count in heard.counts.items() if key[0] == "task_finished"}
        assert sum(ended.values()) == 10
        assert ended["status=cancelled"] >= 8


@virtual
async def test_an_array_that_can_never_run_ends_with_all_its_members() -> None:
    async with stage() as s:
        heard = hear(s)
        first = await s.submit(gpus=8)
        await s.submit(array=parse_array("0-4"), after=(Dependency(kind=DependencyKind.OK, job=first),))
        await s.cancel(first)
        await s.pause(10)
        assert heard.counts["task_finished", "status=failed"] == 5


@virtual
async def test_c2_latency_counts_from_when_a_job_may_run_and_admission_from_its_submit() -> None:
    async with stage() as s:
        heard = hear(s)
        await s.join("n1")
        begin = s.committer.now() + 8_000
        job = await s.submit(begin=begin)
        await s.until_state(job, JobState.STARTING)
        await s.pause()
        (latency_s,), (wait_s,) = heard.durations["scheduling_latency"], heard.durations["admission_wait"]
        assert latency_s < 1
        assert 8 <= wait_s < 9


@virtual
async def test_c2_a_further_attempt_counts_from_the_end_of_its_pause_and_is_no_admission() -> None:
    async with stage() as s:
        heard = hear(s)
        player = await s.join("n1")
        job = await s.submit(retries_max=1)
        await s.pause(5)
        start = await player.next_start()
        await player.say_started(start.key)
        await player.end(start.key, exit_code=1)
        await player.next_start(2)
        await s.pause()
        assert len(heard.durations["admission_wait"]) == 1
        assert max(heard.durations["scheduling_latency"]) < 1
        assert s.job(job).retries_used == 1


@virtual
async def test_what_is_remembered_of_waiting_jobs_is_bounded() -> None:
    async with stage() as s:
        meters = JobMeters(s.state, RecordedTelemetry(), eligible_max=3)
        meters._let_go([JobId(n) for n in range(10)], s.committer.now())
        assert list(meters._eligible) == [7, 8, 9]


@virtual
async def test_jobs_that_give_way_are_counted_by_cause() -> None:
    async with stage() as s:
        heard = hear(s)
        player = await s.join("n1", 1)
        low = await s.submit(priority=100, preemptible=True)
        await player.say_started((await player.next_start()).key)
        high = await s.submit(priority=1_000)
        tasks = s.job(low).attempts[0].tasks[0].placement
        preempt = Preempt(job=high, tasks=(tasks,), victims=(Victim(low, 1),), cause=StopCause.PREEMPTED)
        plan = Plan(actions=(preempt,), reasons={})
        assert await s.committer.settle(plan, decided_at=s.state.position, seed=1) == 1
        assert heard.counts["preemptions", "cause=preempted"] == 1
