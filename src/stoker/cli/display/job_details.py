"""Text about a job, as a row of a list, as `key value` lines, and as lines on why it waits or how it ended.

The columns are the same for `stoker list`, its `--watch`, the queue of `stoker top` and the report of the demo.

Short by default; the whole text (`-o wide`) adds what few ask for: identity, environment, and times and use of every
rank. An optional text field of `JobView` has a line by itself, under its field name, as soon as the struct has it.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from stoker.cli.clock import time_of_day
from stoker.cli.display.formatting import duration, instant_ms, members_text, note_line, ran, span_ms, user_of, waited
from stoker.cli.display.safe_text import cut, visible
from stoker.cli.display.table import Column, cell_text, fields

if TYPE_CHECKING:
    from stoker.wire.rest.job import AttemptView, JobView, TaskRunView, WhyView

NAME_CELLS_MAX: Final = 40
Pairs = Iterator[tuple[str, object]]
_SHOWN: Final = frozenset(
    {
        *("partition", "where", "begin", "output", "error", "comment", "encoding"),  # below, with labels of their own
        *("array", "array_of"),  # in the head
        *("status", "message"),  # only in the answer to a submit
    }
)
"""Optional text fields of `JobView` that need no line of their own."""


def job_columns(now_ms: int, titles: Sequence[str] = ()) -> "list[Column[JobView]]":
    """Return the columns with these titles, or all. `now_ms` is where a span that hasn't ended is measured to."""
    columns: list[Column[JobView]] = [
        Column("ID", lambda job: job.id, right=True),
        Column("NAME", lambda job: short_name(job.name), elastic=True),
        Column("STATE", lambda job: job.state.value, coloured=True),
        Column("GPUS", lambda job: job.total_gpus, right=True),
        Column("PRIO", lambda job: job.priority, right=True),
        Column("TENANT", lambda job: job.tenant, wide=True),
        Column("CLASS", lambda job: job.job_class.value, wide=True),
        Column("USER", user_of, wide=True),
        *fields("PARTITION", "ARRAY", wide=True),
        Column("TASKS", lambda job: job.tasks, right=True, wide=True),
        Column("ATTEMPTS", lambda job: len(job.attempts), right=True, wide=True),
        Column("SUBMITTED", lambda job: job.submitted_at, wide=True),
        Column("STARTED", lambda job: job.started_at, wide=True),
        Column("ENDED", lambda job: job.ended_at, wide=True),
        Column("WAITED", lambda job: waited(job, now_ms), right=True),
        Column("RAN", lambda job: ran(job, now_ms), right=True),
        Column("EXIT", lambda job: job.exit_code, right=True),
        Column("AFTER", lambda job: ",".join(job.after), wide=True),
        Column("COMMENT", lambda job: job.comment, wide=True, elastic=True),
        Column("REASON", note_line, elastic=True),
        # What is long stands last, so that it pushes nothing out of sight.
        Column("NODES", nodes_of, wide=True),
        Column("GPU UUIDS", gpus_of, wide=True),
    ]
    by_title = {column.title: column for column in columns}
    return [by_title[title] for title in titles or by_title]


def short_name(name: str) -> str:
    return cut(visible(name), NAME_CELLS_MAX)


def nodes_of(job: "JobView") -> str:
    """Return the nodes of a job's newest attempt."""
    tasks = job.attempts[-1].tasks if job.attempts else []
    return ",".join(dict.fromkeys(task.node for task in tasks))


def gpus_of(job: "JobView") -> str:
    """Return the GPUs of a job's newest attempt."""
    tasks = job.attempts[-1].tasks if job.attempts else []
    return ",".join(uuid for task in tasks for uuid in task.gpus)


def job_pairs(job: "JobView", now_ms: int, *, whole: bool) -> Pairs:
    """Yield (key, value) lines about a job. `now_ms`: until when spans that have not ended are measured."""
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
    yield from _demand_pairs(job, now_ms, whole=whole)
    yield "submitted", job.submitted_at
    if whole:
        yield "started", job.started_at
        yield "ended", job.ended_at
    yield "waited", waited(job, now_ms)
    yield "ran", ran(job, now_ms)
    yield "retries", f"{job.retries_used} of {job.retries} used, {job.requeues_used} requeues"
    for attempt in job.attempts:
        yield from _attempt_pairs(attempt, now_ms, whole=whole)
    if job.outline:
        yield "hidden", f"what it runs and writes: that is for {user_of(job)}, leads of tenant {job.tenant} and admins"


def _reduced_pairs(job: "JobView", now_ms: int) -> Pairs:
    """The lines that people of other tenants may see."""
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


def _demand_pairs(job: "JobView", now_ms: int, *, whole: bool) -> Pairs:
    """What its owner asked for."""
    yield "command", command_text(job)
    yield "asks for", demand_text(job)
    yield "priority", job.priority
    yield "tenant", f"{job.tenant}, class {job.job_class.value}, by {user_of(job)}"
    yield "time limit", limit_text(job, now_ms)
    yield "workdir", job.workdir
    yield from _said_pairs(job)
    if whole:
        yield "image", job.image
        yield "requeue", "yes" if job.requeue else "no"
        for name, value in sorted(job.env.items()):
            yield f"  env {name}", value


def _said_pairs(job: "JobView") -> Pairs:
    """Fields that few jobs have; a field without a value has no line."""
    said = {
        "partition": job.partition,
        "where": job.where,
        "exclude": ",".join(job.exclude),
        "tolerate": ",".join(job.tolerate),
        "after": ",".join(job.after),
        "begin": job.begin,
        "output": job.output,
        "stderr": job.error,
        "secrets": ", ".join(name if name == given else f"{given} as {name}" for name, given in job.secrets.items()),
        "comment": job.comment,
        "lost after": _silence_text(job.lost_after_ms),
        "encoding": "" if job.encoding == "utf-8" else job.encoding.value,
        **_texts_beside(job),
    }
    yield from ((name, text) for name, text in said.items() if text)


def _texts_beside(job: "JobView") -> dict[str, str]:
    """Optional text fields of the struct that no other line shows, by field name with blanks."""
    from msgspec import structs

    texts = ((field.name, getattr(job, field.name)) for field in structs.fields(job) if not field.required)
    return {name.replace("_", " "): text for name, text in texts if isinstance(text, str) and name not in _SHOWN}


def limit_text(job: "JobView", now_ms: int) -> str:
    """The time limit and, while the job runs, what is left of it: `1d, 3h left, ends 14:20:05 CET at the latest`."""
    whole = duration(job.time_limit_ms) or "none"
    if job.time_limit_at is None:
        return whole
    left_ms = max(0, instant_ms(job.time_limit_at) - now_ms)
    return f"{whole}, {duration(left_ms)} left, ends {time_of_day(job.time_limit_at)} at the latest"


def _silence_text(ms: int | None) -> str:
    """How long its nodes may be silent, as the submit said."""
    if ms is None:
        return ""
    return f"{duration(ms)} of silence" if ms else "never: it waits for its node"


def command_text(job: "JobView") -> str:
    """Return the command as a person would type it."""
    import shlex

    return job.command if isinstance(job.command, str) else shlex.join(job.command)


def demand_text(job: "JobView") -> str:
    """Return what each task of a job asks for, and how many tasks there are."""
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
    """Return where a rank runs or ran, and how it ended."""
    end = f", {task.cause.value}" if task.cause else ""
    code = f" with code {task.exit_code}" if task.exit_code is not None else ""
    signal = f" by signal {task.signal}" if task.signal else ""
    error = f": {task.error}" if task.error else ""
    return f"{task.node} [{', '.join(task.gpus) or 'no GPU'}]{end}{code}{signal}{error}"


def why_lines(answer: "WhyView", *, whole: bool = False) -> Iterator[str]:
    """Yield lines on what keeps or ended a job: the reason, its place in the queue, a hint, with `whole` the facts."""
    yield f"job {answer.id} is {answer.state.value}: {cell_text(answer.message)}"
    if answer.position is not None and answer.waiting is not None:
        alike = f", {answer.similar_ahead} before it ask for the same" if answer.similar_ahead else ""
        yield f"queue: {answer.position} of {answer.waiting}{alike}"
    if answer.lent is not None:
        yield f"lent: {cell_text(answer.lent.message)}"
    if answer.hint:
        yield f"hint: {cell_text(answer.hint)}"
    if whole:
        for name, value in sorted(answer.facts.items()):
            yield f"{cell_text(name)}: {cell_text(value)}"
