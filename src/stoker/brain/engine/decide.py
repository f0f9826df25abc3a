"""One pass of the engine: where each waiting job runs, or the reason why it can't.

Rules: D1  jobs come in order (`queue_order`); each is placed whole or its shape gets a reason, and that shape is done
           with
       D2  the first blocked jobs hold what they wait for (`reservation`); jobs of other shapes behind them may start
           where they are over by then or leave it alone
       D3  placements of one pass see each other: all are taken from one draft
       D4  same view, same plan, in any process: nothing is iterated in hash order, every sort ends with a name or id
       D5  at most `budget` placements; shapes that might have fitted and weren't looked at then wait with
           `budget_spent`, and the plan says `more`
       D6  no array runs more members than its own limit lets it, however many fit
       D7  a job runs only on nodes that its selection, that of its partition and the lists of its tenant and of those
           above that admit
       D8  a look goes through the stages of STAGES, and these in rounds, one for each standing by quota that comes up
           (`quota_order`); before a round, what shapes of a better standing wait for is held back from it
           (`guarantee_hold`)
       D9  a fault while one shape is decided on is raised with that shape, so that a caller can decide on the rest
       D11 who is found blocked has running jobs told to give way before those behind it take what is free, where it
           may (`preemption`); a job to which others gave way (its claim) starts before all else
       D10 a job goes where none of its last starts failed, else where the very last one didn't, else anywhere
Naive: bring all that wait into order, then search for each. But these stages only take, so a shape that doesn't fit at
the start doesn't fit later: those are sifted out first, unordered, by a look at what is free.
Limits: a pass costs about 1 us per blocked shape, twice that where it isn't GPUs that are short, 2 us more per shape
        that fitted at its start, 10 us per selection of nodes, and 25 us per placement, 35 us where there are quotas;
        never the length of the queue. Jobs come up for reservations and backfill at about 1 us per shape of their
        priority, a reservation costs what `reservation` says, and backfill looks at BACKFILL_LOOKS_MAX jobs.
"""

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from stoker.brain.domain.demand import Shape
from stoker.brain.domain.ids import JobId
from stoker.brain.domain.plan import Action, Plan, UndecidableShape
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.reason import Reason
from stoker.brain.domain.units import Instant
from stoker.brain.engine import explain
from stoker.brain.engine.queue_order import Candidate
from stoker.brain.engine.scheduling_pass import SchedulingPass
from stoker.brain.state.view import View


def decide(view: View, policy: Policy, now: Instant, seed: int, budget: int) -> Plan:
    """Return what to start now. `seed` is what a replay must repeat; no rule here depends on it so far.

    Raises: UndecidableShape (D9).
    """
    assert budget >= 1, f"a pass that may place nothing would go on for ever: {budget=}"
    pass_ = SchedulingPass(view, policy, now, list(view.pending()))
    try:
        return _decided(pass_, budget)
    except Exception as fault:
        if pass_.deciding.shape is None:
            raise
        raise UndecidableShape(pass_.deciding.shape, repr(fault)) from fault


def _decided(pass_: SchedulingPass, budget: int) -> Plan:
    actions: dict[JobId, Action] = {place.job: place for place in pass_.start_claimed()}
    pass_.sift()
    unseen: dict[Shape, Reason] = {}

    def take_back(candidate: Candidate) -> None:
        """Let others give way to a blocked job before those behind it take what is free; else reserve for it."""
        preempt = pass_.preempt(candidate)
        if preempt is not None:
            actions[candidate.job] = preempt
        elif not pass_.is_backfilling:
            pass_.reserve(candidate)

    for stage in _rounds(pass_):
        for candidate in pass_.in_order():
            pass_.deciding.shape = candidate.shape
            if candidate.job in actions or (candidate.array and not pass_.below_array_limit(candidate)):
                continue
            if stage is PREEMPT or candidate.shape in pass_.blocked:
                take_back(candidate)
                continue
            if not pass_.is_first_by_quota(candidate.shape):
                continue
            if stage is BACKFILL and not pass_.may_backfill(candidate):
                continue
            if len(actions) >= budget:
                unseen[candidate.shape] = pass_.blocked[candidate.shape] = explain.budget_spent(len(actions))
                continue
            place = pass_.place(candidate)
            if place is not None:
                actions[candidate.job] = place
            elif not pass_.is_backfilling:
                take_back(candidate)
    reasons, reservations = pass_.reasons(), tuple(pass_.reservations.made)
    return Plan(actions=tuple(actions.values()), reasons=reasons, more=bool(unseen), reservations=reservations)


class PassStage(NamedTuple):
    """One stage of a look at the queue, in rounds."""

    name: str
    begin_round: Callable[[SchedulingPass], bool]
    """Prepares one more round. False = the stage is over."""


PREEMPT: Final = PassStage("reclaim, else preempt", SchedulingPass.begin_preempting)
BACKFILL: Final = PassStage("backfill", SchedulingPass.begin_backfill)
STAGES: Final = (
    PassStage("place within guarantees", SchedulingPass.begin_placing),
    PassStage("borrow", SchedulingPass.begin_borrowing),
    BACKFILL,
    PREEMPT,
)
"""The stages of each look, least disruptive first."""


def _rounds(pass_: SchedulingPass) -> Iterator[PassStage]:
    for stage in STAGES:
        while stage.begin_round(pass_):
            yield stage
