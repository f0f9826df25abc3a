"""When is it said that a job is near its time limit, to people and to the job itself, and how often?"""

from stoker.brain.domain.ids import CONTROL, JobId, NodeName
from stoker.brain.domain.job import WarnSignal
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.units import HOUR_MS, MINUTE_MS, Instant
from stoker.brain.state.commands import MoveClock
from stoker.brain.state.events.job import AttemptStopping, AttemptWarned, TimeLimitNear
from stoker.brain.state.events.union import Event
from stoker.brain.state.state_view import StateView
from tests.brain.state.story import Story, spec
from tests.brain.state.test_job_update import update


def running(limit_ms: int = HOUR_MS, policy: Policy | None = None, **fields: object) -> Story:
    story = Story(policy)
    story.node("n1")
    story.run(story.submit(spec(time_limit_ms=limit_ms, **fields)), ("n1", 0))
    return story


def said(story: Story) -> list[type[Event]]:
    return [type(event) for event in story.deadlines()]


def test_r4_it_is_said_once_before_the_limit_with_the_time_of_its_end() -> None:
    story = running()
    began = story.now
    assert story.state.indexes.next_deadline() == began + 55 * MINUTE_MS
    story.wait(55 * MINUTE_MS)
    (event,) = story.deadlines()
    assert isinstance(event, TimeLimitNear)
    assert (event.limit_ms, event.ends_at) == (HOUR_MS, Instant(began + HOUR_MS))
    assert story.state.indexes.next_deadline() == began + HOUR_MS
    assert said(story) == []
    story.wait(5 * MINUTE_MS)
    assert said(story) == [AttemptStopping]


def test_r4_another_limit_is_said_anew_when_it_is_near() -> None:
    story = running()
    assert said(story.wait(56 * MINUTE_MS)) == [TimeLimitNear]
    update(story, "1", time_limit_ms=2 * HOUR_MS)
    assert said(story) == []
    assert said(story.wait(60 * MINUTE_MS)) == [TimeLimitNear]
    update(story, "1", time_limit_ms=HOUR_MS + 57 * MINUTE_MS)
    assert said(story) == [TimeLimitNear], "a limit that is lowered may be near at once"


def test_r4_of_what_has_passed_its_limit_nothing_is_said_and_of_short_jobs_neither() -> None:
    assert said(running().wait(2 * HOUR_MS)) == [AttemptStopping]
    assert said(running(9 * MINUTE_MS).wait(8 * MINUTE_MS)) == []
    assert said(running(policy=Policy(time_limit_warning_ms=0)).wait(59 * MINUTE_MS)) == []


def test_a_policy_that_says_it_earlier_holds_for_what_runs_already() -> None:
    story = running()
    story.state.put_policy(Policy(time_limit_warning_ms=20 * MINUTE_MS))
    assert said(story.wait(40 * MINUTE_MS)) == [TimeLimitNear]


def warned(lead_ms: int = MINUTE_MS, limit_ms: int = 5 * MINUTE_MS) -> Story:
    """A short job, of which people aren't told that its limit is near, with a signal before its end."""
    return running(limit_ms, warn=WarnSignal(10, lead_ms))


def test_r5_a_job_is_given_notice_as_long_before_its_limit_as_it_wished_and_once() -> None:
    story = warned()
    began = story.now
    assert story.state.indexes.next_deadline() == began + 4 * MINUTE_MS
    (event,) = story.wait(4 * MINUTE_MS).deadlines()
    assert event == AttemptWarned(
        job=JobId(1), attempt=1, limit_ms=5 * MINUTE_MS, ends_at=Instant(began + 5 * MINUTE_MS)
    )
    assert said(story) == []
    assert said(story.wait(MINUTE_MS)) == [AttemptStopping]


def test_r5_another_limit_is_another_notice_and_one_that_has_passed_is_none() -> None:
    story = warned()
    assert said(story.wait(4 * MINUTE_MS)) == [AttemptWarned]
    update(story, "1", time_limit_ms=9 * MINUTE_MS)
    assert said(story) == []
    assert said(story.wait(4 * MINUTE_MS)) == [AttemptWarned]
    assert said(warned().wait(HOUR_MS)) == [AttemptStopping]


def test_r5_a_signal_that_is_asked_for_while_it_runs_comes_in_time_or_at_once() -> None:
    story = running(5 * MINUTE_MS).wait(3 * MINUTE_MS)
    update(story, "1", warn=WarnSignal(12, MINUTE_MS))
    assert said(story) == []
    update(story, "1", warn=WarnSignal(12, 3 * MINUTE_MS))
    assert said(story) == [AttemptWarned]


def test_r5_the_notice_keeps_out_of_the_way_when_the_clock_moves() -> None:
    story = warned()
    story.do(MoveClock(by=CONTROL, by_ms=MINUTE_MS))
    assert said(story.wait(4 * MINUTE_MS)) == []
    assert said(story.wait(MINUTE_MS)) == [AttemptWarned]


def test_a_job_ends_by_its_limit_whatever_the_clock_was_moved_by_before_and_since() -> None:
    """What a reservation and `why` count on."""
    story = Story()
    story.node("n1", 1)
    for moved in (HOUR_MS, MINUTE_MS):
        story.do(MoveClock(by=CONTROL, by_ms=moved))
        story.wait(moved)
        job = story.submit(spec(1, time_limit_ms=5 * MINUTE_MS))
        story.run(job, ("n1", 0))
        ends_by = story.now + 5 * MINUTE_MS + story.state.policy.stop_grace_ms
        assert [each.ends_by for each in StateView(story.state).releases(NodeName("n1"), story.now)] == [ends_by]
        story.wait(2 * MINUTE_MS).do(MoveClock(by=CONTROL, by_ms=MINUTE_MS))
        ends_by += MINUTE_MS
        assert [each.ends_by for each in StateView(story.state).releases(NodeName("n1"), story.now)] == [ends_by]
        view = StateView(story.state)
        assert [view.running(each, story.now).ends_by for each in view.live()] == [ends_by]
        story.end(job)
