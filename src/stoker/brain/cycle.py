"""The two calls that every runtime makes: propose a plan, and settle it against the newest state.

Every body calls these two and nothing else of the brain's verbs. `propose` reads a view and answers with a plan;
`settle` holds each action of the plan against the newest state and yields the events of those that still stand.
"""

from collections.abc import Iterator
from typing import assert_never

from stoker.brain.domain.array import index_of
from stoker.brain.domain.ids import Position
from stoker.brain.domain.plan import Action, Place, Plan, Preempt, UndecidableShape
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.units import Instant
from stoker.brain.engine.decide import decide
from stoker.brain.state.admit.plan import admit_place, admit_preempt, candidate
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.events.job import AttemptStopping, CapacityClaimed, JobPlaced, MemberMade
from stoker.brain.state.events.union import Event
from stoker.brain.state.leases import lease_for
from stoker.brain.state.view import View


def propose(view: View, policy: Policy, now: Instant, seed: int, budget: int) -> Plan:
    """Return the plan for the queue as the view shows it.

    `budget` counts placements, never time, so that the answer doesn't depend on the machine.

    Raises: UndecidableShape when the engine fails while it decides on one shape.
    """
    return decide(view, policy, now, seed, budget)


def settle(state: ClusterState, plan: Plan, *, decided_at: Position, seed: int) -> Iterator[tuple[Event, ...]]:
    """Yield the events of each action that the newest state still permits.

    The caller applies each tuple before it asks for the next, so that no two actions take one GPU.

    Raises: UndecidableShape when an action can't be judged; what was yielded before holds.
    """
    digest = state.policy.digest()
    for action in plan.actions:
        try:
            events = _settled(state, action, decided_at, digest, seed)
        except Exception as fault:
            job = state.jobs.get(action.array or action.job)
            if job is None:
                raise
            raise UndecidableShape(job.spec.shape, repr(fault)) from fault
        if events:
            yield events


def _settled(state: ClusterState, action: Action, decided_at: Position, digest: str, seed: int) -> tuple[Event, ...]:
    """The events of one action; none when the state no longer permits it."""
    made: tuple[Event, ...] = ()
    array = state.jobs.get(action.array)
    if array is not None and array.spec.array is not None:
        made = (MemberMade(array=array.id, index=index_of(array.id, array.spec.array, action.job)),)
    match action:
        case Place():
            stale = admit_place(state, action) is not None
            return () if stale else (*made, _placed(state, action, decided_at, digest, seed))
        case Preempt():
            return () if admit_preempt(state, action) is not None else (*made, *_preempted(state, action))
        case _:
            assert_never(action)


def _preempted(state: ClusterState, action: Preempt) -> tuple[Event, ...]:
    """The claim of the job that gets the resources, and the stop of each attempt that gives way to it."""
    winner = candidate(state, action)
    label = str(action.job) if winner is None else winner.label
    stops = (
        AttemptStopping(job=victim.job, attempt=victim.attempt, cause=action.cause, for_job=action.job, for_label=label)
        for victim in action.victims
    )
    return CapacityClaimed(job=action.job, tasks=action.tasks), *stops


def _placed(state: ClusterState, action: Place, decided_at: Position, digest: str, seed: int) -> JobPlaced:
    return JobPlaced(
        job=action.job,
        attempt=action.attempt,
        epoch=state.epoch,
        tasks=action.tasks,
        master_addr=action.master_addr,
        master_port=action.master_port,
        lease_ms=lease_for(state, state.jobs[action.array or action.job].spec, action.tasks),
        decided_at=decided_at,
        policy=digest,
        seed=seed,
    )
