"""Replay of a recording: the same submissions, nodes and orders of people, decided anew by the engine of today.

Rules: P1  facts from outside come in at their times: submissions with their ids, nodes that join, fall silent, return
           or are drained, tenants, partitions and policies; what the control plane concluded is concluded anew
       P2  orders of people are given at their times, and those that no longer apply are counted: the job may have
           ended already, or not be running yet
       P3  each job runs as long as it really did (`recording`), wherever and whenever it starts now
       P4  then and now are compared over the same jobs: those that ended by themselves in both
Limits: a task starts in the instant in which it is placed, so replayed jobs start as much earlier as their starts took.
        Orphan tasks and failed starts of the time aren't replayed; pauses of nodes are.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import msgspec

from stoker.brain.domain.array import JobRef, count_of
from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.ids import CONTROL, JobId, NodeName, Position
from stoker.brain.domain.job import Job, StopCause
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.units import NEVER, SECOND_MS, Instant
from stoker.brain.state import commands
from stoker.brain.state.codec import Fact
from stoker.brain.state.events import access, job, leadership, node, partition, secret, tenant
from stoker.brain.state.events.union import Event
from stoker.sim.outcome import Progress, percentile
from stoker.sim.recording import INTERRUPTED, Recording
from stoker.sim.virtual_cluster import Run, VirtualCluster

SAME_MS: Final = 1 * SECOND_MS
"""Starts that differ by no more are the same: a real start takes some of it."""
ChangePolicy = Callable[[Policy], Policy]

_AS_IT_IS: Final = (
    leadership.ClusterCreated,
    leadership.EpochBegan,
    leadership.ClockMoved,
    node.NodeLabelled,
    node.NodeTainted,
    node.NodePaused,
    partition.PartitionDefined,
    tenant.TenantDefined,
    tenant.PoolsSet,
    secret.SecretSet,
    secret.SecretDeleted,
)
"""Facts that hold whatever the jobs do (P1)."""


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Waiting and completion of the compared jobs, in one of the two lives."""

    wait_mean_s: float
    """From submission to the first start."""
    wait_p99_s: float
    jct_mean_s: float
    """From submission to the end."""
    jct_p99_s: float
    makespan_s: float
    """From the first submission to the last end."""
    requeues: int
    """Attempts that were interrupted and followed by another."""


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of a replay, and what it is about."""

    source: str
    facts: int
    begins_at_ms: Instant
    ends_at_ms: Instant
    jobs: int
    """That were submitted or were there at the beginning, a member of an array counted as a job."""
    compared: int
    cancelled: int
    """Jobs that a person ended, then; they take part until then, and aren't compared."""
    unfinished: int
    """Jobs that hadn't ended by themselves when the recording did; they take part with the time they had had."""
    left_out: int
    """Jobs that never ran in the recording."""
    never_ended: int
    """Jobs that ran to their end then, and don't now."""
    orders: int
    """Orders of people that were given again."""
    orders_refused: int
    then: Figures
    now: Figures
    earlier: int
    """Jobs that start more than a second earlier now."""
    later: int


def replay(recording: Recording, change: ChangePolicy, progress: Progress) -> Replay:
    """Run a recording again under a changed policy; `progress` is told of facts."""
    return _ReplayRun(recording, change).run(progress)


class _ReplayRun:
    """One replay in the making."""

    def __init__(self, recording: Recording, change: ChangePolicy) -> None:
        self._recording = recording
        self._change = change
        state = recording.begin()
        first = recording.facts[0].at if recording.facts else recording.ends_at
        self._begins_at = Instant(max(first, state.last_at) if recording.chunks else first)
        self._cluster = VirtualCluster(state, self._begins_at, 0, self._run_of, self._finished)
        self._ended: dict[JobId, Job] = {}
        self._left_out = self._orders = self._refused = 0
        self._submitted: set[JobId] = set()
        self._rebooted: set[NodeName] = set()

    def run(self, progress: Progress) -> Replay:
        cluster = self._cluster
        for fact in self._recording.facts:
            cluster.at(fact.at, partial(self._happen, fact, progress))
        self._take_over()
        cluster.run(lambda: False)
        return self._outcome()

    def _take_over(self) -> None:
        """Go on with what runs and waits in the state that the recording begins from."""
        cluster, state = self._cluster, self._cluster.state
        changed = self._change(state.policy)
        if state.cluster_id and changed != state.policy:
            cluster.apply([leadership.PolicySet(policy=changed)], CONTROL)
        for name in sorted(state.nodes):
            if not state.nodes[name].reachable and not state.nodes[name].forgotten:
                cluster.silence(name, dies=False)
        for record in sorted(state.jobs.values(), key=lambda each: each.id):
            if record.is_final:
                continue
            self._submitted.add(record.id)
            if record.members is None and record.live_attempt is not None:
                cluster.go_on(record.id)
            else:
                self._leave_out(record.id, record)

    def _leave_out(self, job_id: JobId, record: Job) -> None:
        """Take a job, or members of an array, out of the queue of which it isn't known how long they would run."""
        spec = record.spec
        if spec.array is None or record.array_of:
            if job_id in self._recording.jobs:
                return
            target, number = JobRef(job_id), 1
        else:
            spans = self._recording.members_left_out(job_id, spec)
            target, number = JobRef(job_id, spans), count_of(spans)
        if number:
            self._left_out += number
            self._order(commands.Cancel(by=CONTROL, target=target), counts=False)

    # -- what comes from outside -------------------------------------------------------------------------------------

    def _happen(self, fact: Fact, progress: Progress) -> None:
        progress(1)
        event, cluster = fact.event, self._cluster
        match event:
            case job.JobSubmitted():
                self._submit(fact, event)
            case leadership.PolicySet():
                cluster.apply([leadership.PolicySet(policy=self._change(event.policy))], fact.by)
            case leadership.ClusterRestored():
                self._skip_ids(event.next_job_id)
            case tenant.TenantDeleted():
                self._order(commands.DeleteTenant(by=fact.by, name=event.name), counts=False)
            case partition.PartitionDeleted():
                self._order(commands.DeletePartition(by=fact.by, name=event.name), counts=False)
            case _ if isinstance(event, _AS_IT_IS):
                cluster.apply([event], fact.by)
            case _ if isinstance(event, access.AccessEvent):
                pass  # who may ask changes nothing of what is decided
            case _ if isinstance(event, node.NodeEvent):
                self._of_node(fact, event)
            case _:
                order = _order_of(fact, cluster.state.locate)
                if order is not None and not self._is_of_members(event):
                    self._order(order)

    def _is_of_members(self, event: Event) -> bool:
        """Whether a fact tells of an array what others tell of its members."""
        record = self._cluster.state.jobs.get(event.job) if isinstance(event, job.JobReturned) else None
        return record is not None and record.members is not None

    def _submit(self, fact: Fact, event: job.JobSubmitted) -> None:
        """Let a job come in with its id; those that are left out keep theirs."""
        if self._recording.is_left_out(event.job, event.spec):
            self._left_out += 1 if event.spec.array is None else event.spec.array.count
            return
        self._skip_ids(event.job)
        self._submitted.add(event.job)
        self._cluster.apply([event], fact.by)
        if event.spec.array is not None:
            self._leave_out(event.job, self._cluster.state.jobs[event.job])

    def _skip_ids(self, following: JobId) -> None:
        state = self._cluster.state
        if state.next_job_id < following:
            skipped = leadership.ClusterRestored(backup=Position(state.position), next_job_id=following)
            self._cluster.apply([skipped], CONTROL)

    def _of_node(self, fact: Fact, event: node.NodeEvent) -> None:
        cluster, name = self._cluster, event.node
        known = cluster.state.nodes.get(name)
        match event:
            case node.NodeRegistered():
                rebooted = known is not None and known.inventory.boot_id != event.inventory.boot_id
                if rebooted and known is not None and known.reachable:
                    cluster.join(name, event.inventory)
                    return
                if rebooted:
                    self._rebooted.add(name)
                cluster.register(name, event.inventory)
            case node.NodeReachable() | node.NodeReturned():
                cluster.say_inventory(name, rebooted=name in self._rebooted)
                self._rebooted.discard(name)
            case node.NodeUnreachable():
                cluster.silence(name, dies=False)
                cluster.notice_silence(name, 0 if event.since == NEVER else max(0, fact.at - event.since))
            case node.NodeLost():
                self._order(commands.LoseSilent(by=CONTROL, node=name, silent_ms=event.silent_ms), counts=False)
            case node.NodeForgotten():
                self._order(commands.ForgetNode(by=fact.by, node=name, force=True))
            case node.NodeDrained():
                self._order(commands.DrainNode(by=fact.by, node=name, reason=event.reason))
            case node.NodeResumed():
                self._order(commands.ResumeNode(by=fact.by, node=name))
            case _:
                pass  # it follows from others, or isn't replayed

    def _order(self, command: commands.Command, *, counts: bool = True) -> None:
        """Give an order that may no longer apply (P2)."""
        self._orders += counts
        try:
            self._cluster.give(command)
        except StokerError:
            self._refused += counts

    # -- how it goes on ----------------------------------------------------------------------------------------------

    def _run_of(self, job_id: JobId, number: int) -> Run | None:
        """The run of the first attempt in the recording that isn't done yet (P3), or like the last where all are."""
        recorded = self._recording.jobs.get(job_id)
        done = sum(1 for each in self._cluster.state.jobs[job_id].attempts[:-1] if each.outcome not in INTERRUPTED)
        runs = recorded.runs if recorded is not None else ()
        return runs[min(done, len(runs) - 1)] if runs else None

    def _finished(self, event: job.JobFinished, at: Instant) -> None:
        self._ended[event.job] = self._cluster.state.jobs[event.job]

    def _outcome(self) -> Replay:
        recording = self._recording
        part = [each for number, each in sorted(recording.jobs.items()) if self._takes_part(number, each.job)]
        whole = [each.job for each in part if each.is_whole]
        pairs = [(then, self._ended[then.id]) for then in whole if _ran(self._ended.get(then.id))]
        starts = [_first_start(now) - _first_start(then) for then, now in pairs]
        cancelled = sum(1 for each in part if each.job.state is JobState.CANCELLED)
        return Replay(
            source=recording.source,
            facts=len(recording.facts),
            begins_at_ms=self._begins_at,
            ends_at_ms=recording.ends_at,
            jobs=len(part) + self._left_out,
            compared=len(pairs),
            cancelled=cancelled,
            unfinished=len(part) - len(whole) - cancelled,
            left_out=self._left_out,
            never_ended=len(whole) - len(pairs),
            orders=self._orders,
            orders_refused=self._refused,
            then=_figures([then for then, _ in pairs]),
            now=_figures([now for _, now in pairs]),
            earlier=sum(1 for each in starts if each < -SAME_MS),
            later=sum(1 for each in starts if each > SAME_MS),
        )

    def _takes_part(self, number: JobId, record: Job) -> bool:
        return number in self._submitted or record.array_of in self._submitted


def _order_of(fact: Fact, locate: Callable[[JobId], JobRef]) -> commands.Command | None:
    """The order of a person that a fact is the effect of; None = it is no such effect."""
    event, by = fact.event, fact.by
    match event:
        case job.AttemptStopping(cause=StopCause.CANCELLED):
            return commands.Cancel(by=by, target=locate(event.job))
        case job.JobFinished(state=JobState.CANCELLED, outcome=None):
            return commands.Cancel(by=by, target=locate(event.job))
        case job.AttemptStopping(cause=StopCause.REQUEUED):
            return commands.Requeue(by=by, target=locate(event.job), hold=event.hold)
        case job.JobReturned():
            return commands.Requeue(by=by, target=locate(event.job))
        case job.JobHeld():
            return commands.Hold(by=by, target=locate(event.job))
        case job.JobReleased():
            return commands.Release(by=by, target=locate(event.job))
        case job.JobUpdated():
            return commands.UpdateJob(by=by, target=locate(event.job), changes=event.changes)
        case job.MemberMade(held=True):
            return commands.Hold(by=by, target=JobRef(event.array, ((event.index, event.index, 1),)))
        case job.MembersCancelled():
            return commands.Cancel(by=by, target=JobRef(event.array, event.indexes))
        case _:
            return None


def _ran(record: Job | None) -> bool:
    return record is not None and bool(record.attempts)


def _first_start(record: Job) -> Instant:
    first = record.attempts[0]
    return first.placed_at if first.started_at == NEVER else first.started_at


def _figures(records: Sequence[Job]) -> Figures:
    """Figures of jobs, of which there is at least one unless nothing could be compared."""
    if not records:
        return Figures(wait_mean_s=0, wait_p99_s=0, jct_mean_s=0, jct_p99_s=0, makespan_s=0, requeues=0)
    waits = [_first_start(each) - each.submitted_at for each in records]
    completions = [each.ended_at - each.submitted_at for each in records]
    span = max(each.ended_at for each in records) - min(each.submitted_at for each in records)
    interrupted = [sum(1 for tried in each.attempts if tried.outcome in INTERRUPTED) for each in records]
    return Figures(
        wait_mean_s=round(sum(waits) / len(waits) / SECOND_MS, 3),
        wait_p99_s=round(percentile(waits, 99) / SECOND_MS, 3),
        jct_mean_s=round(sum(completions) / len(completions) / SECOND_MS, 3),
        jct_p99_s=round(percentile(completions, 99) / SECOND_MS, 3),
        makespan_s=span / SECOND_MS,
        requeues=sum(interrupted),
    )
