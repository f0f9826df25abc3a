"""What is there to tell about one job, as `key  value` lines?

Short by default; the whole story (`-o wide`) adds what few ask for: identity, environment, and times and use of every
rank.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from stoker.cli.display.formatting import duration, members_text, ran, span_ms, user_of, waited

if TYPE_CHECKING:
    from stoker.wire.rest.attempt import AttemptView, TaskRunView
    from stoker.wire.rest.job import JobView

Pairs = Iterator[tuple[str, object]]


def job_pairs(job: "JobView", now_ms: int, *, whole: bool) -> Pairs:
    """`now_ms` is where a span that hasn't ended is measured to."""
    yield "job", job.id
    if job.members is not None:
        yield "array", job.array
        yield "members", members_text(job.members)
    elif job.array_of:
        yield "member of", f"array {job.array_of}, index {job.array_index}"
    if job.reduced:
        yield from _reduced_pairs(job, now_ms)
        return
    if whole:
        yield "uid", job.uid
    yield "name", job.name
    yield "state", job.state.value
    if job.reason is not None:
        yield "reason", f"{job.reason.message} [{job.reason.code.value}]"
        yield "hint", job.reason.hint
    yield "exit code", job.exit_code
    yield from _demand_pairs(job, whole=whole)
    yield "submitted", job.submitted_at
    if whole:
        yield "started", job.started_at
        yield "ended", job.ended_at
    yield "waited", waited(job, now_ms)
    yield "ran", ran(job, now_ms)
    yield "retries", f"{job.retries_used} of {job.retries} used, {job.requeues_used} requeues"
    for attempt in job.attempts:
        yield from _attempt_pairs(attempt, now_ms, whole=whole)


def _reduced_pairs(job: "JobView", now_ms: int) -> Pairs:
    """All that people of other tenants may see."""
    yield "state", job.state.value
    if job.reason is not None:
        yield "reason", f"{job.reason.message} [{job.reason.code.value}]"
    gang = f", for each of {job.tasks} tasks" if job.tasks > 1 else ""
    yield "asks for", f"{job.gpu_count} GPU{'s' * (job.gpu_count != 1)}{gang}"
    yield "priority", job.priority
    yield "tenant", f"{job.tenant}, class {job.job_class.value}"
    yield "time limit", duration(job.time_limit_ms)
    yield "submitted", job.submitted_at
    yield "waited", waited(job, now_ms)
    yield "ran", ran(job, now_ms)
    yield "hidden", f"the rest: it is for people of tenant {job.tenant}"


def _demand_pairs(job: "JobView", *, whole: bool) -> Pairs:
    """What its owner asked for."""
    yield "command", command_text(job)
    yield "asks for", demand_text(job)
    yield "priority", job.priority
    yield "tenant", f"{job.tenant}, class {job.job_class.value}, by {user_of(job)}"
    yield "time limit", duration(job.time_limit_ms)
    yield "workdir", job.workdir
    yield from _said_pairs(job)
    if whole:
        yield "image", job.image
        yield "requeue", "yes" if job.requeue else "no"
        for name, value in sorted(job.env.items()):
            yield f"  env {name}", value


def _said_pairs(job: "JobView") -> Pairs:
    """What few jobs say; what this one doesn't say isn't shown."""
    said = {
        "partition": job.partition,
        "where": job.where,
        "exclude": ",".join(job.exclude),
        "tolerate": ",".join(job.tolerate),
        "after": ",".join(job.after),
        "begin": job.begin,
        "output": job.output,
        "stderr": job.error,
        "comment": job.comment,
        "lost after": _silence_text(job.lost_after_ms),
    }
    yield from ((name, text) for name, text in said.items() if text)


def _silence_text(ms: int | None) -> str:
    """How long its nodes may be silent, as it was told."""
    if ms is None:
        return ""
    return f"{duration(ms)} of silence" if ms else "never: it waits for its node"


def command_text(job: "JobView") -> str:
    """As a person would type it."""
    import shlex

    return job.command if isinstance(job.command, str) else shlex.join(job.command)


def demand_text(job: "JobView") -> str:
    parts = [f"{job.gpu_count} GPU{'s' * (job.gpu_count != 1)}"]
    if job.gpu_model:
        parts.append(f"model {job.gpu_model}")
    if job.gpu_memory_mb:
        parts.append(f"at least {job.gpu_memory_mb} MiB each")
    parts.append(f"{job.cpus} CPU{'s' * (job.cpus != 1)}")
    if job.memory_mb:
        parts.append(f"{job.memory_mb} MiB")
    spread = f", at most {job.tasks_per_node} on a node" if job.tasks_per_node else ""
    gang = f", for each of {job.tasks} tasks{spread}" if job.tasks > 1 else ""
    return ", ".join(parts) + gang


def _attempt_pairs(attempt: "AttemptView", now_ms: int, *, whole: bool) -> Pairs:
    took = duration(span_ms(attempt.started_at, attempt.ended_at, now_ms))
    outcome = attempt.outcome.value if attempt.outcome else "live"
    meets = f", meets at {attempt.master_addr}:{attempt.master_port}" if attempt.master_port else ""
    yield f"attempt {attempt.number}", f"{outcome}, placed {attempt.placed_at}, ran {took or '-'}{meets}"
    if whole and attempt.lease_ms:
        yield "", f"ends by itself when its nodes aren't heard of for {duration(attempt.lease_ms)}"
    for task in attempt.tasks:
        yield f"  rank {task.rank}", task_text(task)
        if whole:
            peak = f", peak memory {task.peak_memory_mb} MiB" if task.peak_memory_mb else ""
            has = f"{task.cpus} CPUs, {f'{task.memory_mb} MiB' if task.memory_mb else 'no memory limit'}{peak}"
            yield "", f"from {task.started_at or '-'} to {task.ended_at or '-'}, {has}"


def task_text(task: "TaskRunView") -> str:
    """Where a rank runs or ran, and how it ended."""
    end = f", {task.cause.value}" if task.cause else ""
    code = f" with code {task.exit_code}" if task.exit_code is not None else ""
    signal = f" by signal {task.signal}" if task.signal else ""
    error = f": {task.error}" if task.error else ""
    return f"{task.node} [{', '.join(task.gpus) or 'no GPU'}]{end}{code}{signal}{error}"
