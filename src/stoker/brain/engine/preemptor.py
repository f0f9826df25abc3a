"""Stage of a pass in which running jobs are told to give way, with what is kept for those who get their places."""

from collections.abc import Sequence
from itertools import chain
from typing import Final

from stoker.brain.domain.allocation import Claim, TaskPlacement
from stoker.brain.domain.demand import QuotaGroup, Shape
from stoker.brain.domain.ids import JobId
from stoker.brain.domain.job import Job
from stoker.brain.domain.partition import selection
from stoker.brain.domain.plan import Place, Preempt
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.preemption import notice_ms
from stoker.brain.domain.units import MINUTE_MS, NEVER, Instant, later
from stoker.brain.domain.where import selects
from stoker.brain.engine.draft import Draft
from stoker.brain.engine.fit import Search
from stoker.brain.engine.gang import NO_MEETING, needs_rendezvous, number_ranks, promise_port
from stoker.brain.engine.gpu_choices import first_fits
from stoker.brain.engine.guarantee_hold import GuaranteeHold
from stoker.brain.engine.preemption import WAITING_MAX, VictimSearch
from stoker.brain.engine.queue_order import Candidate
from stoker.brain.engine.quota_order import QuotaOrder
from stoker.brain.engine.reservation import ReservationBook, ends_in_ms
from stoker.brain.state.view import View

CLAIM_SLACK_MS: Final = 5 * MINUTE_MS
"""How much longer than their notice and grace what others give up is kept for a job; then it waits as before."""


class Preemptor:
    """The jobs of one pass to which others give way."""

    def __init__(  # noqa: PLR0913  # the parts of a pass that it has to do with
        self,
        draft: Draft,
        view: View,
        policy: Policy,
        now: Instant,
        order: QuotaOrder,
        reservations: ReservationBook,
        guarantee_hold: GuaranteeHold,
    ) -> None:
        self._draft, self._view, self._policy, self._now, self._order = draft, view, policy, now, order
        self._reservations, self._guarantee_hold = reservations, guarantee_hold
        self.claiming: dict[JobId, Shape] = {}
        """Jobs to which others are giving way."""
        self._places: dict[JobId, Sequence[TaskPlacement]] = {}
        """Of those for whom this pass told others to: where they will run."""
        self._claims: dict[JobId, Sequence[TaskPlacement]] = {}
        """The same of those for whom earlier passes did."""
        self._served: dict[JobId, Sequence[TaskPlacement]] = {}
        """Jobs for whom enough comes free anyway, and where."""
        self._search: VictimSearch | None = None
        """None = nobody had to be looked for."""
        self.tries_left = WAITING_MAX
        """Jobs for which it may still be looked who gives way."""
        self._in_vain: dict[Shape, None] = {}
        """Shapes for which nobody may give way, or it wouldn't help."""

    def claims(self, claim: Claim, shape: Shape) -> None:
        """Note a job to which others are giving way since an earlier pass."""
        self.claiming[claim.job] = shape
        self._claims[claim.job] = claim.tasks

    def placed(self, job: JobId, shape: Shape) -> None:
        """Note that a job was placed. One that has a claim may find place elsewhere, and counts once."""
        if self._search is None and not self.claiming:
            return  # nor is any served: that is found out in a search
        claimed = self.claiming.pop(job, None) is not None
        served = self._served.pop(job, None) is not None
        self._claims.pop(job, None)
        if self._search is not None and not claimed:
            self._search.promise(shape)
            if served:
                self._search.expect(shape, -1)

    def may_help_any(self) -> bool:
        """Return whether others may have to give way to any job still."""
        if not self._policy.preemptions_max or self.tries_left <= 0:
            return False
        return bool(self._view.preemptible) or self._order.is_anyone_owed

    def may_help_group(self, group: QuotaGroup) -> bool:
        """Return whether it is worth a look who might give way to any job of these."""
        if not self._policy.preemptions_max or self.tries_left <= 0 or not group.milli:
            return False
        return bool(self._view.preemptible) or self._order.is_group_within_guarantee(group)

    def may_help(self, shape: Shape) -> bool:
        """Return whether it is worth a look who might give way to a blocked job. Costs next to nothing."""
        demand = shape.demand
        if not self._policy.preemptions_max or not demand.gpu_count or demand.shares or self.tries_left <= 0:
            return False
        if shape in self._in_vain or not (self._view.preemptible or self._order.is_within_guarantee(shape)):
            return False
        return self._order.limit_reached(shape) is None

    def preempt(self, candidate: Candidate, searches: Sequence[Search], over_at: Instant) -> Preempt | None:
        """Return who is to give way to a blocked job. What is free of its future places is kept for it from now on.

        `searches` are those of its demand in the draft. `over_at` is when it would have ended; NEVER = it has no
        backfill before it.
        """
        shape, record = candidate.shape, candidate.record
        if candidate.job in self.claiming or candidate.job in self._served:
            return None
        if self.claiming and self._victim_search().breaks_limit(shape):
            self._in_vain[shape] = None  # as much as may be is promised to its tenant's other jobs
            return None
        self.tries_left -= 1
        if over_at != NEVER and self._will_backfill(over_at, searches):
            return None
        search = self._victim_search()
        mark = self._draft.checkpoint()
        self._let_go(candidate, search)
        found, fits = None, first_fits(searches)
        is_served = fits is not None  # what others give up already, or what ends anyway, is enough for it too
        if not is_served:
            found = search.victims(record, lambda: first_fits(searches) is not None)
            fits = first_fits(searches) if found else None
        tasks = number_ranks(self._draft, fits, shape.demand) if fits else None
        self._draft.rollback(mark)
        if is_served and tasks is not None:
            self._served[candidate.job] = tasks
            search.expect(shape)
            return None
        if found is None or tasks is None:
            self._in_vain[shape] = None
            return None
        cause, victims = found
        search.promise(shape)
        self.claiming[candidate.job] = shape
        self._places[candidate.job] = tasks
        specs = {victim.job: self._view.job(victim.job).spec for victim in victims}
        notices = {job: notice_ms(spec, cause, self._policy) for job, spec in specs.items()}
        gone_by = {job: later(self._now, ms) for job, ms in notices.items()}
        self._reservations.claim(candidate.job, tasks, ends_in_ms(record.spec, self._policy), gone_by)
        array = candidate.array if candidate.lazy else JobId(0)
        return Preempt(job=candidate.job, array=array, tasks=tuple(tasks), victims=victims, cause=cause)

    def _victim_search(self) -> VictimSearch:
        if self._search is None:
            self._search = VictimSearch(self._draft, self._view, self._policy, self._now, self._order)
            for claiming in self.claiming.values():
                self._search.promise(claiming)
        return self._search

    def _will_backfill(self, over_at: Instant, searches: Sequence[Search]) -> bool:
        """Whether a job fits into what is kept until then: nobody need give way to it."""
        mark = self._draft.checkpoint()
        self._reservations.lend_from(over_at)
        found = self._draft.checkpoint() > mark and first_fits(searches) is not None
        self._draft.rollback(mark)
        return found

    def _let_go(self, candidate: Candidate, search: VictimSearch) -> None:
        """Free in the draft what is kept for a job, and what those hold who give way, but for what others claim.

        The caller rolls it back.
        """
        self._reservations.lend(candidate.job)
        lent = dict.fromkeys([candidate.shape, *(self.claiming[job] for job in self._places)])
        for shape in lent:  # what others claim may be what was held for them before
            self._guarantee_hold.lend(shape)
        search.free_ending(self._reservations.nodes_but_of(candidate.job))
        search.free_chosen()
        # Naive: free what is kept for them too, and take their places whole: twice the work for the same.
        for job, tasks in chain(self._claims.items(), self._places.items(), self._served.items()):
            for task in self._reservations.to_come(job) if job in self.claiming else tasks:
                self._draft.take_free(task)  # what ends on nodes of others isn't free here
        for shape in lent:
            if shape != candidate.shape:
                self._guarantee_hold.hold_again(shape)


def lapses_at(claim: Claim, policy: Policy) -> Instant:
    """Return until when a claim holds: those who give way are gone by then, or their node is in trouble."""
    return later(claim.at, policy.preempt_notice_max_ms + policy.stop_grace_ms + CLAIM_SLACK_MS)


def admits(view: View, shape: Shape, claim: Claim) -> bool:
    """Return whether a job may still run on the nodes of its claim (D7): labels, taints and lists change."""
    wanted = selection(view.partitions, view.tenants, shape)
    return all(selects(wanted, view.nodes[task.node]) for task in claim.tasks)


def is_coming(draft: Draft, view: View, claim: Claim) -> bool:
    """Return whether all GPUs of a claim are free or held by jobs that are ending, and its nodes still large enough."""
    for task in claim.tasks:
        free = draft.free.get(task.node)
        if free is None:
            return False
        has, here = view.nodes[task.node].inventory, [each for each in claim.tasks if each.node == task.node]
        if sum([each.cpus for each in here]) > has.cpus or sum([each.memory_mb for each in here]) > has.memory_mb:
            return False
        gpus = {gpu.uuid for gpu in free.gpus}
        if not gpus.issuperset(task.gpus) and not (gpus | view.coming_free(task.node)).issuperset(task.gpus):
            return False
    return True


def start_on(draft: Draft, view: View, policy: Policy, job: Job, claim: Claim) -> Place | None:
    """Take the places of a claim and return the start there; None = some of it isn't free yet."""
    mark = draft.checkpoint()
    for task in claim.tasks:
        free = draft.free[task.node]
        here = {gpu.uuid for gpu in free.gpus}
        if not here.issuperset(task.gpus) or free.cpus < task.cpus or free.memory_mb < task.memory_mb:
            draft.rollback(mark)
            return None
        draft.take(task)
    attempt, meeting = job.newest_attempt + 1, NO_MEETING
    if needs_rendezvous(job.spec.demand):
        meeting = promise_port(draft, view, policy, job.id, attempt, claim.tasks[0].node)
    if meeting is None:
        draft.rollback(mark)
        return None
    address, port = meeting
    return Place(job=job.id, attempt=attempt, tasks=claim.tasks, master_addr=address, master_port=port)
