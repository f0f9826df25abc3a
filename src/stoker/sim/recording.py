"""Recording of a cluster's life for a replay: what came from outside, and how long each job really ran.

It is made of the log of a control plane (the snapshot it begins with, and the facts after it), or of the state in a
backup, which has no facts: then those that led to its records are put together again.

Rules: R1  a job's attempts that ended by themselves are its runs, from the start of the last task to the end, with exit
           code; what a node's loss cut off is no run; what a person or a limit ended has no end of its own
       R2  a job that ran and hasn't ended by itself is given the time that it has had, and is not compared
       R3  a job that never ran nor ended is left out: nobody knows how long it would take
Limits: a backup holds the ended jobs that the state still remembers (`policy.ended_jobs_max`), and nodes as they were
        then; members of arrays whose records had gone are left out.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from stoker.brain.domain.array import Spans, count_of, difference, indexes_of, member_id, spans_of
from stoker.brain.domain.errors import StokerError, refusal_error
from stoker.brain.domain.ids import CONTROL, JobId, Position, node_principal
from stoker.brain.domain.job import Attempt, EndCause, Job, JobSpec
from stoker.brain.domain.lifecycle import JobState, Outcome
from stoker.brain.domain.node import Node
from stoker.brain.domain.units import NEVER, Instant
from stoker.brain.state.apply.dispatch import apply
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.codec import Fact, decode_fact, load_snapshot
from stoker.brain.state.events import job as jobs
from stoker.brain.state.events import leadership, node, partition, secret, tenant
from stoker.brain.state.events.union import Event
from stoker.sim.trace import Trace, TraceJob, trace_of
from stoker.sim.virtual_cluster import Run

INTERRUPTED: Final = frozenset({Outcome.NODE_FAILED.value, Outcome.LOST.value, Outcome.PORT_TAKEN.value, "preempted"})
"""Outcomes of attempts that ended through no doing of the job's or of a person's: the same work is done again."""
_RECOVER_HINT: Final = "see docs/howto/recover-a-damaged-log.md, or replay a backup"
_OWN: Final = frozenset({Outcome.SUCCEEDED, Outcome.FAILED, Outcome.OUT_OF_MEMORY, Outcome.START_FAILED})


class RecordedJob(msgspec.Struct, frozen=True, kw_only=True):
    """Record of a job or a member of an array, and how its attempts ran."""

    job: Job
    """The newest record."""
    runs: tuple[Run | None, ...]
    """Of the attempts that weren't interrupted, in order. None = a person or a limit ended it."""
    is_whole: bool
    """Whether it ended by itself, so that it can be compared (R2)."""


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of a log in order, the state that they begin from, and the jobs that ran."""

    source: str
    chunks: Sequence[bytes]
    """Of the snapshot that it begins with; empty = it begins with nothing."""
    facts: Sequence[Fact]
    jobs: Mapping[JobId, RecordedJob]
    """Those that ran or ended, members of arrays among them; arrays themselves are not."""
    ends_at: Instant

    def is_left_out(self, job: JobId, spec: JobSpec) -> bool:
        """Return whether it is unknown how long a job would run (R3), or each member of an array."""
        return (
            job not in self.jobs
            if spec.array is None
            else count_of(self.members_left_out(job, spec)) == spec.array.count
        )

    def members_left_out(self, array: JobId, spec: JobSpec) -> Spans:
        """Return the indexes of the members of an array of which the same is unknown."""
        assert spec.array is not None, f"{array} is no array"
        known = [index for index in indexes_of(spec.array.indexes) if member_id(array, spec.array, index) in self.jobs]
        return difference(spec.array.indexes, spans_of(known))

    def begin(self) -> ClusterState:
        """Return a fresh copy of the state that it begins from."""
        return load_snapshot(self.chunks) if self.chunks else ClusterState()


def recorded(source: str, chunks: Sequence[bytes], records: Sequence[tuple[Position, bytes]]) -> Recording:
    """Return the recording of a log: the snapshot that it begins with (empty = none), and all records after it.

    Raises: StokerError `log_damaged`, `store_too_new` or `bad_trace`.
    """
    facts: list[Fact] = []
    try:
        state = load_snapshot(chunks) if chunks else ClusterState()
    except ValueError as fault:
        raise _too_new(source, f"its snapshot: {fault}") from fault
    ended: dict[JobId, Job] = {}
    for position, record in records:
        try:
            fact = decode_fact(record)
        except ValueError as fault:
            raise _too_new(source, f"record {position}: {fault}") from fault
        try:
            apply(state, fact, position)
        except (ValueError, AssertionError, LookupError) as fault:
            message = f"record {position} of the log in {source} can't be replayed: {fault!r}"
            raise refusal_error(
                "log_damaged", message, "see docs/howto/recover-a-damaged-log.md", path=source
            ) from fault
        facts.append(fact)
        if isinstance(fact.event, jobs.JobFinished):
            ended[fact.event.job] = state.jobs[fact.event.job]
    return _recording(source, chunks, facts, state, ended)


def recorded_state(source: str, chunks: Sequence[bytes]) -> Recording:
    """Return the recording that a backup's state allows. Raises: StokerError `store_too_new` or `bad_trace`."""
    try:
        state = load_snapshot(chunks)
    except ValueError as fault:
        raise _too_new(source, f"its state: {fault}") from fault
    facts = sorted(_facts_behind(state), key=lambda fact: fact.at)
    ended = {job.id: job for job in state.jobs.values() if job.is_final}
    return _recording(source, (), facts, state, ended)


def as_trace(recording: Recording) -> Trace:
    """Return the jobs that ran to their end on whole GPUs as a trace; all others are counted as left out."""
    whole = [each for _, each in sorted(recording.jobs.items()) if each.is_whole and each.runs[-1] is not None]
    made = tuple(
        TraceJob(
            id=each.job.label,
            line=0,
            submit_ms=each.job.submitted_at,
            duration_ms=each.runs[-1].duration_ms if each.runs[-1] else 0,
            gpus=each.job.spec.demand.gpu_count,
            tasks=each.job.spec.demand.tasks,
            knows_tasks=True,
            cpus=each.job.spec.demand.cpus,
            memory_mb=each.job.spec.demand.memory_mb,
            priority=each.job.spec.priority,
            tenant=each.job.spec.tenant,
        )
        for each in whole
        if each.job.spec.demand.gpu_count
    )
    return trace_of(recording.source, made, left_out=len(recording.jobs) - len(made))


def _too_new(source: str, what: str) -> StokerError:
    message = f"{source} is unknown to this version, by {what}"
    return refusal_error("store_too_new", message, "replay it with the version that wrote it, or a newer one")


def _recording(
    source: str, chunks: Sequence[bytes], facts: Sequence[Fact], state: ClusterState, ended: Mapping[JobId, Job]
) -> Recording:
    last = max(state.last_at, facts[-1].at if facts else NEVER)
    live = {job.id: job for job in state.jobs.values() if not job.is_final and job.attempts}
    found = {job.id: _recorded_job(job, last) for job in (*ended.values(), *live.values()) if job.members is None}
    if not any(each.is_whole for each in found.values()):
        message, hint = "no job in it ran to its end", "name the data folder of a control plane, or a backup of one"
        raise refusal_error("bad_trace", f"{source}: {message}", hint, file=source, line=0, field="")
    return Recording(source=source, chunks=chunks, facts=facts, jobs=found, ends_at=last)


def _facts_behind(state: ClusterState) -> Iterator[Fact]:
    """The facts that led to the records of a state, as far as they tell."""
    plain = [job for job in state.jobs.values() if not job.array_of]
    nodes = [each for each in state.nodes.values() if not each.forgotten]
    begin = min((*(job.submitted_at for job in plain), *(each.registered_at for each in nodes)), default=NEVER)
    set_up: tuple[Event, ...] = (
        leadership.ClusterCreated(cluster_id=state.cluster_id),
        leadership.EpochBegan(epoch=state.epoch),
        leadership.PolicySet(policy=state.policy),
        tenant.PoolsSet(pools=state.pools, configured=state.pools_configured),
        *(tenant.TenantDefined(tenant=each) for each in state.tenants.values()),
        *(partition.PartitionDefined(partition=each) for each in state.partitions.values()),
        *(secret.SecretSet(secret=each) for each in state.secrets.values()),
    )
    for event in set_up:
        yield Fact(at=begin, by=CONTROL, event=event)
    for each in nodes:
        for at, event in _node_facts(each):
            yield Fact(at=at, by=node_principal(each.name), event=event)
    for job in sorted(plain, key=lambda job: job.id):
        spec = replace(job.spec, hold=False) if job.attempts or job.is_final else job.spec
        submitted = jobs.JobSubmitted(job=job.id, uid=job.uid, spec=spec, met=job.met)
        yield Fact(at=job.submitted_at, by=job.by, event=submitted)
    for job in state.jobs.values():
        yield from _cancel_facts(job)


def _node_facts(each: Node) -> Iterator[tuple[Instant, Event]]:
    at = each.registered_at
    yield at, node.NodeRegistered(node=each.name, inventory=each.inventory)
    yield at, node.NodeReachable(node=each.name)
    if each.labels:
        yield at, node.NodeLabelled(node=each.name, labels=each.labels)
    if each.taints or each.taints_off:
        yield at, node.NodeTainted(node=each.name, taints=each.taints, off=each.taints_off)
    if each.drain is not None:
        yield max(at, each.drained_at), node.NodeDrained(node=each.name, reason=each.drain, by=each.drained_by)
    if not each.reachable:
        yield max(at, each.silent_since), node.NodeUnreachable(node=each.name, since=each.silent_since)


def _cancel_facts(job: Job) -> Iterator[Fact]:
    if job.state is not JobState.CANCELLED or job.members is not None:
        return
    stop = job.attempts[-1].stop if job.attempts else None
    at, by = (stop.at, stop.by) if stop is not None else (job.ended_at, job.by)
    yield Fact(at=at, by=by, event=jobs.JobFinished(job=job.id, state=JobState.CANCELLED))


def _recorded_job(job: Job, last: Instant) -> RecordedJob:
    runs: list[Run | None] = []
    longest_ms = 0
    for attempt in job.attempts:
        began = attempt.started_at if attempt.started_at != NEVER else attempt.placed_at
        ran_ms = (attempt.ended_at if attempt.outcome is not None else last) - began
        longest_ms = max(longest_ms, ran_ms)
        if attempt.outcome in _OWN:
            runs.append(_run(attempt, ran_ms))
        elif attempt.outcome is not None and attempt.outcome not in INTERRUPTED:
            runs.append(None)
    if not job.attempts:
        return RecordedJob(job=job, runs=(), is_whole=False)
    last_outcome = job.attempts[-1].outcome
    is_whole = job.is_final and (last_outcome in _OWN or last_outcome is Outcome.TIMEOUT)
    if not is_whole and last_outcome is not Outcome.CANCELLED:
        runs.append(Run(duration_ms=longest_ms))
    return RecordedJob(job=job, runs=tuple(runs), is_whole=is_whole)


def _run(attempt: Attempt, ran_ms: int) -> Run:
    """The run of an attempt that ended by itself. What couldn't start fails, once it had its GPUs for as long."""
    ends = [task.end for task in attempt.tasks if task.end is not None]
    if attempt.outcome is Outcome.SUCCEEDED or not ends:
        return Run(duration_ms=ran_ms)
    end = next((each for each in ends if not each.clean and each.cause is EndCause.EXITED), None)
    if end is None:
        return Run(duration_ms=ran_ms, exit_code=1)
    return Run(duration_ms=ran_ms, exit_code=end.exit_code, signal=end.signal, oom=end.oom)
