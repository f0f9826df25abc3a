"""Where does each waiting job run, or why can it not?

Rules: D1  jobs come in order (`order`); each is placed whole or its shape gets a reason, and that shape is done with
       D2  a blocked shape holds nobody up: smaller jobs of other shapes behind it may start
       D3  placements of one pass see each other: all are taken from one draft
       D4  same view, same plan, in any process: nothing is iterated in hash order, every sort ends with a name or id
       D5  at most `budget` placements; shapes not looked at then wait with `budget_spent`, and the plan says `more`
       D6  no array runs more members than its own limit lets it, however many fit
Limits: a pass costs about the number of shapes plus the number of placements, not the length of the queue; shapes
        are not bounded (10,000 that all differ take about 0.15 s). D2 has no reservations yet, so a stream of small
        jobs can hold up a large one.
"""

from stoker.brain.domain.demand import Demand, Shape
from stoker.brain.domain.ids import JobId, NodeName
from stoker.brain.domain.plan import Place, Plan
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.reason import Reason
from stoker.brain.domain.units import Instant
from stoker.brain.engine import explain
from stoker.brain.engine.draft import Draft
from stoker.brain.engine.fit import Search, Seat, mixing_helps
from stoker.brain.engine.fleet import Fleet
from stoker.brain.engine.gang import number_ranks, seat_gang
from stoker.brain.engine.order import Candidate, in_order
from stoker.brain.engine.ports import choose_port, needs_rendezvous
from stoker.brain.state.view import View


def decide(view: View, policy: Policy, now: Instant, seed: int, budget: int) -> Plan:
    """What to start now. `now` and `seed` are what a replay must repeat; no rule here depends on either so far."""
    assert budget >= 1, f"a pass that may place nothing would go on for ever: {budget=}"
    pass_ = _Pass(view, policy)
    actions: list[Place] = []
    reasons: dict[Shape, Reason] = {}
    more = False
    for candidate in in_order(view, policy, now, blocked=reasons):
        shape = candidate.shape
        if len(actions) >= budget:
            reasons[shape] = explain.budget_spent(len(actions))
            more = True
            continue
        if not pass_.has_room(candidate):
            continue
        answer = pass_.place(candidate)
        if isinstance(answer, Place):
            actions.append(answer)
        else:
            reasons[shape] = answer
    return Plan(actions=tuple(actions), reasons=reasons, more=more)


class _Pass:
    """What one pass has taken and learnt so far."""

    def __init__(self, view: View, policy: Policy) -> None:
        self._view = view
        self._policy = policy
        self._draft = Draft(view)
        self._searches: dict[Demand, tuple[Search, ...]] = {}
        self._portless: dict[NodeName, None] = {}
        """Nodes whose address has no port left: they take no part in attempts that need one."""
        self._fleet: Fleet | None = None
        self._rooms: dict[JobId, int | None] = {}
        """Members that arrays may still start in this pass."""

    def has_room(self, candidate: Candidate) -> bool:
        """D6."""
        return candidate.array == 0 or self._room_of(candidate.array) != 0

    def _room_of(self, array: JobId) -> int | None:
        if array not in self._rooms:
            self._rooms[array] = self._view.room(array)
        return self._rooms[array]

    def place(self, candidate: Candidate) -> Place | Reason:
        placed = self._place(candidate)
        room = self._room_of(candidate.array) if candidate.array else None
        if isinstance(placed, Place) and room is not None:
            self._rooms[candidate.array] = room - 1
        return placed

    def _place(self, candidate: Candidate) -> Place | Reason:
        job, demand = candidate.job, candidate.shape.demand
        array = candidate.array if candidate.lazy else JobId(0)
        searches = self._searches_for(demand)
        attempt = 1 if candidate.lazy else len(self._view.job(job).attempts) + 1
        while seats := _first_seats(searches):
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
        return self._why(searches)

    def _searches_for(self, demand: Demand) -> tuple[Search, ...]:
        """With one model per task first; with a mix only where that could help."""
        searches = self._searches.get(demand)
        if searches is None:
            barred = self._portless if needs_rendezvous(demand) else {}
            ways = (False, True) if mixing_helps(self._draft, demand) else (False,)
            searches = tuple(Search(self._draft, demand, mixed=mixed, barred=barred) for mixed in ways)
            self._searches[demand] = searches
        return searches

    def _bar(self, address: str) -> None:
        """Each call bars at least one node, so a search is repeated at most once per address."""
        for name, node in self._view.nodes.items():
            if node.inventory.address == address:
                self._portless[name] = None

    def _why(self, searches: tuple[Search, ...]) -> Reason:
        search = searches[-1]
        demand = search.demand
        if not explain.fits_first_nodes(self._view, search):
            if self._fleet is None:
                self._fleet = Fleet(self._view)
            reason = explain.never(self._view, self._fleet, demand)
            if reason is not None:
                return reason
        return self._no_port(demand) or explain.short_of(search)

    def _no_port(self, demand: Demand) -> Reason | None:
        if not self._portless or not needs_rendezvous(demand):
            return None
        ways = (False, True) if mixing_helps(self._draft, demand) else (False,)
        seats = _first_seats(tuple(Search(self._draft, demand, mixed=mixed) for mixed in ways))
        if not seats:
            return None
        barred = min(seat.node for seat in seats if seat.node in self._portless)
        return explain.no_free_port(self._view.nodes[barred].inventory.address, self._policy)


def _first_seats(searches: tuple[Search, ...]) -> list[Seat] | None:
    for search in searches:
        seats = seat_gang(search)
        if seats:
            return seats
    return None
