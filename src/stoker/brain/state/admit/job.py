"""May this job be submitted or cancelled, and what does a report about a task change?"""

from collections.abc import Callable

from stoker.brain.domain.errors import Refusal, refuse
from stoker.brain.domain.ids import JobId, NodeName
from stoker.brain.domain.instruction import TaskKey
from stoker.brain.domain.job import Job, StopCause, Task
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.domain.node import Stray
from stoker.brain.domain.reason import Reason, ReasonCode
from stoker.brain.domain.units import NEVER, Instant
from stoker.brain.state.admit.spec import admit_specs
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.commands import Cancel, ReportEnding, ReportFinished, ReportStarted, Submit
from stoker.brain.state.ending import end_tasks
from stoker.brain.state.events.job import AttemptStopping, JobFinished, JobSubmitted, TaskStarted
from stoker.brain.state.events.node import StraysFound
from stoker.brain.state.events.union import Event

Answer = tuple[Event, ...] | Refusal


def submit(state: ClusterState, command: Submit, ids: Callable[[], str]) -> Answer:
    """All of the jobs or none."""
    specs = admit_specs(state, command.specs)
    if isinstance(specs, Refusal):
        return specs
    first = state.next_job_id
    return tuple(JobSubmitted(job=JobId(first + i), uid=ids(), spec=spec) for i, spec in enumerate(specs))


def find_job(state: ClusterState, job: JobId) -> Job | Refusal:
    found = state.jobs.get(job)
    if found is not None:
        return found
    if job < state.next_job_id:
        return refuse(
            "job_forgotten",
            f"job {job} ended so long ago that its record is gone",
            f"the newest {state.policy.ended_jobs_max} ended jobs are kept; `stoker list` shows them",
            job_id=job,
        )
    return refuse("job_unknown", f"there is no job {job}", "`stoker list` shows the jobs there are", job_id=job)


def cancel(state: ClusterState, command: Cancel) -> Answer:
    job = find_job(state, command.job)
    if isinstance(job, Refusal):
        return job
    if job.is_final:
        return refuse(
            "job_ended",
            f"job {job.id} has already ended: {job.state}",
            "nothing is left to cancel",
            job_id=job.id,
            state=job.state.value,
        )
    attempt = job.live_attempt
    if attempt is None:
        reason = Reason(ReasonCode.CANCELLED, {"by": command.by})
        return (JobFinished(job=job.id, state=JobState.CANCELLED, reason=reason),)
    if attempt.stop is not None and attempt.stop.cause is not StopCause.MEMBER_ENDED:
        return ()
    return (AttemptStopping(job=job.id, attempt=attempt.number, cause=StopCause.CANCELLED),)


def report_started(state: ClusterState, command: ReportStarted) -> Answer:
    key = command.started.key
    task = _open_task(state, key, command.node)
    if task is None:
        return _stray_started(state, command.node, key)
    if task.started_at != NEVER:
        return ()
    return (TaskStarted(job=key.job, attempt=key.attempt, rank=key.rank),)


def _stray_started(state: ClusterState, name: NodeName, key: TaskKey) -> Answer:
    """A start that isn't live any more, unless we have its end already: the node is told to stop it."""
    node = state.nodes.get(name)
    if node is None or node.forgotten or _was_ended(state, key):
        return ()
    if any((stray.job, stray.attempt, stray.rank) == (key.job, key.attempt, key.rank) for stray in node.strays):
        return ()
    stray = Stray(job=key.job, attempt=key.attempt, rank=key.rank, gpus=())
    return (StraysFound(node=name, strays=(*node.strays, stray)),)


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
        events.append(StraysFound(node=node.name, strays=rest))
    if _open_task(state, key, finished.node) is not None:
        events.extend(end_tasks(state.jobs[key.job], {key.rank: finished.end}, now, state.policy))
    return tuple(events)


def _is(stray: Stray, key: TaskKey) -> bool:
    return (stray.job, stray.attempt, stray.rank) == (key.job, key.attempt, key.rank)


def _open_task(state: ClusterState, key: TaskKey, node: NodeName) -> Task | None:
    """The task of that key if it is live, holds something, and is this node's to speak of."""
    job = state.jobs.get(key.job)
    attempt = job.live_attempt if job else None
    if attempt is None or attempt.number != key.attempt or not 0 <= key.rank < len(attempt.tasks):
        return None
    task = attempt.tasks[key.rank]
    return task if task.end is None and task.placement.node == node else None


def _was_ended(state: ClusterState, key: TaskKey) -> bool:
    """Does the ledger hold a proved end of this very task? Then a `started` that comes now is only late."""
    job = state.jobs.get(key.job)
    if job is None or not 1 <= key.attempt <= len(job.attempts):
        return False
    tasks = job.attempts[key.attempt - 1].tasks
    end = tasks[key.rank].end if 0 <= key.rank < len(tasks) else None
    return end is not None and end.proved
