"""State of one scheduling pass: what it has taken, what it keeps for whom, and what it has learnt.

The rules D1 to D10 stand in `decide`.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from stoker.brain.domain.demand import Demand, Shape
from stoker.brain.domain.ids import JobId, NodeName
from stoker.brain.domain.plan import Place, Preempt
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.reason import Reason, ReasonCode
from stoker.brain.domain.units import NEVER, Instant, later
from stoker.brain.engine import explain
from stoker.brain.engine.backfill import Backfill
from stoker.brain.engine.draft import Draft
from stoker.brain.engine.fit import Search
from stoker.brain.engine.gang import NO_MEETING, needs_rendezvous, number_ranks, promise_port
from stoker.brain.engine.gpu_choices import NOT_COUNTED, GpuChoices, by_choices, first_fits, fits_besides
from stoker.brain.engine.guarantee_hold import GuaranteeHold, waiting_in
from stoker.brain.engine.preemptor import Preemptor, admits, is_coming, lapses_at, start_on
from stoker.brain.engine.queue_order import (
    EVERY_SHAPE,
    NO_SHAPE,
    AllBut,
    Among,
    BucketTier,
    Candidate,
    Hidden,
    QueueOrder,
    SomeShapes,
    in_order,
    narrowed,
)
from stoker.brain.engine.quota_order import FIRST, LATER, QuotaOrder
from stoker.brain.engine.reservation import ReservationBook, ends_in_ms
from stoker.brain.engine.satisfiability import NodeClassStatus
from stoker.brain.engine.shares import search_of
from stoker.brain.engine.sift import Sift
from stoker.brain.state.view import Bucket, View

TRIES_PER_RESERVATION: Final = 4
"""Jobs that may be found to wait for nodes, not for ends, for each reservation: each costs as much as one."""


class SchedulingPass:
    """The state of one pass: what it has taken, and what it has learnt."""

    def __init__(self, view: View, policy: Policy, now: Instant, buckets: Sequence[Bucket]) -> None:
        self.deciding = explain.Deciding()
        self._view = view
        self._policy = policy
        self._now = now
        self._buckets = buckets
        self._draft = Draft(view, policy.gpu_sharers_max)
        self._sift = Sift(view, self._draft, self.deciding)
        self.blocked: dict[Shape, GpuChoices | Reason] = {}
        """Shapes that are done with, and how a reason is found, or the reason."""
        self._fitting: dict[Shape, GpuChoices] = {}
        """Shapes for which there was capacity at the start."""
        self.reservations = ReservationBook(self._draft, view, now, policy)
        self._reservable: dict[Shape, GpuChoices | Reason] = {}
        """Blocked shapes of which a job may still get a reservation."""
        self._reserved_for: dict[Shape, JobId] = {}
        """The one job of a shape that has one."""
        self._tries_left = TRIES_PER_RESERVATION * policy.reservations_max
        self._backfill = Backfill(self.blocked, self._fitting)
        self._queue_order: QueueOrder | None = None
        """Made when a job first comes up: where none fits, nothing is to be ordered."""
        self._tiers: Sequence[BucketTier] = ()
        self._fitting_tiers: Sequence[BucketTier] | None = None
        """Of shapes for which there were enough GPUs at the start."""
        self._quota_order = QuotaOrder(view, buckets)
        self._standing = FIRST - 1
        self._among: tuple[tuple[bool, int, bool, bool], SomeShapes] | None = None
        """What may come up in a stage and the round of a standing, while there are reservations, or tries to preempt,
        left or not."""
        self._later: dict[Shape, None] = {}
        """Shapes that wait for a later round."""
        self._borrowers: dict[Shape, None] = {}
        """Those that came up in one."""
        self._placed: dict[Shape, int] = {}
        self._preempting = False
        self._guarantee_hold = GuaranteeHold(self._draft)
        self._preemptor = Preemptor(
            self._draft, view, policy, now, self._quota_order, self.reservations, self._guarantee_hold
        )
        self._searches: dict[Shape, tuple[Search, ...]] = {}
        self._portless: dict[NodeName, None] = {}
        """Nodes whose address has no port left: they take no part in attempts that need one."""
        self._class_status = NodeClassStatus(view)
        self._gpus_held = 0
        """For guarantees, at the end."""
        self._kept_for_others: Reason | None = None
        """The reason of all that would fit beside what is reserved, once one does."""
        self._array_slots: dict[JobId, int | None] = {}
        """Members that arrays may still start in this pass."""

    def sift(self) -> None:
        """Block every shape for which there isn't enough capacity even now."""
        self._sift.sift(self._buckets, self.blocked, self._fitting)
        if self._policy.reservations_max:
            self._reservable = self.blocked.copy()  # ten times faster than to hash all of them anew

    def begin_placing(self) -> bool:
        """Begin the one round of jobs that stand first by quota."""
        self.deciding.shape = None
        if self._standing >= FIRST:
            return False
        self._standing = FIRST
        return True

    def begin_borrowing(self) -> bool:
        """Begin the round of the next standing that waits, beside what is held for better ones. False = none waits.

        Also where nothing of that standing fits: what may get a reservation comes up for it.
        """
        self.deciding.shape = None
        following = self._quota_order.next_standing(self._standing, self._later, self._reservable)
        if following is None:
            return False
        self._standing = following
        self._hold()
        self.deciding.shape = None
        for shape in self._later:
            del self.blocked[shape]
        self._borrowers.update(self._later)
        self._later = {}
        return True

    def start_claimed(self) -> Iterator[Place]:
        """Yield the starts of jobs to which others gave way; of those that must wait still, keep what came free."""
        offered = {bucket.shape for bucket in self._buckets} if self._view.claims else ()
        for claim in self._view.claims.values():
            job = self._view.job(claim.job)
            self.deciding.shape = shape = job.spec.shape
            if (
                shape not in offered
                or self._now > lapses_at(claim, self._policy)
                or not admits(self._view, shape, claim)
                or not is_coming(self._draft, self._view, claim)
                or self._quota_order.limit_reached(shape) is not None
                or (job.array_of and self._array_slots_of(job.array_of) == 0)
            ):
                continue
            place = start_on(self._draft, self._view, self._policy, job, claim)
            if place is None:
                self._preemptor.claims(claim, shape)
                self.reservations.claim(claim.job, claim.tasks, ends_in_ms(job.spec, self._policy))
            else:
                self._note_placed(Candidate(job.id, shape, job.array_of, lazy=False, record=job), place)
                yield place
        self.deciding.shape = None

    def begin_preempting(self) -> bool:
        """Begin the one round of blocked jobs that others may have to give way to, and that haven't come up."""
        self.deciding.shape = None
        if self._preempting:
            return False
        self._preempting = True
        return self._preemptor.may_help_any()

    def _may_preempt(self, shape: Shape) -> bool:
        helps = self._preemptor.tries_left > 0 and isinstance(self.blocked.get(shape), GpuChoices)
        return helps and self._preemptor.may_help(shape)

    def preempt(self, candidate: Candidate) -> Preempt | None:
        """Return who is to give way to a blocked job. What is free of its future places is kept for it from now on."""
        choices = self.blocked[candidate.shape]
        if not isinstance(choices, GpuChoices) or not self._preemptor.may_help(candidate.shape):
            return None
        searches = [search_of(cache, candidate.shape.demand, self._portless) for cache in choices.caches]
        over_at = NEVER if self.is_backfilling else later(self._now, self._ends_in_ms(candidate))
        return self._preemptor.preempt(candidate, searches, over_at)

    @property
    def is_backfilling(self) -> bool:
        """Whether the jobs that come up have been looked at before: backfill has begun, or the last stage."""
        return self._preempting or self._backfill.until != NEVER

    def begin_backfill(self) -> bool:
        """Begin the round of jobs that are over before the next reservation, the latest first. False = none is left."""
        self.deciding.shape = None
        self._backfill.end_round()
        times = self.reservations.backfill_times()
        if not times or self._backfill.looks_left <= 0:
            return False
        self._reservable = {}
        self.reservations.give_back(times[0])
        self._backfill.begin_round(times[0])
        return True

    def may_backfill(self, candidate: Candidate) -> bool:
        """Return whether a job is over in time for the backfill of this round."""
        return self._backfill.may_start(candidate.shape, later(self._now, self._ends_in_ms(candidate)))

    def _ends_in_ms(self, candidate: Candidate) -> int:
        return ends_in_ms(candidate.record.spec, self._policy)

    def reserve(self, candidate: Candidate) -> None:
        """Keep for a blocked job what it waits for, while there are reservations left."""
        shape = candidate.shape
        if (
            candidate.job in self._preemptor.claiming
            or shape not in self._reservable
            or self._quota_order.standing(shape) > self._standing
        ):
            return
        del self._reservable[shape]
        choices, waiting = self.blocked.get(shape), candidate.record
        if self._now < later(max(waiting.submitted_at, waiting.spec.begin), self._policy.reserve_after_ms):
            return
        if not isinstance(choices, GpuChoices) or self._quota_order.limit_reached(shape) is not None:
            return
        self._tries_left -= 1
        if self.reservations.reserve(candidate.job, shape.demand, choices.candidates):
            self._reserved_for[shape] = candidate.job
        if self.reservations.is_full or self._tries_left <= 0:
            self._reservable.clear()
            self._block_what_is_short()

    def _block_what_is_short(self) -> None:
        """Block the shapes for which reservations left too few GPUs, so that thousands needn't come up for it."""
        if self._quota_order.is_busy or self._preemptor.may_help_any():
            return  # then more than GPUs may be said of them
        short: dict[Shape, GpuChoices] = {}
        self._sift.block_what_is_short(short, self._placed)  # of those that were placed no more jobs may wait
        for shape, choices in short.items():
            self.blocked.setdefault(shape, choices)

    def in_order(self) -> Iterator[Candidate]:
        """Yield the jobs that come up in this round."""
        if self._queue_order is None:
            self._queue_order = QueueOrder(self._view, self._policy, self._now, self._sift.nodes_allowed)
            self._tiers = self._queue_order.tiers(self._buckets)
        order, quota = self._queue_order, self._quota_order
        if self._preempting:
            yield from in_order(order, self._tiers, AllBut(self._may_preempt), self._may_come_up_among)
        elif self._backfill.until == NEVER:
            comes_up = self._may_reserve if quota.is_busy else self._reservable.__contains__
            yield from in_order(order, self._tiers, Hidden(self.blocked, comes_up), self._may_come_up_among)
        else:
            comes_up = self._backfill.comes_up if quota.is_busy else self._backfill.comes_up_in_time
            if self._fitting_tiers is None:
                self._fitting_tiers = narrowed(self._tiers, self._fitting)
            hidden = Hidden(self.blocked, comes_up)
            for candidate in in_order(order, self._fitting_tiers, hidden, self._may_backfill_among):
                if self._backfill.looks_left <= 0:
                    self._note_limits()
                    return
                self._backfill.unblock(candidate.shape)
                yield candidate

    def _may_backfill_among(self) -> SomeShapes:
        """All that fitted at the start, until the last look (L3 of `backfill`): a queue of thousands stands behind."""
        return EVERY_SHAPE if self._backfill.looks_left > 0 or self._quota_order.is_busy else NO_SHAPE

    def _note_limits(self) -> None:
        """Note which of the shapes that would still come up for backfill wait for their quota first.

        Nothing is placed any more, so that their order makes no difference.
        """
        if self._quota_order.is_busy:
            for shape in [each for each in self._fitting if each in self.blocked and self._backfill.comes_up(each)]:
                self.is_first_by_quota(shape)

    def _may_come_up_among(self) -> SomeShapes:
        """Shapes that aren't blocked, and those that may get a reservation or have others give way."""
        order, helps, tries_left = self._quota_order, self._preemptor.may_help_group, self._preemptor.tries_left > 0
        key = self._preempting, self._standing, bool(self._reservable), tries_left
        if self._among is not None and self._among[0] == key:
            return self._among[1]  # in a round it only shrinks
        among: SomeShapes = EVERY_SHAPE
        if self._preempting:
            among = Among((), dict.fromkeys(filter(helps, order.groups)))
        elif order.is_busy or not self._reservable:
            groups = order.groups if self._reservable else ()
            groups = [each for each in groups if order.standing_of(each) <= self._standing or helps(each)]
            unblocked = {shape: None for shape in self._fitting if shape not in self.blocked}
            among = Among(unblocked, dict.fromkeys(groups)) if groups else unblocked
        self._among = key, among
        return among

    def _may_reserve(self, shape: Shape) -> bool:
        """Whether a blocked shape comes up for a reservation, or since others may have to give way."""
        return shape in self._reservable and (
            self._quota_order.standing(shape) <= self._standing or self._may_preempt(shape)
        )

    def is_first_by_quota(self, shape: Shape) -> bool:
        """Return whether the shape may take GPUs in this round; else it is blocked, for this round or for good."""
        found = self._quota_order.in_the_way(shape, self._standing)
        if found is None:
            return True
        if found is LATER:
            self._later[shape] = None
        self.blocked[shape] = found
        return False

    def _hold(self) -> None:
        """Hold capacity for jobs whose round has come and that wait."""
        held, order = self._guarantee_hold, self._quota_order
        used = order.used.copy()
        for shape, jobs in held.jobs.items():
            for _ in range(jobs):
                order.charge(shape, used)
        gone: dict[Shape, int] = {}
        for bucket in sorted(self._waiting_before(), key=self._rank):
            self.deciding.shape = shape = bucket.shape
            if shape not in gone:
                gone[shape] = self._placed.get(shape, 0) + held.jobs.get(shape, 0)
            waiting = waiting_in(bucket, self._view, gone[shape])
            gone[shape] = max(0, -waiting)
            for _ in range(waiting):
                if held.is_full or not order.is_owed(shape, used, self._standing):
                    break
                if not self._hold_for(shape):
                    break
                order.charge(shape, used)

    def _hold_for(self, shape: Shape) -> bool:
        """Hold what one job of a shape waits for. What a reservation keeps for it is held instead, and more (K2)."""
        job = self._reserved_for.pop(shape, None)
        nodes = self.reservations.release(job) if job is not None else ()
        choices = self.blocked[shape]
        assert isinstance(choices, GpuChoices), f"a job waits for more than nodes, and its standing is held: {shape}"
        return self._guarantee_hold.hold(choices.candidates, shape, nodes)

    def _waiting_before(self) -> Iterator[Bucket]:
        order = self._quota_order
        before = {group for group in order.groups if order.standing_of(group) < self._standing}
        for bucket in self._buckets if before else ():
            if bucket.shape.quota_group in before and isinstance(self.blocked.get(bucket.shape), GpuChoices):
                yield bucket

    def _rank(self, bucket: Bucket) -> tuple[int, int, JobId]:
        first = (bucket.jobs or bucket.arrays)[0]
        return self._quota_order.standing(bucket.shape), -bucket.priority, first

    def below_array_limit(self, candidate: Candidate) -> bool:
        """Return whether its array lets one more member start (D6)."""
        return candidate.array == 0 or self._array_slots_of(candidate.array) != 0

    def _array_slots_of(self, array: JobId) -> int | None:
        if array not in self._array_slots:
            self._array_slots[array] = self._view.array_slots(array)
        return self._array_slots[array]

    def place(self, candidate: Candidate) -> Place | None:
        """Return the placement, with all it takes taken; or None, and the shape is blocked."""
        shape = candidate.shape
        choices = self._fitting[shape]
        placed = self._place(candidate, choices) if choices.may_hold(shape.demand.tasks) else None
        if placed is None:
            self.blocked[shape] = choices
            if not self.is_backfilling and not self.reservations.is_full and self._tries_left > 0:
                self._reservable[shape] = choices
            return None
        self._note_placed(candidate, placed)
        return placed

    def _note_placed(self, candidate: Candidate, placed: Place) -> None:
        shape = candidate.shape
        self.reservations.started(placed.job, placed.tasks, candidate.record.spec)
        self._quota_order.take(shape)
        self._preemptor.placed(placed.job, shape)
        self._placed[shape] = self._placed.get(shape, 0) + 1
        if candidate.array:
            slots = self._array_slots_of(candidate.array)
            self._array_slots[candidate.array] = slots if slots is None else slots - 1

    def _place(self, candidate: Candidate, choices: GpuChoices) -> Place | None:
        job, demand = candidate.job, candidate.shape.demand
        array = candidate.array if candidate.lazy else JobId(0)
        searches = self._searches.get(candidate.shape) or self._searches_for(candidate.shape, choices)
        draft, record = self._draft, candidate.record
        attempt, refusals = (1, ()) if candidate.lazy else (record.newest_attempt + 1, record.refusals)
        while fits := fits_besides(searches, refusals):
            mark, meeting = draft.checkpoint(), NO_MEETING
            tasks = number_ranks(draft, fits, demand)
            for task in tasks:
                draft.take(task)
            if needs_rendezvous(demand):
                meeting = promise_port(draft, self._view, self._policy, job, attempt, tasks[0].node)
            if meeting is not None:
                address, port = meeting
                return Place(
                    job=job,
                    attempt=attempt,
                    array=array,
                    tasks=tuple(tasks),
                    master_addr=address,
                    master_port=port,
                )
            draft.rollback(mark)
            self._bar(self._view.nodes[tasks[0].node].inventory.address)
        return None

    def _searches_for(self, shape: Shape, choices: GpuChoices) -> tuple[Search, ...]:
        demand = shape.demand
        barred = self._portless if needs_rendezvous(demand) else {}
        searches = self._searches[shape] = tuple(search_of(cache, demand, barred) for cache in choices.caches)
        return searches

    def _bar(self, address: str) -> None:
        """Each call bars at least one node, so a search is repeated at most once per address."""
        for name, node in self._view.nodes.items():
            if node.inventory.address == address:
                self._portless[name] = None

    def reasons(self) -> dict[Shape, Reason]:
        """Return why each blocked shape waits, now that the pass is over."""
        self.deciding.shape = None
        self._gpus_held = self._guarantee_hold.gpus
        self._guarantee_hold.give_back()
        self.reservations.give_back()
        self._draft.recognize_view()
        for shape in self._preemptor.claiming.values():  # backfill looked at the others of it anew
            if shape in self._fitting:
                self.blocked.setdefault(shape, self._fitting[shape])
        reasons: dict[Shape, Reason] = {}
        for shape in [shape for shape, found in self.blocked.items() if not isinstance(found, GpuChoices)]:
            found = self._found_at_end(shape)
            if isinstance(found, Reason):
                reasons[shape] = found
            else:
                self.blocked[shape] = found
        firsts, others = by_choices(self.blocked)
        # Where all was given back, what was counted at the start needn't be counted anew for each of ten thousand.
        is_as_before = not self._placed and self._draft.has_numbers_of_view()
        shortage = explain.GpuShortage(self._class_status)
        for choices, shape in firsts.items():
            shapes = others.get(choices)
            if shapes is None:  # as where each has a selection of its own: a table for each would cost ten times more
                self.deciding.shape = shape
                packed = choices.packed_at_start() if is_as_before else choices.packed_now()
                if packed != NOT_COUNTED:
                    reason = shortage.why(choices.numbers, packed, choices.admitted.classes, shape.demand)
                    if reason is not None:
                        reasons[shape] = reason
                        continue
            shapes = [shape, *shapes] if shapes else [shape]
            reasons.update(zip(shapes, self._whys(shapes, choices), strict=True))
        return reasons

    def _found_at_end(self, shape: Shape) -> GpuChoices | Reason:
        """What was found on the way, with the numbers of the end where there are any."""
        found = self.blocked[shape]
        if isinstance(found, Reason) and found.code is ReasonCode.BUDGET_SPENT:
            return found
        self.deciding.shape = shape
        return self._quota_order.limit_reached(shape) or self._fitting[shape]

    def _whys(self, shapes: Sequence[Shape], choices: GpuChoices) -> Sequence[Reason]:
        self.deciding.shape = shapes[0]
        if not choices.admitted.classes:
            return [explain.none_selected(self._view, shape) for shape in shapes]
        if choices.waiting is None:
            choices.waiting = explain.WaitExplanation(self._class_status, choices.last)
        found = choices.waiting.whys(shapes, self.deciding)
        if not self._portless and not self._guarantee_hold.withdrawn:  # then thousands have one reason
            return [reason or self._reserved() for reason in found]
        return [reason or self._kept_from(shape, choices) for shape, reason in zip(shapes, found, strict=True)]

    def _kept_from(self, shape: Shape, choices: GpuChoices) -> Reason:
        """Why a shape waits that fits into all that is free (X4, X8)."""
        self.deciding.shape = shape
        assert choices.waiting is not None, "whether it fits was asked there"
        if shape in self._borrowers and self._guarantee_hold.withdrawn:
            return explain.guarantee_kept(choices.waiting.gpus_free, self._gpus_held, shape.demand)
        return self._no_port(shape.demand, choices) or self._reserved()

    def _no_port(self, demand: Demand, choices: GpuChoices) -> Reason | None:
        """Everything else would be there; None = so would a port."""
        if (
            not self._portless
            or not needs_rendezvous(demand)
            or first_fits([search_of(each, demand, self._portless) for each in choices.caches])
        ):
            return None
        fits = first_fits([search_of(cache, demand) for cache in choices.caches])
        assert fits, f"blocked, and nothing is short: {demand}"
        barred = min(fit.node for fit in fits if fit.node in self._portless)
        return explain.no_free_port(self._view.nodes[barred].inventory.address, self._policy)

    def _reserved(self) -> Reason:
        book = self.reservations
        assert book.kept_anything, f"blocked, and nothing is short: {self.deciding.shape}"
        if self._kept_for_others is None:
            self._kept_for_others = explain.reserved(book.gpus_kept, book.made or book.dropped)
        return self._kept_for_others
