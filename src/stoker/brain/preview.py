"""Preview of a job that nobody has submitted yet: whether the next pass would start it, where, or why it would wait.

Rules: P1  what a submit refuses is refused here, by the same function
       P2  a whole pass over the state as it is, with the job at its place in the queue, says what would become of it
       P3  nothing is changed: no id is taken, and the next pass may decide otherwise once the state is another
Limits: as in `alternatives`: none where a pass would cost more than about PASS_US_MAX. Of an array one member is tried.
"""

from collections.abc import Iterable
from typing import NamedTuple

from msgspec.structs import replace

from stoker.brain.alternatives import is_pass_cheap
from stoker.brain.cycle import propose
from stoker.brain.domain.errors import Refusal
from stoker.brain.domain.ids import JobId, NodeName
from stoker.brain.domain.job import Job
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.domain.plan import Place, Plan, Preempt, Reservation, UndecidableShape
from stoker.brain.domain.reason import AWAITING_PASS, Reason
from stoker.brain.domain.units import NEVER, Instant
from stoker.brain.state.admit.job import submit
from stoker.brain.state.apply.job import submitted_job
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.commands import Submit
from stoker.brain.state.events.job import JobSubmitted
from stoker.brain.state.state_view import StateView
from stoker.brain.state.view import Bucket
from stoker.brain.state.wait_reason import wait_reason


class JobPreview(NamedTuple):
    """The outcome for a job that is not submitted."""

    job: Job
    nodes: tuple[NodeName, ...] = ()
    """Where it would start, by rank; empty = it would wait."""
    victims: int = 0
    """Attempts that would be told to give way first."""
    reason: Reason | None = None
    """Why it would wait; None = it wouldn't, or a pass of this cluster costs too much to try."""
    reservation: Reservation | None = None
    """When and where it would start at the latest."""


def preview(state: ClusterState, command: Submit, now: Instant) -> JobPreview | Refusal:
    """Return what would become of the only job of a submit (P2), or what it would be refused with (P1)."""
    answer = submit(state, command, now, lambda: "")
    if isinstance(answer, Refusal):
        return answer
    event = next(each for each in answer if isinstance(each, JobSubmitted))
    job = submitted_job(replace(event, spec=replace(event.spec, array=None)), now, command.by)
    if job.state is JobState.HELD or job.blocked or job.not_before != NEVER:
        return JobPreview(job, reason=wait_reason(state, job, lambda _: AWAITING_PASS))
    if not is_pass_cheap(state):
        return JobPreview(job)
    view = _WithOneMore(state, job)
    try:
        plan = propose(view, state.policy, now, 0, state.policy.placements_per_pass_max)
    except UndecidableShape:
        return JobPreview(job)
    return _found(state, job, plan)


def _found(state: ClusterState, job: Job, plan: Plan) -> JobPreview:
    for action in plan.actions:
        if action.job == job.id:
            victims = len(action.victims) if isinstance(action, Preempt) else 0
            assert isinstance(action, Place | Preempt), "the union is closed"
            return JobPreview(job, tuple(task.node for task in action.tasks), victims)
    reason = wait_reason(state, job, lambda shape: plan.reasons.get(shape, AWAITING_PASS))
    return JobPreview(
        job, reason=reason, reservation=next((each for each in plan.reservations if each.job == job.id), None)
    )


class _WithOneMore(StateView):
    """The state as it is, with one job more that waits."""

    def __init__(self, state: ClusterState, job: Job) -> None:
        super().__init__(state)
        self._more = job

    def pending(self) -> Iterable[Bucket]:
        yield from super().pending()
        yield Bucket(self._more.spec.priority, self._more.spec.shape, [self._more.id])

    def job(self, job: JobId) -> Job:
        return self._more if job == self._more.id else super().job(job)
