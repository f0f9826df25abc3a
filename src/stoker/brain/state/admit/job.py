"""May this job be submitted or cancelled, and what does a report about a task change?"""

from collections.abc import Callable

from stoker.brain.domain.array import JobRef, contains, ids_taken, spans_text, too_many_ids
from stoker.brain.domain.errors import Refusal, refuse
from stoker.brain.domain.ids import GpuUuid, JobId, NodeName
from stoker.brain.domain.instruction import TaskKey
from stoker.brain.domain.job import Job, Task
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.domain.node import OrphanTask
from stoker.brain.domain.units import NEVER, Instant
from stoker.brain.state.admit.dependency import never_was, resolve
from stoker.brain.state.admit.spec import admit_specs
from stoker.brain.state.attempt_outcome import end_tasks
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.commands import ReportEnding, ReportFinished, ReportStarted, Submit
from stoker.brain.state.events.job import AttemptStopping, JobSubmitted, SubmitKeyed, TaskStarted
from stoker.brain.state.events.node import OrphanTasksFound
from stoker.brain.state.events.union import Event
from stoker.brain.state.leases import broken_leases, task_of

Answer = tuple[Event, ...] | Refusal


def submit(state: ClusterState, command: Submit, now: Instant, ids: Callable[[], str]) -> Answer:
    """All of the jobs or none. A repeat under the same key answers nothing new: its jobs stand in `submit_keys`."""
    if command.key:
        before = _same_key(state, command)
        if before is not None:
            return before
    specs = admit_specs(state, command.specs, now)
    if isinstance(specs, Refusal):
        return specs
    numbers: list[JobId] = []
    following = int(state.next_job_id)
    for spec in specs:
        numbers.append(JobId(following))
        following += ids_taken(spec.array)
    spent = too_many_ids(state.next_job_id, following - state.next_job_id)
    resolved = spent or resolve(state, specs, numbers)
    if isinstance(resolved, Refusal):
        return resolved
    events: list[Event] = []
    for job, spec in zip(numbers, resolved, strict=True):
        events.append(JobSubmitted(job=job, uid=ids(), spec=spec))
    siblings = dict.fromkeys(numbers)
    for job, spec in zip(numbers, resolved, strict=True):
        lost = never_was(state, job, spec, siblings) if spec.after else None
        if lost is not None:
            events.append(lost)
    if command.key:
        events.append(SubmitKeyed(key=command.key, digest=command.digest, jobs=tuple(numbers)))
    return tuple(events)


def _same_key(state: ClusterState, command: Submit) -> Answer | None:
    """The answer to a key that was used before; None when it wasn't."""
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
    return refuse(
        "idempotency_key_reused",
        f"the key {command.key[:80]!r} was used for another submit, which made job {known.jobs[0]}",
        "use a fresh key for each submit; only a repeat of the very same body may use it again",
        job_id=str(known.jobs[0]),
    )


def find_job(state: ClusterState, ref: JobRef) -> Job | Refusal:
    """The job or the one member; a refusal says whether it never was or is forgotten."""
    found = state.find(ref)
    if found is not None:
        return found
    array = state.jobs.get(ref.job)
    if array is None and state.locate(ref.job).members is not None:
        return refuse("not_an_array", f"job {ref.job} is a member of an array", f"say {ref.job} alone", job_id=str(ref))
    if ref.job < state.next_job_id and array is None:
        return refuse(
            "job_forgotten",
            f"job {ref} ended so long ago that its record is gone",
            f"the newest {state.policy.ended_jobs_max} ended jobs are kept; `stoker list` shows them",
            job_id=str(ref),
        )
    if array is not None and (array.members is None or array.spec.array is None):
        return refuse("not_an_array", f"job {ref.job} is no array", f"say {ref.job} alone", job_id=str(ref))
    if array is not None and array.spec.array is not None and ref.members is not None:
        if contains(array.spec.array.indexes, ref.members[0][0]):
            return refuse(
                "job_forgotten",
                f"member {ref} ended so long ago that its record is gone",
                f"the newest {state.policy.ended_jobs_max} ended jobs are kept",
                job_id=str(ref),
            )
        return refuse(
            "member_unknown",
            f"array {ref.job} has no member {spans_text(ref.members)[:80]}",
            f"its members are {spans_text(array.spec.array.indexes)[:80]}",
            job_id=str(ref),
        )
    return refuse("job_unknown", f"there is no job {ref}", "`stoker list` shows the jobs there are", job_id=str(ref))


def report_started(state: ClusterState, command: ReportStarted) -> Answer:
    key = command.started.key
    task = _open_task(state, key, command.node)
    if task is None:
        return _orphan_started(state, command.node, key)
    if task.started_at != NEVER:
        return ()
    return (TaskStarted(job=key.job, attempt=key.attempt, rank=key.rank),)


def _orphan_started(state: ClusterState, name: NodeName, key: TaskKey) -> Answer:
    """A start that isn't live any more, unless we have its end already: the node is told to stop it."""
    node = state.nodes.get(name)
    if node is None or node.forgotten or _was_ended(state, key):
        return ()
    if any(_is(stray, key) and not stray.unproved for stray in node.strays):
        return ()
    stray = OrphanTask(job=key.job, attempt=key.attempt, rank=key.rank, gpus=_gpus_there(state, name, key))
    others = tuple(stray for stray in node.strays if not _is(stray, key))
    return (*broken_leases(state, node, (key,)), OrphanTasksFound(node=name, strays=(*others, stray)))


def report_ending(state: ClusterState, command: ReportEnding) -> Answer:
    events: list[Event] = []
    for key in command.keys:
        task = _open_task(state, key, command.node)
        job = state.jobs.get(key.job)
        # A gang is `stopping` when the last of it is: the others still run.
        if task and job and job.state is JobState.RUNNING and len(job.attempts[-1].open_tasks) == 1:
            events.append(AttemptStopping(job=key.job, attempt=key.attempt))
    return tuple(events)


def report_finished(state: ClusterState, command: ReportFinished, now: Instant) -> Answer:
    """A late or repeated end is acknowledged like any other and changes nothing but a node's strays."""
    finished = command.finished
    key, events = finished.key, list[Event]()
    node = state.nodes.get(finished.node)
    if node and any(_is(stray, key) for stray in node.strays):
        rest = tuple(stray for stray in node.strays if not _is(stray, key))
        events.append(OrphanTasksFound(node=node.name, strays=rest))
    if _open_task(state, key, finished.node) is not None:
        events.extend(end_tasks(state.jobs[key.job], {key.rank: finished.end}, now, state.policy))
    return tuple(events)


def _is(stray: OrphanTask, key: TaskKey) -> bool:
    return stray.key == (key.job, key.attempt, key.rank)


def _open_task(state: ClusterState, key: TaskKey, node: NodeName) -> Task | None:
    """The task of that key if it is live, holds something, and is this node's to speak of."""
    job = state.jobs.get(key.job)
    attempt = job.live_attempt if job else None
    if attempt is None or attempt.number != key.attempt or not 0 <= key.rank < len(attempt.tasks):
        return None
    task = attempt.tasks[key.rank]
    return task if task.end is None and task.placement.node == node else None


def _gpus_there(state: ClusterState, node: NodeName, key: TaskKey) -> tuple[GpuUuid, ...]:
    """Those that the ledger gave this very task, as far as it remembers."""
    task = task_of(state, key)
    return task.placement.gpus if task is not None and task.placement.node == node else ()


def _was_ended(state: ClusterState, key: TaskKey) -> bool:
    """Does the ledger hold a proved end of this very task? Then a `started` that comes now is only late."""
    task = task_of(state, key)
    return task is not None and task.end is not None and task.end.proved
