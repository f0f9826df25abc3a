"""The position in the queue is the one at which a pass comes to a job."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.brain.domain.array import parse_array, parse_job_ref
from stoker.brain.domain.ids import DEFAULT_TENANT, JobId, TenantName
from stoker.brain.domain.job import Job
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.quota import Quota
from stoker.brain.domain.tenant import Tenant
from stoker.brain.engine.queue_order import Priority, QueueOrder, QueuePosition, in_order, queue_position, tenants_of
from stoker.brain.state.commands import Cancel, Hold, PutTenant
from stoker.brain.state.state_view import StateView
from tests.brain.state.story import ANNA, Story, spec

FIRST = Priority(500, 0, 99)
"""Of a fresh job of the only tenant."""


def looked_at(story: Story) -> list[JobId]:
    """The jobs in the order in which a pass that places nothing comes to them."""
    view = StateView(story.state)
    waiting = list(view.pending())
    queue = QueueOrder(view, story.state.policy, story.now, tenants_of(waiting))
    return [each.job for each in in_order(queue, queue.tiers(waiting), ())]


def record_of(story: Story, job: JobId) -> Job:
    found = story.state.find(parse_job_ref(str(job)))
    assert found is not None
    return found


def position_of(story: Story, job: Job) -> QueuePosition | None:
    return queue_position(StateView(story.state), story.state.policy, job, story.now)


def positions(story: Story) -> list[int]:
    """Of each job that a pass comes to, in that order."""
    order = looked_at(story)
    found = [position_of(story, record_of(story, job)) for job in order]
    assert all(each is not None and each.waiting == len(order) for each in found)
    return [each.position for each in found if each is not None]


submits = st.tuples(
    st.sampled_from([500, 500, 505, 490]),
    st.integers(1, 2),
    st.sampled_from(["", "", "0-4", "0-9:3%2", "1,5,7%9"]),
    st.sampled_from([0, 1, 20 * 60_000, 3_600_000]),
    st.sampled_from([DEFAULT_TENANT, TenantName("lab"), TenantName("team")]),
)


@given(st.lists(submits, min_size=1, max_size=8), st.integers(0, 30), st.integers(0, 4))
def test_the_position_is_where_a_pass_comes_to_it_whatever_waits(
    queue: list[tuple[int, int, str, int, TenantName]], picked: int, ran: int
) -> None:
    """Priorities, ages, tenants and what they have used, arrays with and without a limit, members that have become
    records."""
    story = Story(Policy(aging_per_hour=20, aging_max=40))
    for name, parent, weight in (("lab", "", 3), ("team", "lab", 1)):
        made = Tenant(name=TenantName(name), parent=TenantName(parent), quota=Quota(weight=weight))
        story.do(PutTenant(by=ANNA, tenant=made, create=True))
    for priority, gpus, array, pause_ms, tenant in queue:
        members = parse_array(array) if array else None
        story.submit(spec(gpus, priority=priority, array=members, retries_max=1, tenant=tenant))
        story.wait(pause_ms)
    story.node("n1", 3)
    for label in story.decide()[:ran]:
        story.started(story.named(label).id)
        story.end(story.named(label).id, exit_code=1)
    story.wait(60_000).all_due()
    waiting = [record_of(story, job) for job in looked_at(story)]
    if waiting and picked:
        label = waiting[picked % len(waiting)].label
        story.tell(Hold if picked % 2 else Cancel, label)
    assert positions(story) == list(range(1, len(looked_at(story)) + 1))


def test_a_job_that_has_waited_long_is_ahead_of_a_new_one_with_a_little_more_priority() -> None:
    story = Story(Policy(aging_per_hour=20, aging_max=400))
    old = story.submit(spec(1, priority=500))
    story.wait(3_600_000)
    young = story.submit(spec(1, priority=510))
    urgent = story.submit(spec(1, priority=1_000))
    assert looked_at(story) == [urgent, old, young]
    assert positions(story) == [1, 2, 3]


def test_an_array_stands_where_its_next_member_does_and_counts_as_many_as_its_limit_lets_come() -> None:
    story = Story()
    story.submit(spec(1))
    story.submit(spec(1, array=parse_array("0-99%3")))
    last = story.submit(spec(1))
    array, member, beyond = (story.named(label) for label in ("2", "2_1", "2_50"))
    assert position_of(story, array) == QueuePosition(position=2, waiting=5, similar_ahead=1, priority=FIRST)
    assert position_of(story, member) == QueuePosition(position=3, waiting=5, similar_ahead=2, priority=FIRST)
    assert position_of(story, beyond) is None, "its turn comes when others have ended"
    assert position_of(story, story.job(last)) == QueuePosition(position=5, waiting=5, similar_ahead=4, priority=FIRST)


@pytest.mark.parametrize("order", ["hold", "cancel"])
def test_a_job_that_is_not_in_the_queue_has_no_position(order: str) -> None:
    story = Story()
    job = story.submit(spec(1))
    story.tell(Hold if order == "hold" else Cancel, str(job))
    assert story.job(job).state in (JobState.HELD, JobState.CANCELLED)
    assert position_of(story, story.job(job)) is None
