"""Who gives way, for whom and for how long: the part of the oracle about preemption, reclaim, claims and reservations.

Promises: O25 whoever gives way may: he may be requeued, isn't ending anyway and has given way fewer than
              `preemptions_max` times; for a higher priority he said that he is preemptible and his base priority is
              strictly lower; a reclaim is for a job within a guarantee of its tenant's or class's, and takes from
              others than these; and nobody is left with less than he is guaranteed
          O26 no job gives way more often than `preemptions_max`, since a person last returned it
          O27 who gave way waits again at once, and has paid neither a retry nor a requeue (that it ends is O9)
          O28 what comes free for a claim is given to no other job, and starts its own as soon as all of it is there;
              unless the claim has lapsed, or its job may not start there any more
          O29 who gives way holds nothing any more after notice and grace, unless its node is in trouble
          O30 the claims are those that the log says, also after a take-over; and a control plane that has read a
              state from a disk plans and reserves as that does which has lived through all of it
          O31 what is planned leaves the first reservation as it is: if every job ends by its limit, its job has room
              on its nodes at the time that is named
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Final

from msgspec import UNSET

from stoker.brain.domain.allocation import Claim, TaskPlacement
from stoker.brain.domain.demand import Demand, JobClass
from stoker.brain.domain.gpu import WHOLE_GPU
from stoker.brain.domain.ids import GpuUuid, JobId, NodeName, TenantName
from stoker.brain.domain.job import Job, JobSpec, StopCause
from stoker.brain.domain.lifecycle import LIVE, JobState, Outcome
from stoker.brain.domain.plan import Place, Plan, Preempt, Reservation
from stoker.brain.domain.units import NEVER, Instant
from stoker.brain.engine.decide import decide
from stoker.brain.engine.gang import needs_rendezvous
from stoker.brain.engine.preemptor import CLAIM_SLACK_MS
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.codec import Fact, load_snapshot, snapshot_chunks
from stoker.brain.state.events.job import (
    AttemptStopping,
    CapacityClaimed,
    JobFinished,
    JobHeld,
    JobPlaced,
    JobRequeued,
    JobReturned,
    JobUpdated,
    MemberMade,
)
from stoker.brain.state.events.union import Event
from stoker.brain.state.state_view import StateView, latest_end
from tests.naive_quota import Count, NodeCapacity, count, guaranteed, limit_faults, wants
from tests.rig.ailing_oracle import POISON_CPUS

TAKEN: Final = (StopCause.PREEMPTED, StopCause.RECLAIMED)
GONE_S: Final = 10.0
"""What messages, a busy runner and the report of an end may take beside notice and grace."""
TROUBLE_S: Final = 75.0
"""For so long a node may be in trouble by one fault, where nobody sees it any more."""
COPIED_EVERY: Final = 40
"""Every so many passes, and in the first after a take-over, a state that was read anew plans too."""
_BUDGET: Final = 1_000
_NOTHING: Final = Plan(actions=(), reasons={})
Charges = tuple[int, int, int, int]


def follow(claims: dict[JobId, tuple[TaskPlacement, ...]], event: Event) -> None:
    """Make the claims those after one more event of the log: by rules of its own, for what the rig's people do."""
    match event:
        case CapacityClaimed():
            claims.pop(event.job, None)
            new = {uuid for task in event.tasks for uuid in task.gpus}
            for job, tasks in list(claims.items()):
                if any(uuid in new for task in tasks for uuid in task.gpus):
                    del claims[job]
            claims[event.job] = event.tasks
        case JobPlaced() | JobHeld() | JobFinished():
            claims.pop(event.job, None)
        case JobUpdated() if event.changes.priority not in (UNSET, event.before.priority):
            claims.pop(event.job, None)
        case _:
            pass


@dataclass(slots=True)
class TakingOracle:
    broken: list[str]
    happened: Counter[str] = field(default_factory=Counter)
    """How often each kind of thing came about."""
    _durable: dict[JobId, tuple[TaskPlacement, ...]] = field(default_factory=dict)
    """The claims that the disk knows of."""
    _claims: dict[JobId, tuple[TaskPlacement, ...]] = field(default_factory=dict)
    """With what isn't durable yet."""
    _times: Counter[JobId] = field(default_factory=Counter)
    """How often each job gave way since a person last returned it."""
    _charged: dict[tuple[JobId, int], Charges] = field(default_factory=dict)
    """What an attempt's job had been charged when it was told to give way."""
    _told: dict[tuple[JobId, int], tuple[float, float]] = field(default_factory=dict)
    """When an attempt was told, and by when it is gone; in seconds of the loop."""
    _trouble: dict[NodeName | None, float] = field(default_factory=dict)
    """Until when a node may be in trouble; None stands for all."""
    _passes: int = 0

    # --- the log ------------------------------------------------------------------------------------------------

    def written(self, event: Event) -> None:
        """One more event is on disk."""
        follow(self._durable, event)

    def killed(self) -> None:
        self._claims = dict(self._durable)
        self._times.clear()
        self._charged.clear()
        self._told.clear()

    def recovered(self, state: ClusterState, ahead: Sequence[Fact] = ()) -> None:
        """O30. Another leads; `ahead` is what it has done since, and isn't in `written` yet."""
        for fact in ahead:
            follow(self._claims, fact.event)
        if self._claims:
            self.happened["take-overs with claims"] += 1
        self._must_be_said_by_the_log(state)
        self._passes = 0
        for job in state.jobs.values():
            self._times[job.id] = job.preemptions  # the log says how often; from here on it is counted
            attempt = job.live_attempt
            if attempt is not None and attempt.stop is not None and attempt.stop.cause in TAKEN:
                self._charged[job.id, attempt.number] = _charges(job)

    def _must_be_said_by_the_log(self, state: ClusterState) -> None:
        has = {job: claim.tasks for job, claim in state.claims.items()}
        if list(has.items()) != list(self._claims.items()):
            self.broken.append(f"O30 at event {state.position} claims are {list(has)}, by the log {list(self._claims)}")

    # --- after every event --------------------------------------------------------------------------------------

    def applied(self, state: ClusterState, fact: Fact) -> None:
        event = fact.event
        follow(self._claims, event)
        if self._claims or state.claims:
            self._must_be_said_by_the_log(state)
        match event:
            case AttemptStopping(cause=StopCause.PREEMPTED | StopCause.RECLAIMED):
                self._must_give_way(state, event, fact.at)
            case JobRequeued():
                self._must_wait_again(state, event)
            case JobFinished():
                self._must_not_end(state.jobs[event.job], event)
            case JobReturned() | MemberMade():
                self._times.clear()  # whose it was counts anew; of others the state knows
                self._times.update({job.id: job.preemptions for job in state.jobs.values() if job.preemptions})
            case JobPlaced():
                self._note_sharers(state, event)
            case _:
                pass

    def _note_sharers(self, state: ClusterState, placed: JobPlaced) -> None:
        for task in placed.tasks:
            if task.gpu_share != WHOLE_GPU:
                held = state.indexes.held.get(task.node, {}).values()
                self.happened["shares"] += 1
                self.happened["sharers together"] += sum(task.gpus == each.gpus for each in held) > 1

    def _must_give_way(self, state: ClusterState, stop: AttemptStopping, at: Instant) -> None:
        """O25"""
        victim, winner = state.jobs[stop.job], state.jobs[stop.for_job]
        assert stop.cause is not None, "one of two"
        self.happened[stop.cause.value] += 1
        self._charged[stop.job, stop.attempt] = _charges(victim)
        notice_ms = min(victim.spec.warn.lead_ms, state.policy.preempt_notice_max_ms) if victim.spec.warn else 0
        self.happened["warned"] += bool(notice_ms)
        bound_s = (notice_ms + state.policy.stop_grace_ms) / 1_000 + GONE_S
        self._told[stop.job, stop.attempt] = _now_s(), _now_s() + bound_s
        story = f"job {stop.job} ({stop.cause}) for {winner.story()}"
        if not victim.spec.requeue:
            self.broken.append(f"O25 it may not be requeued: {story}")
        if self._times[victim.id] >= state.policy.preemptions_max:
            self.broken.append(f"O26 told to give way once more after {self._times[victim.id]} times: {story}")
        preempts = stop.cause is StopCause.PREEMPTED
        if preempts and not (victim.spec.preemptible and victim.spec.priority < winner.spec.priority):
            self.broken.append(f"O25 not preemptible by that priority, {victim.spec.priority}: {story}")
        in_service = count(state).held_milli + NodeCapacity(state).free
        if not preempts:  # nobody is charged for a claim that may not stand
            sure = [
                each for each in state.claims.values() if each.job == winner.id or _stands(state, _NOTHING, each, at)
            ]
            found = _after_all(state, sure)
            self.broken += [f"O25 {fault}: {story}" for fault in _not_owed(state, found, in_service, victim, winner)]
        found = _after_all(state, state.claims.values())
        self.broken += [f"O25 {fault}: {story}" for fault in _below(state, found, in_service, victim.spec, winner.spec)]

    def _must_wait_again(self, state: ClusterState, event: JobRequeued) -> None:
        """O26, O27"""
        job = state.jobs[event.job]
        attempt = job.attempts[-1]
        self._told.pop((job.id, attempt.number), None)
        before = self._charged.pop((job.id, attempt.number), None)
        taken = attempt.stop is not None and attempt.stop.cause in TAKEN
        if event.outcome is Outcome.PREEMPTED:
            self._times[job.id] += 1
            self.happened["preemptions_max"] += self._times[job.id] == state.policy.preemptions_max
            if self._times[job.id] > state.policy.preemptions_max:
                self.broken.append(f"O26 gave way {self._times[job.id]} times: {job.story()}")
        if taken != (event.outcome is Outcome.PREEMPTED):
            self.broken.append(f"O27 ended as {event.outcome} with {attempt.stop}: {job.story()}")
        elif taken and before is not None:
            retries, requeues, ports, preemptions = before
            if _charges(job) != (retries, requeues, ports, preemptions + 1):
                self.broken.append(f"O27 charged {before} -> {_charges(job)} for giving way: {job.story()}")
            if job.state is not JobState.PENDING or job.not_before != NEVER:
                self.broken.append(f"O27 gave way and doesn't wait: {job.story()}")

    def _must_not_end(self, job: Job, event: JobFinished) -> None:
        """O27"""
        last = job.attempts[-1] if job.attempts else None
        if last is not None and event.outcome is not None:
            self._told.pop((job.id, last.number), None)
            self._charged.pop((job.id, last.number), None)
            if last.stop is not None and last.stop.cause in TAKEN:
                self.broken.append(f"O27 gave way and ended: {job.story()}")

    # --- of one pass, at the moment at which it decided --------------------------------------------------------------

    def planned(self, state: ClusterState, plan: Plan, now: Instant) -> None:
        self._passes += 1
        waiting = state.indexes.waiting
        poisoned = any(shape.demand.cpus == POISON_CPUS for _, shape, _ in waiting)
        if not poisoned and (self._passes == 1 or self._passes % COPIED_EVERY == 0):
            self._must_plan_alike(state, now)
        claims = {} if poisoned else state.claims
        if claims:
            self._must_keep(state, plan, now)
        waits = {each.job for each in plan.actions if isinstance(each, Preempt)} | set(claims)
        reservations = [each for each in plan.reservations if each.job not in waits]
        if reservations and not poisoned and not any(isinstance(each, Preempt) for each in plan.actions):
            self._note_backfill(state, plan, reservations[0])
            self._must_leave(state, plan, reservations[0], now)

    def _must_plan_alike(self, state: ClusterState, now: Instant) -> None:
        """O30"""
        read = load_snapshot(list(snapshot_chunks(state)))
        plans = [decide(StateView(each), each.policy, now, 1, _BUDGET) for each in (state, read)]
        if plans[0] != plans[1]:
            kept = [[(each.job, each.at) for each in plan.reservations] for plan in plans]
            self.broken.append(f"O30 at event {state.position} a state that was read plans otherwise: {kept}")

    def _must_keep(self, state: ClusterState, plan: Plan, now: Instant) -> None:
        """O28"""
        good = {claim.job: claim for claim in state.claims.values() if _stands(state, plan, claim, now)}
        started = {action.job for action in plan.actions if isinstance(action, Place)}
        # One that starts, there or elsewhere, needs its claim no more.
        owner = {uuid: job for job in good if job not in started for task in good[job].tasks for uuid in task.gpus}
        for action in plan.actions:
            others = [uuid for task in action.tasks for uuid in task.gpus if owner.get(uuid, action.job) != action.job]
            if others:
                what = "starts" if isinstance(action, Place) else "claims"
                self.broken.append(f"O28 job {action.job} {what} {others}, which come free for job {owner[others[0]]}")
        left = NodeCapacity(state)
        for job, claim in good.items():
            self.happened["claims started"] += job in started
            if job not in started and _is_all_there(left, claim) and not needs_rendezvous(state.jobs[job].spec.demand):
                self.broken.append(f"O28 all that job {job} claims is free, and it doesn't start: {plan.actions}")

    def _note_backfill(self, state: ClusterState, plan: Plan, first: Reservation) -> None:
        self.happened["reservations"] += 1
        head = state.jobs.get(first.job)
        for action in plan.actions if head is not None else ():
            job = state.jobs.get(action.array or action.job)
            if head is not None and isinstance(action, Place) and job is not None and job.spec.demand.gpu_count:
                self.happened["backfilled"] += job.spec.priority <= head.spec.priority and job.id > head.id

    def _must_leave(self, state: ClusterState, plan: Plan, first: Reservation, now: Instant) -> None:
        """O31"""
        job = state.jobs.get(first.job)
        if job is None:
            return  # a member that is no record yet
        demand, room = job.spec.demand, 0
        for name in first.nodes:
            gpus, cpus, memory_mb = _left_at(state, plan, name, first, now)
            room += _tasks(gpus, cpus, memory_mb, demand)
        if room < demand.tasks and not any(_has_shrunk(state, name) for name in first.nodes):
            self.broken.append(f"O31 room for {room} tasks at {first.at - now} ms from now: {first}, {job.story()}")

    # --- how long it takes --------------------------------------------------------------------------------------

    def trouble(self, node: NodeName | None, for_s: float = TROUBLE_S) -> None:
        """A node, or all (None), may not do what it is told for a while."""
        self._trouble[node] = max(self._trouble.get(node, 0.0), _now_s() + for_s)

    def stepped(self, state: ClusterState, exempt: Set[str]) -> None:
        """O29"""
        for (job_id, number), (told_s, until_s) in list(self._told.items()):
            job = state.jobs.get(job_id)
            attempt = job.live_attempt if job else None
            if attempt is None or attempt.number != number:
                del self._told[job_id, number]
                continue
            nodes = [task.placement.node for task in attempt.open_tasks]
            troubled = any(self._trouble.get(each, 0.0) > told_s for each in (None, *nodes))
            if _now_s() > until_s and not troubled and not any(node in exempt for node in nodes):
                self.broken.append(f"O29 told to give way {_now_s() - told_s:.0f} s ago, and holds {nodes}: {job_id}")
        self._trouble = {node: until_s for node, until_s in self._trouble.items() if until_s > _now_s() - TROUBLE_S}


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _charges(job: Job) -> Charges:
    return job.retries_used, job.requeues_used, job.port_retries_used, job.preemptions


# -- guarantees ------------------------------------------------------------------------------------------------------


def _after_all(state: ClusterState, claims: Iterable[Claim]) -> Count:
    """Who holds how much once all that is ending has ended, with what is claimed."""
    staying = [job for job in state.jobs.values() if job.state in LIVE and job.state is not JobState.STOPPING]
    found = count(state, staying)
    for claim in claims:
        spec = state.jobs[claim.job].spec
        found.hold(spec, wants(spec.demand))
    return found


def _below(state: ClusterState, found: Count, in_service: int, victim: JobSpec, winner: JobSpec) -> Iterator[str]:
    """Who, of those that the victim is of and the winner isn't, is left with less than he is guaranteed?"""
    above: set[TenantName] = {tenant.name for tenant in found.path(winner.tenant)}
    for tenant in found.path(victim.tenant):
        promised = tenant.quota.guaranteed * WHOLE_GPU
        if tenant.name not in above and found.by_tenant[tenant.name, 0] < promised:
            yield f"tenant {tenant.name} is left with {found.by_tenant[tenant.name, 0]} of {promised}"
    job_class = victim.job_class
    if job_class is not winner.job_class and found.by_class[job_class][0] < guaranteed(state, job_class, in_service):
        yield f"{job_class} jobs are left with {found.by_class[job_class][0]}"


def _not_owed(state: ClusterState, found: Count, in_service: int, victim: Job, winner: Job) -> Iterator[str]:
    """Is a reclaim for a job within a guarantee, of somebody who hasn't lent to himself? Its claim counts already."""
    owed = [
        tenant.name
        for tenant in found.path(winner.spec.tenant)
        if found.by_tenant[tenant.name, 0] <= tenant.quota.guaranteed * WHOLE_GPU
    ]
    job_class: JobClass = winner.spec.job_class
    by_class = found.by_class[job_class][0] <= guaranteed(state, job_class, in_service)
    if not owed and not by_class:
        yield "it is within no guarantee"
    path = {tenant.name for tenant in found.path(victim.spec.tenant)}
    lent = any(name not in path for name in owed) or (by_class and victim.spec.job_class is not job_class)
    if (owed or by_class) and not lent:
        yield "it takes back from itself"


# -- claims ----------------------------------------------------------------------------------------------------------


def _stands(state: ClusterState, plan: Plan, claim: Claim, now: Instant) -> bool:
    """Has the claim neither lapsed, nor come to be about what its job may not have? Where in doubt, no."""
    job, policy = state.jobs[claim.job], state.policy
    array = state.jobs.get(job.array_of)
    limited = array is not None and array.spec.array is not None and array.spec.array.running_max > 0
    lapsed = now > claim.at + policy.preempt_notice_max_ms + policy.stop_grace_ms + CLAIM_SLACK_MS
    waits = job.state is JobState.PENDING and not job.blocked and job.not_before == NEVER
    if lapsed or limited or not waits or job.spec.demand.cpus == POISON_CPUS:
        return False
    left = NodeCapacity(state)
    nodes = left.nodes(job.spec)
    for name in {task.node for task in claim.tasks}:
        if name not in nodes:
            return False
        here = [task for task in claim.tasks if task.node == name]
        inventory = state.nodes[name].inventory
        coming = {gpu.uuid for gpu in left.gpus[name]} | _ending(state, name)
        if not coming.issuperset(uuid for task in here for uuid in task.gpus):
            return False
        if (
            sum(task.cpus for task in here) > inventory.cpus
            or sum(task.memory_mb for task in here) > inventory.memory_mb
        ):
            return False
    more = count(state)
    for action in plan.actions:
        other = state.jobs.get(action.array or action.job)
        if isinstance(action, Place) and action.job != claim.job and other is not None:
            more.hold(other.spec, wants(other.spec.demand))
    more.hold(job.spec, wants(job.spec.demand))
    free = left.free + count(state).held_milli - more.held_milli
    return not any(limit_faults(state, more, job.spec, free))


def _ending(state: ClusterState, node: NodeName) -> set[GpuUuid]:
    held = state.indexes.held.get(node, {})
    return {uuid for key, task in held.items() if state.jobs[key[0]].state is JobState.STOPPING for uuid in task.gpus}


def _is_all_there(left: NodeCapacity, claim: Claim) -> bool:
    for name in {task.node for task in claim.tasks}:
        here = [task for task in claim.tasks if task.node == name]
        cpus, memory_mb = left.rest[name]
        free = {gpu.uuid for gpu in left.gpus[name]}
        if not free.issuperset(uuid for task in here for uuid in task.gpus):
            return False
        if sum(task.cpus for task in here) > cpus or sum(task.memory_mb for task in here) > memory_mb:
            return False
    return True


# -- reservations ----------------------------------------------------------------------------------------------------


def _left_at(state: ClusterState, plan: Plan, name: NodeName, first: Reservation, now: Instant) -> tuple[int, int, int]:
    """GPUs, CPUs and memory of a node that nobody holds at the time of a reservation, if all end by their limits."""
    node = state.nodes[name]
    strays = {uuid for stray in node.strays for uuid in stray.gpus}
    taken: list[TaskPlacement] = []
    for (job_id, _, _), placement in state.indexes.held.get(name, {}).items():
        if _ends(state, state.jobs[job_id], now) > first.at:
            taken.append(placement)
    for action in plan.actions:
        job = state.jobs[action.array or action.job]
        over = now + job.spec.time_limit_ms + state.policy.stop_grace_ms
        if isinstance(action, Preempt) or over > first.at:
            taken += [task for task in action.tasks if task.node == name]
    started = {action.job for action in plan.actions}
    for claim in state.claims.values():
        limit_ms = state.jobs[claim.job].spec.time_limit_ms + state.policy.stop_grace_ms
        over = max((each.at for each in plan.reservations if each.job == claim.job), default=now) + limit_ms
        if claim.job not in started and over > first.at and _stands(state, plan, claim, now):
            taken += [task for task in claim.tasks if task.node == name]
    gone = strays.union(*[task.gpus for task in taken])
    gpus = sum(gpu.uuid not in gone for gpu in node.inventory.gpus)
    inventory = node.inventory
    cpus = inventory.cpus - sum(task.cpus for task in taken)
    return gpus, cpus, inventory.memory_mb - sum(task.memory_mb for task in taken)


def _has_shrunk(state: ClusterState, name: NodeName) -> bool:
    """Does a node hold more than it has? What its ends will free isn't known then."""
    held = sum(task.cpus for task in state.indexes.held.get(name, {}).values())
    return held > state.nodes[name].inventory.cpus


def _ends(state: ClusterState, job: Job, now: Instant) -> Instant:
    """When a live job has ended at the latest; a start that takes long isn't foreseen."""
    attempt = job.live_attempt
    assert attempt is not None, "it holds something"
    return latest_end(job, state.policy, now if attempt.stop else attempt.placed_at, state.clock_moved_ms)


def _tasks(gpus: int, cpus: int, memory_mb: int, demand: Demand) -> int:
    most = [demand.tasks_per_node or demand.tasks]
    needed: Mapping[int, int] = {0: demand.gpu_count, 1: demand.cpus, 2: demand.memory_mb}
    most += [max(0, has) // needed[at] for at, has in enumerate((gpus, cpus, memory_mb)) if needed[at]]
    return min(most)
