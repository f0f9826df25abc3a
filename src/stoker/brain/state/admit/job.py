"""Admission of submitted jobs and of agents' reports about tasks."""

from collections.abc import Callable, Iterator, Sequence

from stoker.brain.domain.array import ids_taken, too_many_ids
from stoker.brain.domain.demand import Shape
from stoker.brain.domain.errors import Refusal, refuse
from stoker.brain.domain.ids import JobId, NodeName, Principal, node_principal
from stoker.brain.domain.instruction import TaskKey
from stoker.brain.domain.job import EndCause, JobSpec, Task, TaskEnd
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.domain.node import OrphanTask
from stoker.brain.domain.units import NEVER, Instant
from stoker.brain.state.attempt_outcome import end_tasks
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.commands import Answer, ReportEnding, ReportFinished, ReportStarted, Submit, WithholdStart
from stoker.brain.state.events.job import AttemptStopping, JobFinished, JobSubmitted, SubmitKeyed, TaskStarted
from stoker.brain.state.events.node import NodeDrained, OrphanTasksFound
from stoker.brain.state.events.union import Event
from stoker.brain.state.leases import broken_leases, task_of
from stoker.brain.state.node_pause import ERROR_MAX, failed_start
from stoker.brain.state.validation.admission import completed, job_fault
from stoker.brain.state.validation.dependency import met_before, never_met_by_forgotten, resolve
from stoker.brain.state.validation.quota import TenantRules
from stoker.brain.state.validation.spec import in_list, list_fault
from stoker.brain.state.validation.where import never_fits


def submit(state: ClusterState, command: Submit, now: Instant, ids: Callable[[], str]) -> Answer:
    """Admit all jobs of the list or none; `ids` gives fresh UUIDs.

    A repeat under the same key answers nothing new: its jobs stand in `submit_keys`.
    """
    if command.key:
        before = _same_key(state, command)
        if before is not None:
            return before
    specs = _admitted(state, command.specs, now, command.by)
    if isinstance(specs, Refusal):
        return specs
    numbers: list[JobId] = []
    following = int(state.next_job_id)
    for spec in specs:
        numbers.append(JobId(following))
        following += ids_taken(spec.array)
    spent = too_many_ids(state.next_job_id, following - state.next_job_id)
    resolved = spent or resolve(state, specs, numbers, command.no_members)
    if isinstance(resolved, Refusal):
        return resolved
    submitted = tuple(zip(numbers, resolved, strict=True))
    ended = command.ended
    events: list[Event] = [
        JobSubmitted(job=job, uid=ids(), spec=spec, met=met_before(state, spec, ended) if ended else ())
        for job, spec in submitted
    ]
    for job, spec in submitted if ended else ():
        never = never_met_by_forgotten(state, spec, ended)
        if never is not None:
            events.append(JobFinished(job=job, state=JobState.FAILED, reason=never))
    if command.key:
        events.append(SubmitKeyed(key=command.key, digest=command.digest, jobs=tuple(numbers)))
    return tuple(events)


def _admitted(state: ClusterState, specs: Sequence[JobSpec], now: Instant, by: Principal) -> list[JobSpec] | Refusal:
    # The specs with their defaults filled in, or the first refusal.
    tenants = TenantRules(state)
    fault = list_fault(specs, state.policy) or tenants.queue_full(specs)
    if fault:
        return fault
    possible: dict[Shape, Refusal | None] = {}
    admitted: list[JobSpec] = []
    for index, spec in enumerate(specs):
        spec = completed(state, tenants, spec)
        fault = job_fault(state, tenants, spec, now, by)
        if fault is None:
            shape = spec.shape
            if shape not in possible:
                possible[shape] = never_fits(state, shape)
            fault = possible[shape]
        if fault is not None:
            return in_list(fault, index, len(specs))
        admitted.append(spec)
    return admitted


def _same_key(state: ClusterState, command: Submit) -> Answer | None:
    # None when the key wasn't used before.
    most = state.policy.submit_key_bytes_max
    if len(command.key.encode(errors="replace")) > most or not command.key.isprintable():
        return refuse(
            "bad_idempotency_key",
            f"an idempotency key has 1 to {most} bytes of printable text; this one has {len(command.key)} characters",
            "use a fresh UUID for each submit, and the same one when you repeat it",
        )
    known = state.submitted_under(command.by, command.key)
    if known is None:
        return None
    if known.digest == command.digest:
        return ()
    message = f"the key {command.key[:80]!r} was used for another submit, which made job {known.jobs[0]}"
    hint = "use a fresh key for each submit; only a repeat of the very same body may use it again"
    return refuse("idempotency_key_reused", message, hint, job_id=str(known.jobs[0]))


def report_started(state: ClusterState, command: ReportStarted) -> Answer:
    """Admit the start of a task, or note an orphan task."""
    key = command.started.key
    task = _open_task(state, key, command.node)
    if task is None:
        return _orphan_started(state, command.node, key)
    if task.started_at != NEVER:
        return ()
    return (TaskStarted(job=key.job, attempt=key.attempt, rank=key.rank),)


def _orphan_started(state: ClusterState, name: NodeName, key: TaskKey) -> Answer:
    # The node is told to stop a task that isn't live any more. A report that comes after a proved end is only late.
    node, task = state.nodes.get(name), task_of(state, key)
    if node is None or node.forgotten or (task and task.end and task.end.proved):
        return ()
    if any(_is(orphan, key) and not orphan.unproved for orphan in node.strays):
        return ()
    gpus = task.placement.gpus if task and task.placement.node == name else ()
    orphan = OrphanTask(job=key.job, attempt=key.attempt, rank=key.rank, gpus=gpus)
    rest = tuple(other for other in node.strays if not _is(other, key))
    return (*broken_leases(state, node, (key,)), OrphanTasksFound(node=name, strays=(*rest, orphan)))


def report_ending(state: ClusterState, command: ReportEnding) -> Answer:
    """Admit that the leaders of these tasks have ended."""
    events: list[Event] = []
    for key in command.keys:
        task = _open_task(state, key, command.node)
        job = state.jobs.get(key.job)
        # A gang is `stopping` when its last task is: the other tasks still run.
        if task and job and job.state is JobState.RUNNING and len(job.attempts[-1].open_tasks) == 1:
            events.append(AttemptStopping(job=key.job, attempt=key.attempt))
    return tuple(events)


def report_finished(state: ClusterState, command: ReportFinished, now: Instant) -> Answer:
    """Admit the end of a task; a late or repeated one is acknowledged and changes only the node's orphan tasks."""
    finished = command.finished
    key, events = finished.key, list[Event]()
    node = state.nodes.get(finished.node)
    if node and any(_is(orphan, key) for orphan in node.strays):
        rest = tuple(orphan for orphan in node.strays if not _is(orphan, key))
        events.append(OrphanTasksFound(node=node.name, strays=rest))
    if _open_task(state, key, finished.node) is not None:
        job = state.jobs[key.job]
        events.extend(end_tasks(job, {key.rank: finished.end}, now, state.policy))
        if finished.end.node_fault:
            events.extend(_drained(state, finished.node, finished.end.node_fault))
        else:
            events.extend(failed_start(state, finished.node, job, finished.end, now))
    return tuple(events)


def _drained(state: ClusterState, name: NodeName, fault: str) -> Iterator[NodeDrained]:
    """A node that its own site's programs say is unfit gets no new work until a person resumes it."""
    if state.nodes[name].drain is None:
        yield NodeDrained(node=name, reason=fault[:ERROR_MAX], by=node_principal(name))


def withhold_start(state: ClusterState, command: WithholdStart, now: Instant) -> Answer:
    """Admit that a task was never sent to its node: it ends, and its job is tried again later (E9 of outcomes)."""
    key = command.key
    job = state.jobs.get(key.job)
    attempt = job.live_attempt if job else None
    if job is None or attempt is None or attempt.number != key.attempt or attempt.stop is not None:
        return ()
    task = attempt.tasks[key.rank]
    if task.end is not None or task.started_at != NEVER:
        return ()
    end = TaskEnd(cause=EndCause.NEVER_STARTED, at=now, error=command.error)
    return end_tasks(job, {key.rank: end}, now, state.policy)


def _is(orphan: OrphanTask, key: TaskKey) -> bool:
    return orphan.key == (key.job, key.attempt, key.rank)


def _open_task(state: ClusterState, key: TaskKey, node: NodeName) -> Task | None:
    # A node speaks only of its own tasks that are live and hold something.
    job = state.jobs.get(key.job)
    attempt = job.live_attempt if job else None
    if attempt is None or attempt.number != key.attempt or not 0 <= key.rank < len(attempt.tasks):
        return None
    task = attempt.tasks[key.rank]
    return task if task.end is None and task.placement.node == node else None
