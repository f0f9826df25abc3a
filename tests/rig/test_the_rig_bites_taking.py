"""A promise about who gives way, claims, reservations or shares broken on purpose is noticed, as in
`test_the_rig_bites.py`."""

from collections.abc import Iterator
from functools import partial
from typing import Final

import pytest
from msgspec.structs import replace

from stoker.brain.domain.allocation import TaskPlacement
from stoker.brain.domain.gpu import WHOLE_GPU, SharedGpu
from stoker.brain.domain.ids import JobId
from stoker.brain.domain.job import Attempt, Job, JobSpec, StopCause, TaskEnd
from stoker.brain.domain.lifecycle import Outcome
from stoker.brain.domain.plan import Place
from stoker.brain.domain.policy import Policy
from stoker.brain.engine import preemption as engine_preemption
from stoker.brain.engine.preemption import VictimSearch
from stoker.brain.engine.queue_order import Candidate
from stoker.brain.engine.reservation import ReservationBook
from stoker.brain.engine.scheduling_pass import SchedulingPass
from stoker.brain.state import attempt_outcome, codec
from stoker.brain.state import cluster as cluster_state
from stoker.brain.state.admit import plan as admit_plan
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.events.job import JobRequeued
from stoker.live import outbox
from tests.rig.pair_run import simulate_pair_taking
from tests.rig.planted import Bugs, Plant, cases, must_be_noticed
from tests.rig.run import simulate_taking

SEEDS_MAX: Final = 60
Patch = Bugs


# --- what becomes of who gives way ------------------------------------------------------------------------------------


def who_gives_way_has_failed(patch: Patch) -> None:
    real = attempt_outcome._outcome

    def outcome(attempt: Attempt, end: TaskEnd, policy: Policy) -> Outcome:
        found = real(attempt, end, policy)
        return Outcome.FAILED if found is Outcome.PREEMPTED else found

    patch.setattr(attempt_outcome, "_outcome", outcome)


def _next_tries(patch: Patch, **changed: int) -> None:
    """What a job is charged for giving way is added to by so much."""
    real = attempt_outcome._next_try

    def next_try(job: Job, attempt: Attempt, outcome: Outcome, *rest: object) -> JobRequeued | None:
        found = real(job, attempt, outcome, *rest)  # type: ignore[arg-type]  # passed on as they came
        if found is None or outcome is not Outcome.PREEMPTED:
            return found
        return replace(found, **{name: getattr(found, name) + more for name, more in changed.items()})

    patch.setattr(attempt_outcome, "_next_try", next_try)


def giving_way_costs_a_requeue(patch: Patch) -> None:
    _next_tries(patch, requeues_used=1)


def giving_way_is_not_counted(patch: Patch) -> None:
    _next_tries(patch, preemptions=-1)


def a_warning_takes_as_long_as_its_job_likes(patch: Patch) -> None:
    def lead_ms(spec: JobSpec, cause: StopCause | None, policy: Policy) -> int:
        return spec.warn.lead_ms if spec.warn else 0

    patch.setattr(outbox, "lead_ms", lead_ms)


# --- who gives way ------------------------------------------------------------------------------------------------


def anybody_may_be_stopped_for_anybody(patch: Patch) -> None:
    def spared_because(victim: Job, cause: StopCause, priority: int, policy: Policy) -> str:
        attempt = victim.live_attempt
        return "" if attempt is not None and attempt.stop is None else "ends already"

    patch.setattr(engine_preemption, "spared_because", spared_because)
    patch.setattr(admit_plan, "spared_because", spared_because)


def guarantees_protect_nobody(patch: Patch) -> None:
    patch.setattr(VictimSearch, "_may_lose", lambda search, waiting, victims: True)


def a_reclaim_takes_from_anybody(patch: Patch) -> None:
    patch.setattr(VictimSearch, "_borrow", lambda search, tenant, job_class, owed_to: True)


# --- claims and reservations ------------------------------------------------------------------------------------------


def claims_are_forgotten_at_a_take_over(patch: Patch) -> None:
    real = codec._fill

    def fill(state: ClusterState, header: "codec._Header", *rest: object) -> None:
        real(state, replace(header, claims=()), *rest)  # type: ignore[arg-type]  # passed on as they came

    patch.setattr(codec, "_fill", fill)


def a_claim_outlives_what_it_was_for(patch: Patch) -> None:
    patch.setattr(cluster_state, "may_claim", lambda before, job: True)


def what_comes_free_for_a_claim_is_offered_to_all(patch: Patch) -> None:
    def start_claimed(pass_: SchedulingPass) -> Iterator[Place]:
        return iter(())

    patch.setattr(SchedulingPass, "start_claimed", start_claimed)


def backfill_looks_at_no_reservation(patch: Patch) -> None:
    def may_backfill(pass_: SchedulingPass, candidate: Candidate) -> bool:
        return True

    patch.setattr(SchedulingPass, "may_backfill", may_backfill)


def a_reservation_keeps_nothing(patch: Patch) -> None:
    patch.setattr(ReservationBook, "_withdraw", lambda book, name, demand, tasks, at: [])


def new_sharers_hold_a_reserved_gpu_on(patch: Patch) -> None:
    patch.setattr(ReservationBook, "_keep_rests", lambda book, name, demand, at: [])


def what_others_give_up_is_reserved_for_two(patch: Patch) -> None:
    real = ReservationBook.claim

    def claim(book: ReservationBook, job: JobId, *rest: object) -> None:
        claimed = dict(book._claimed)
        real(book, job, *rest)  # type: ignore[arg-type]  # passed on as they came
        book._claimed = claimed

    patch.setattr(ReservationBook, "claim", claim)


# --- shares -------------------------------------------------------------------------------------------------------


def a_share_is_charged_twice(patch: Patch) -> None:
    def gpu_milli(placement: TaskPlacement) -> int:
        return len(placement.gpus) * placement.gpu_share * (1 if placement.gpu_share == WHOLE_GPU else 2)

    patch.setattr(TaskPlacement, "gpu_milli", property(gpu_milli))


def the_memory_of_sharers_is_not_bounded(patch: Patch) -> None:
    def fits(rest: SharedGpu, share: int, memory_mb: int, sharers_max: int) -> bool:
        return share <= rest.left and rest.sharers < sharers_max

    patch.setattr(SharedGpu, "fits", fits)


MUTANTS: Final[tuple[tuple[Plant, str, int], ...]] = (
    (who_gives_way_has_failed, "O27 ", 0),
    (giving_way_costs_a_requeue, "O27 ", 0),
    (giving_way_is_not_counted, "O26 |O27 ", 0),
    (a_warning_takes_as_long_as_its_job_likes, "O29 ", 17),
    (anybody_may_be_stopped_for_anybody, "O25 ", 0),
    (guarantees_protect_nobody, "O25 .*left with", 0),
    (a_reclaim_takes_from_anybody, "O25 .*takes back from itself", 0),
    (claims_are_forgotten_at_a_take_over, "O30 ", 1),
    (a_claim_outlives_what_it_was_for, "O6 |O30 ", 0),
    (what_comes_free_for_a_claim_is_offered_to_all, "O28 ", 6),
    (backfill_looks_at_no_reservation, "O31 ", 1),
    (a_reservation_keeps_nothing, "O31 ", 0),
    (new_sharers_hold_a_reserved_gpu_on, "O31 ", 2),
    (what_others_give_up_is_reserved_for_two, "O31 ", 0),
    (a_share_is_charged_twice, "O16 ", 0),
    (the_memory_of_sharers_is_not_bounded, "O6 ", 0),
)
"""With the seed to begin with: it noticed when this was written. When it doesn't any more another will."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("found", cases(MUTANTS))
def test_it_is_noticed_when(found: tuple[Plant, str, int]) -> None:
    mutant, promise, first = found
    must_be_noticed(mutant, promise, (partial(simulate_taking, seed) for seed in (first, *range(SEEDS_MAX))))


@pytest.mark.timeout(300)
@pytest.mark.heavy
def test_a_claim_that_a_standby_forgets_is_noticed_when_it_takes_over() -> None:
    histories = (partial(simulate_pair_taking, seed) for seed in range(SEEDS_MAX))
    must_be_noticed(claims_are_forgotten_at_a_take_over, "O30 |P6 ", histories)
