"""Where does each waiting job run, or why can it not?

Rules: D1  jobs come in order (`order`); each is placed whole or its shape gets a reason, and that shape is done with
       D2  a blocked shape holds nobody up: smaller jobs of other shapes behind it may start
       D3  placements of one pass see each other: all are taken from one draft
       D4  same view, same plan, in any process: nothing is iterated in hash order, every sort ends with a name or id
       D5  at most `budget` placements; shapes that might have fitted and weren't looked at then wait with
           `budget_spent`, and the plan says `more`
       D6  no array runs more members than its own limit lets it, however many fit
       D7  a job runs only on nodes that its selection and that of its partition admit
       D8  a pass goes in rounds, one for each standing by quota that comes up (`turns`); before a round, what those of
           a better standing wait for is kept from it (`keep`)
Naive: bring all that wait into order, then search for each. But a pass only takes, so whoever doesn't fit at its start
doesn't fit later: those are sifted out first, unordered, by a look at what is free.
Limits: a pass costs about 1 us per blocked shape, twice that where it isn't GPUs that are short, 2 us more per shape
        that fitted at its start, 30 us per selection of nodes, and 10 us per placement; never the length of the
        queue. D2 has no reservations yet, so a stream of small jobs can hold up a large one.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from stoker.brain.domain.demand import Demand, Shape
from stoker.brain.domain.ids import JobId, NodeName, PartitionName
from stoker.brain.domain.partition import selection
from stoker.brain.domain.plan import Place, Plan
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.reason import Reason, ReasonCode
from stoker.brain.domain.units import Instant
from stoker.brain.domain.where import Where
from stoker.brain.engine import explain
from stoker.brain.engine.candidate_nodes import CandidateNodes
from stoker.brain.engine.demand_cache import DemandCache, mixing_helps
from stoker.brain.engine.draft import Draft
from stoker.brain.engine.fit import NodeFit, Search
from stoker.brain.engine.gang import fit_gang, number_ranks
from stoker.brain.engine.guarantee_hold import KEPT_MAX, GuaranteeHold
from stoker.brain.engine.queue_order import Candidate, in_order
from stoker.brain.engine.quota_order import FIRST, QuotaOrder
from stoker.brain.engine.rendezvous import choose_port, needs_rendezvous
from stoker.brain.engine.satisfiability import NodeClassStatus
from stoker.brain.state.view import Bucket, SelectedNodes, View

_NODES_PER_SHAPE: Final = 8
"""Where a shape has no more nodes to itself, a table of what is free on them is cheaper than searches in vain."""


def decide(view: View, policy: Policy, now: Instant, seed: int, budget: int) -> Plan:
    """What to start now. `seed` is what a replay must repeat; no rule here depends on it so far."""
    assert budget >= 1, f"a pass that may place nothing would go on for ever: {budget=}"
    buckets = list(view.pending())
    pass_ = _Pass(view, policy, buckets)
    pass_.sift()
    actions: dict[JobId, Place] = {}
    unseen: dict[Shape, Reason] = {}
    while pass_.begin_round():
        for candidate in in_order(buckets, view, policy, now, pass_.blocked):
            if (
                candidate.job in actions
                or not pass_.below_array_limit(candidate)
                or not pass_.is_first_by_quota(candidate.shape)
            ):
                continue
            if len(actions) >= budget:
                unseen[candidate.shape] = pass_.blocked[candidate.shape] = explain.budget_spent(len(actions))
                continue
            place = pass_.place(candidate)
            if place is not None:
                actions[candidate.job] = place
    return Plan(actions=tuple(actions.values()), reasons=pass_.reasons(), more=bool(unseen))


_LATER: Final = Reason(ReasonCode.GUARANTEE_KEPT)
"""Stands for shapes whose round hasn't come."""


_GpuDemand = tuple[Where, PartitionName, str, int, int, int]
"""What shapes of one lane have in common: selection, model, memory and number of GPUs, and tasks per node."""


class _GpuChoices:
    """How shapes of one wish may be served: with one model per task, then, where that could help, with a mix."""

    __slots__ = ("lanes", "last", "shapes", "waiting")

    def __init__(self, lanes: tuple[DemandCache, ...]) -> None:
        self.lanes = lanes
        self.last = lanes[-1]
        """What it can't hold, none can."""
        self.shapes: list[Shape] = []
        """Those for which there are enough GPUs at the start."""
        self.waiting: explain.WaitExplanation | None = None


class _Pass:
    """What one pass has taken and learnt so far."""

    def __init__(self, view: View, policy: Policy, buckets: Sequence[Bucket]) -> None:
        self._view = view
        self._policy = policy
        self._buckets = buckets
        self._draft = Draft(view)
        self._turns = QuotaOrder(view, buckets)
        self._standing = FIRST - 1
        self._later: dict[Shape, None] = {}
        """Shapes that wait for a later round."""
        self._borrowers: dict[Shape, None] = {}
        """Those that came up in one."""
        self._placed: dict[Shape, int] = {}
        self._guarantee_hold = GuaranteeHold(self._draft)
        self._pools: dict[SelectedNodes, CandidateNodes] = {}
        self._gpu_choices: dict[_GpuDemand, _GpuChoices] = {}
        """By what shapes say."""
        self._meant: dict[tuple[CandidateNodes, str, int, int, int], _GpuChoices] = {}
        """By what that means here."""
        self.blocked: dict[Shape, _GpuChoices | Reason] = {}
        """Shapes that are done with, and how a reason is found, or the reason."""
        self._hopeful: dict[Shape, _GpuChoices] = {}
        """Shapes for which there was room at the start."""
        self._searches: dict[Shape, tuple[Search, ...]] = {}
        self._portless: dict[NodeName, None] = {}
        """Nodes whose address has no port left: they take no part in attempts that need one."""
        self._class_status = NodeClassStatus(view)
        self._array_slots: dict[JobId, int | None] = {}
        """Members that arrays may still start in this pass."""

    def sift(self) -> None:
        """Block every shape for which there isn't enough room even now. The hottest loop of a long queue."""
        blocked, hopeful, known = self.blocked, self._hopeful, self._gpu_choices
        for bucket in self._buckets:
            shape = bucket.shape
            demand = shape.demand
            # The same tuple as `_wish_of` makes; a call would cost as much as all the rest.
            ways = known.get(
                (
                    shape.where,
                    shape.partition,
                    demand.gpu_model,
                    demand.gpu_memory_mb,
                    demand.gpu_count,
                    demand.tasks_per_node,
                )
            ) or self._gpu_choices_for(shape)
            if demand.tasks > ways.last.at_most:
                blocked[shape] = ways
            elif shape not in hopeful:
                hopeful[shape] = ways
                ways.shapes.append(shape)
        for ways in self._meant.values():
            if len(ways.shapes) * _NODES_PER_SHAPE >= ways.last.nodes():
                room = ways.last.room()
                for shape in ways.shapes:
                    if not room.holds(shape.demand):
                        blocked[shape] = ways

    def _gpu_choices_for(self, shape: Shape) -> _GpuChoices:
        wish = _gpu_demand_of(shape)
        ways = self._gpu_choices.get(wish)
        if ways is None:
            pool, demand = self._pool_of(shape), shape.demand
            memory_mb = pool.gpu_memory(demand.gpu_model, demand.gpu_memory_mb)
            meant = pool, demand.gpu_model, memory_mb, demand.gpu_count, demand.tasks_per_node
            ways = self._meant.get(meant)
            if ways is None:
                mixes = (False, True) if mixing_helps(pool, demand) else (False,)
                ways = self._meant[meant] = _GpuChoices(
                    tuple(DemandCache(pool, demand, mixed=mixed) for mixed in mixes)
                )
            self._gpu_choices[wish] = ways
        return ways

    def _pool_of(self, shape: Shape) -> CandidateNodes:
        """D7. A partition that is gone adds nothing."""
        admitted = self._view.admitted(selection(self._view.partitions, shape.where, shape.partition))
        pool = self._pools.get(admitted)
        if pool is None:
            pool = self._pools[admitted] = CandidateNodes(self._draft, admitted)
        return pool

    def begin_round(self) -> bool:
        """D8. False when everyone has had his turn."""
        if self._standing < FIRST:
            self._standing = FIRST
            return True
        if not self._later:
            return False
        self._standing = min(self._turns.standing(shape) for shape in self._later)
        self._keep()
        for shape in self._later:
            del self.blocked[shape]
        self._borrowers.update(self._later)
        self._later = {}
        return True

    def is_first_by_quota(self, shape: Shape) -> bool:
        """Else the shape is blocked, for this round or for good."""
        wall = self._turns.wall(shape)
        if wall is not None:
            self.blocked[shape] = wall
            return False
        if self._turns.standing(shape) <= self._standing:
            return True
        self._later[shape] = None
        self.blocked[shape] = _LATER
        return False

    def _keep(self) -> None:
        """For whoever had his turn and waits."""
        guarantee_hold, turns = self._guarantee_hold, self._turns
        spent = turns.spent.copy()
        for shape, jobs in guarantee_hold.kept.items():
            for _ in range(jobs):
                turns.charge(shape, spent)
        gone: dict[Shape, int] = {}
        for bucket in sorted(self._waiting_before(), key=self._rank):
            shape = bucket.shape
            if shape not in gone:
                gone[shape] = self._placed.get(shape, 0) + guarantee_hold.kept.get(shape, 0)
            waiting = self._waiting(bucket, gone[shape])
            gone[shape] = max(0, -waiting)
            for _ in range(waiting):
                if guarantee_hold.is_full or not turns.would_wait(shape, spent, self._standing):
                    break
                if not guarantee_hold.keep(self._pool_of(shape), shape):
                    break
                turns.charge(shape, spent)

    def _waiting_before(self) -> Iterator[Bucket]:
        for bucket in self._buckets:
            if (
                isinstance(self.blocked.get(bucket.shape), _GpuChoices)
                and self._turns.standing(bucket.shape) < self._standing
            ):
                yield bucket

    def _waiting(self, bucket: Bucket, gone: int) -> int:
        """How many jobs of it wait beside so many that don't any more, as far as anybody asks. Negative: more than all
        of it has gone."""
        found = len(bucket.jobs) - gone
        for array in bucket.arrays:
            if found >= KEPT_MAX:
                break
            found += len(list(islice(self._view.members(array), KEPT_MAX + gone)))
        return min(KEPT_MAX, found)

    def _rank(self, bucket: Bucket) -> tuple[int, int, JobId]:
        first = (bucket.jobs or bucket.arrays)[0]
        return self._turns.standing(bucket.shape), -bucket.priority, first

    def below_array_limit(self, candidate: Candidate) -> bool:
        """D6."""
        return candidate.array == 0 or self._array_slots_of(candidate.array) != 0

    def _array_slots_of(self, array: JobId) -> int | None:
        if array not in self._array_slots:
            self._array_slots[array] = self._view.room(array)
        return self._array_slots[array]

    def place(self, candidate: Candidate) -> Place | None:
        """The placement, with all it takes taken; or None, and the shape is blocked."""
        shape = candidate.shape
        ways = self._hopeful[shape]
        placed = self._place(candidate, ways) if shape.demand.tasks <= ways.last.at_most else None
        if placed is None:
            self.blocked[shape] = ways
            return None
        self._turns.take(shape)
        self._placed[shape] = self._placed.get(shape, 0) + 1
        if candidate.array:
            room = self._array_slots_of(candidate.array)
            self._array_slots[candidate.array] = room if room is None else room - 1
        return placed

    def _place(self, candidate: Candidate, ways: _GpuChoices) -> Place | None:
        job, demand = candidate.job, candidate.shape.demand
        array = candidate.array if candidate.lazy else JobId(0)
        searches = self._searches_for(candidate.shape, ways)
        attempt = 1 if candidate.lazy else len(self._view.job(job).attempts) + 1
        while seats := _first_fits(searches):
            mark = self._draft.checkpoint()
            tasks = number_ranks(self._draft, seats, demand)
            kinds = {seat.node: seat.kinds for seat in seats}
            for task in tasks:
                self._draft.take(kinds[task.node], task)
            if not needs_rendezvous(demand):
                return Place(job=job, attempt=attempt, array=array, tasks=tuple(tasks))
            address = self._view.nodes[tasks[0].node].inventory.address
            port = choose_port(self._draft, address, job, attempt, self._policy)
            if port is not None:
                self._draft.take_port(address, port)
                return Place(
                    job=job,
                    attempt=attempt,
                    array=array,
                    tasks=tuple(tasks),
                    master_addr=address,
                    master_port=port,
                )
            self._draft.rollback(mark)
            self._bar(address)
        return None

    def _searches_for(self, shape: Shape, ways: _GpuChoices) -> tuple[Search, ...]:
        searches = self._searches.get(shape)
        if searches is None:
            demand = shape.demand
            barred = self._portless if needs_rendezvous(demand) else {}
            searches = tuple(Search(lane, demand, barred) for lane in ways.lanes)
            self._searches[shape] = searches
        return searches

    def _bar(self, address: str) -> None:
        """Each call bars at least one node, so a search is repeated at most once per address."""
        for name, node in self._view.nodes.items():
            if node.inventory.address == address:
                self._portless[name] = None

    def reasons(self) -> dict[Shape, Reason]:
        """Why each blocked shape waits, now that the pass is over."""
        self._guarantee_hold.give_back()
        return {
            shape: self._said(shape, ways) if isinstance(ways, Reason) else self._why(shape, ways)
            for shape, ways in self.blocked.items()
        }

    def _said(self, shape: Shape, reason: Reason) -> Reason:
        """What was found on the way, with the numbers of the end where there are any."""
        if reason.code is ReasonCode.BUDGET_SPENT:
            return reason
        return self._turns.wall(shape) or self._why(shape, self._hopeful[shape])

    def _why(self, shape: Shape, ways: _GpuChoices) -> Reason:
        waiting = ways.waiting
        if waiting is None:
            if not ways.last.pool.admitted.alike:
                return explain.none_selected(self._view, shape)
            waiting = ways.waiting = explain.WaitExplanation(self._class_status, ways.last)
        reason = waiting.why(shape.demand)
        if reason is None and shape in self._borrowers and self._guarantee_hold.withdrawn:
            free, kept = ways.last.room().gpus.free, self._guarantee_hold.gpus
            return explain.guarantee_kept(free, kept, shape.demand)
        return reason or self._no_port(shape.demand, ways)

    def _no_port(self, demand: Demand, ways: _GpuChoices) -> Reason:
        """Everything else would be there."""
        seats = _first_fits(tuple(Search(lane, demand) for lane in ways.lanes))
        assert seats, f"blocked, and nothing is short: {demand}"
        barred = min(seat.node for seat in seats if seat.node in self._portless)
        return explain.no_free_port(self._view.nodes[barred].inventory.address, self._policy)


def _gpu_demand_of(shape: Shape) -> _GpuDemand:
    demand = shape.demand
    gpus = demand.gpu_model, demand.gpu_memory_mb, demand.gpu_count
    return shape.where, shape.partition, *gpus, demand.tasks_per_node


def _first_fits(searches: tuple[Search, ...]) -> list[NodeFit] | None:
    """Of the first search that finds any. Those that are known to be in vain aren't made."""
    last = searches[-1]
    if last.lane.foresees_no(last.demand):
        return None
    for search in searches:
        seats = fit_gang(search)
        if seats:
            return seats
    last.lane.missed()
    return None
