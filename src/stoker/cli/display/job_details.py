"""Text about a job, as a row of a list, as `key value` lines, and as lines on why it waits or how it ended.

The columns are the same for `stoker list`, its `--watch`, the queue of `stoker top` and the report of the demo.

Short by default; the whole text (`-o wide`) adds what few ask for: identity, environment, and times and use of every
rank. An optional text field of `JobView` has a line by itself, under its field name, as soon as the struct has it.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from stoker.cli.clock import local_text, time_of_day
from stoker.cli.display.formatting import (
    duration,
    instant_ms,
    local_times,
    members_text,
    note_line,
    ran,
    span_ms,
    user_of,
    waited,
    waited_in_all,
)
from stoker.cli.display.gpu_figures import job_gpu_lines
from stoker.cli.display.safe_text import cut, visible
from stoker.cli.display.table import Column, cell_text, fields

if TYPE_CHECKING:
    from stoker.wire.rest.job import AttemptView, JobView, TaskRunView
    from stoker.wire.rest.notify import NoticeView
    from stoker.wire.rest.why import WhyView

NAME_CELLS_MAX: Final = 40
BLOCKING_SHOWN: Final = 3
"""Jobs that hold what another waits for, on lines of their own."""
_RESERVED_SHOWN: Final = 4
"""Nodes of a reservation that are named."""
_ONE_DAY_MS: Final = 24 * 3_600_000
Pairs = Iterator[tuple[str, object]]
_SHOWN: Final = frozenset(
    {
        *("partition", "where", "begin", "output", "error", "comment", "encoding"),  # below, with labels of their own
        *("array", "array_of"),  # in the head
        "time_limit_at",  # beside the limit
        "planned_start",  # with its nodes
        *("status", "message"),  # only in the answer to a submit
    }
)
"""Optional text fields of `JobView` that need no line of their own."""


def job_columns(now_ms: int, titles: Sequence[str] = ()) -> "list[Column[JobView]]":
    """Return the columns with these titles, or all. `now_ms` is where a span that hasn't ended is measured to."""
    columns: list[Column[JobView]] = [
        Column("ID", lambda job: job.id, right=True),
        Column("NAME", lambda job: job.name, elastic=True, cells_max=NAME_CELLS_MAX),
        Column("STATE", lambda job: job.state.value, coloured=True),
        Column("GPUS", lambda job: f"{job.total_gpus * job.gpu_share:g}", right=True),
        Column("PRIO", lambda job: job.priority, right=True),
        Column("TENANT", lambda job: job.tenant, wide=True),
        Column("CLASS", lambda job: job.job_class.value, wide=True),
        Column("USER", user_of, wide=True),
        *fields("PARTITION", "ARRAY", wide=True),
        Column("TASKS", lambda job: job.tasks, right=True, wide=True),
        Column("ATTEMPTS", lambda job: len(job.attempts), right=True, wide=True),
        Column("SUBMITTED", lambda job: job.submitted_at, wide=True, instant=True),
        Column("STARTED", lambda job: job.started_at, wide=True, instant=True),
        Column("ENDED", lambda job: job.ended_at, wide=True, instant=True),
        Column("START", lambda job: job.planned_start, wide=True, instant=True),
        Column("PLANNED NODES", lambda job: ",".join(job.planned_nodes), wide=True),
        Column("TIME LIMIT", lambda job: duration(job.time_limit_ms), right=True, wide=True),
        Column("PEAK MEMORY", peak_memory, right=True, wide=True),
        Column("WAITED", lambda job: waited(job, now_ms), right=True),
        Column("RAN", lambda job: ran(job, now_ms), right=True),
        Column("EXIT", lambda job: job.exit_code, right=True),
        Column("AFTER", lambda job: ",".join(job.after), wide=True),
        Column("LABELS", labels_of, wide=True),
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


def labels_of(job: "JobView") -> str:
    """Return a job's labels as a selector that finds it."""
    return ",".join(f"{key}={value}" for key, value in sorted(job.labels.items()))


def peak_memory(job: "JobView") -> str:
    """Return the most memory that an ended rank of the newest attempt used; empty = none was measured."""
    peak = max((task.peak_memory_mb for attempt in job.attempts[-1:] for task in attempt.tasks), default=0)
    return f"{peak} MiB" if peak else ""


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
        yield "reason", f"{local_times(job.reason.message)} [{job.reason.code.value}]"
        yield "hint", local_times(job.reason.hint)
    yield "exit code", job.exit_code
    yield from _demand_pairs(job, now_ms, whole=whole)
    yield "submitted", local_text(job.submitted_at)
    if whole:
        yield "started", local_text(job.started_at)
        yield "ended", local_text(job.ended_at)
    if job.planned_start is not None:
        on = f", on {', '.join(job.planned_nodes)}" if job.planned_nodes else ""
        yield "starts", f"by {local_text(job.planned_start)} at the latest{on}"
    yield "waited", waited_in_all(job, now_ms)
    yield "ran", ran(job, now_ms)
    if peak_memory(job):
        yield "peak memory", _peak_text(job)
    taken = f", preempted {job.preemptions} time{'s' * (job.preemptions != 1)}" if job.preemptions else ""
    yield "retries", f"{job.retries_used} of {job.retries} used, {job.requeues_used} requeues{taken}"
    for attempt in job.attempts:
        yield from _attempt_pairs(attempt, now_ms, whole=whole)
    yield from job_gpu_lines(job)
    if job.notify and not job.notices:
        yield "notifies", f"{', '.join(job.notify)} to {', '.join(job.notify_to) or 'nobody'}"
    for notice in job.notices:
        yield "notified", _notice_text(notice)
    if job.outline:
        yield "hidden", f"what it runs and writes: that is for {user_of(job)}, leads of tenant {job.tenant} and admins"


def _notice_text(notice: "NoticeView") -> str:
    told = f"{notice.event} to {notice.to}"
    error = f": {notice.error}" if notice.error else ""
    times = f"{notice.tries} time{'s' * (notice.tries != 1)}"
    match notice.state.value:
        case "sent":
            return f"{told} at {local_text(notice.at)}"
        case "retrying":
            return f"{told} failed {times}{error}; next try at {local_text(notice.next_at)}"
        case "failed":
            return f"{told} failed {times}, given up{error}"
        case "unknown":
            return f"{told}: sent, and nobody knows whether it arrived{error}"
        case "dropped":
            return f"{told}: not sent, too many waited"
        case _:
            return f"{told}: on its way"


def _peak_text(job: "JobView") -> str:
    """Return the peak memory, and of a gang the rank that used it."""
    tasks = job.attempts[-1].tasks
    most = max(tasks, key=lambda task: (task.peak_memory_mb, -task.rank))
    limit = f" of {job.memory_mb} MiB" if job.memory_mb else ""
    return f"{peak_memory(job)}{limit}{f', rank {most.rank} on {most.node}' if len(tasks) > 1 else ''}"


def _reduced_pairs(job: "JobView", now_ms: int) -> Pairs:
    """The lines that people of other tenants may see."""
    yield "state", job.state.value
    if job.reason is not None:
        yield "reason", f"{local_times(job.reason.message)} [{job.reason.code.value}]"
    gang = f", for each of {job.tasks} tasks" if job.tasks > 1 else ""
    yield "asks for", f"{_gpus_text(job)}{gang}"
    yield "priority", job.priority
    yield "tenant", f"{job.tenant}, class {job.job_class.value}"
    yield "time limit", duration(job.time_limit_ms)
    yield "submitted", local_text(job.submitted_at)
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
        "begin": local_text(job.begin),
        "output": job.output,
        "stderr": job.error,
        "secrets": ", ".join(name if name == given else f"{given} as {name}" for name, given in job.secrets.items()),
        "labels": labels_of(job),
        "comment": job.comment,
        "lost after": _silence_text(job.lost_after_ms),
        "mounts": ", ".join(job.mounts),
        "shared memory": f"{job.shm_mb} MiB" if job.shm_mb else "",
        "preemptible": "by jobs of a higher priority" if job.preemptible else "",
        "checkpoint": f"every {duration(job.checkpoint_ms)}" if job.checkpoint_ms else "",
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
    """The time limit and, while the job runs, what is left of it: `1d, 3h left, ends 14:20:05 CET at the latest`.

    With its date where a time of day may be taken for one of another day.
    """
    whole = duration(job.time_limit_ms) or "none"
    if job.time_limit_at is None:
        return whole
    left_ms = max(0, instant_ms(job.time_limit_at) - now_ms)
    ends = time_of_day(job.time_limit_at) if left_ms < _ONE_DAY_MS // 2 else local_text(job.time_limit_at)
    return f"{whole}, {duration(left_ms)} left, ends {ends} at the latest"


def _silence_text(ms: int | None) -> str:
    """How long its nodes may be silent, as the submit said."""
    if ms is None:
        return ""
    return f"{duration(ms)} of silence" if ms else "never: it waits for its node"


def command_text(job: "JobView") -> str:
    """Return the command as a person would type it."""
    import shlex

    return job.command if isinstance(job.command, str) else shlex.join(job.command)


def _gpus_text(job: "JobView") -> str:
    return f"{job.gpu_share:g} of a GPU" if job.gpu_share != 1 else f"{job.gpu_count} GPU{'s' * (job.gpu_count != 1)}"


def demand_text(job: "JobView") -> str:
    """Return what each task of a job asks for, and how many tasks there are."""
    is_share = job.gpu_share != 1
    parts = [_gpus_text(job)]
    if job.gpu_model:
        parts.append(f"model {job.gpu_model}")
    if job.gpu_memory_mb:
        parts.append(f"within {job.gpu_memory_mb} MiB" if is_share else f"at least {job.gpu_memory_mb} MiB each")
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
    if attempt.for_job:
        ended = f" at {time_of_day(attempt.ended_at)}" if attempt.ended_at else ""
        outcome = f"{outcome if attempt.outcome else 'giving way'} for job {attempt.for_job}{ended}"
    yield f"attempt {attempt.number}", f"{outcome}, placed {local_text(attempt.placed_at)}, ran {took or '-'}{meets}"
    if whole and attempt.lease_ms:
        yield "", f"ends by itself when its nodes aren't heard of for {duration(attempt.lease_ms)}"
    for task in attempt.tasks:
        yield f"  rank {task.rank}", task_text(task)
        if whole:
            peak = f", peak memory {task.peak_memory_mb} MiB" if task.peak_memory_mb else ""
            has = f"{task.cpus} CPUs, {f'{task.memory_mb} MiB' if task.memory_mb else 'no memory limit'}{peak}"
            yield "", f"from {local_text(task.started_at) or '-'} to {local_text(task.ended_at) or '-'}, {has}"


def task_text(task: "TaskRunView") -> str:
    """Return where a rank runs or ran, and how it ended."""
    end = f", {task.cause.value}" if task.cause else ""
    code = f" with code {task.exit_code}" if task.exit_code is not None else ""
    signal = f" by signal {task.signal}" if task.signal else ""
    error = f": {task.error}" if task.error else ""
    share = f"{task.gpu_share:g} of " if task.gpu_share != 1 else ""
    return f"{task.node} [{share}{', '.join(task.gpus) or 'no GPU'}]{end}{code}{signal}{error}"


def why_lines(answer: "WhyView", *, whole: bool = False) -> Iterator[str]:
    """Yield lines on what keeps or ended a job: the reason, its place in the queue, a hint, with `whole` the facts."""
    yield f"job {answer.id} is {answer.state.value}: {cell_text(local_times(answer.message))}"
    if answer.position is not None and answer.waiting is not None:
        alike = f", {answer.similar_ahead} before it ask for the same" if answer.similar_ahead else ""
        yield f"queue: {answer.position} of {answer.waiting}{alike}"
        if answer.priority is not None and (whole or answer.waiting > 1):
            sums = answer.priority
            yield f"priority: {sums.effective} = {sums.base} + {sums.aging} for waiting + {sums.fair_share} fair share"
    if answer.preempted:
        yield f"before: {cell_text(local_times(answer.preempted))}"
    if answer.lent is not None:
        yield f"lent: {cell_text(answer.lent.message)}"
    for words in answer.warnings:
        yield f"warning: {cell_text(words)}"
    if answer.starts_by is not None:
        names, more = answer.starts_on[:_RESERVED_SHOWN], len(answer.starts_on) - _RESERVED_SHOWN
        on = visible(", ".join(names)) + (f" and {more} more" if more > 0 else "")
        yield f"starts: by {local_times(answer.starts_by)} at the latest, on {on}; what comes free there is kept for it"
    yield from _blocking_lines(answer, len(answer.blocked_by) if whole else BLOCKING_SHOWN)
    for each in answer.alternatives:
        yield f"starts now: {cell_text(each.message)}: `stoker update {answer.id} {cell_text(each.options)}`"
    if answer.hint:
        yield f"hint: {cell_text(local_times(answer.hint))}"
    if whole:
        for name, value in sorted(answer.facts.items()):
            yield f"{cell_text(name)}: {cell_text(value)}"


def _blocking_lines(answer: "WhyView", most: int) -> Iterator[str]:
    """Lines on the jobs that hold what it waits for, and on when they have ended at the latest."""
    from stoker.brain.domain.units import counted

    shown = answer.blocked_by[:most]
    for each in shown:
        name = f" {short_name(each.name)}" if each.name else ""
        whose = f"{visible(each.user)}, " if each.user else ""
        gpus = f", {counted(each.gpus, 'GPU')}" if each.gpus else ""
        until = local_times(each.ends_by)
        ending = ", gives way to it" if each.gives_way else ", is ending" if each.ending else ""
        holder = f"job {each.id}{name} ({whose}tenant {visible(each.tenant)}){gpus}{ending}"
        yield f"held by: {holder}, until {until} at the latest"
    if answer.blocking_jobs > len(shown):
        yield f"held by: {counted(answer.blocking_jobs - len(shown), 'more job')}, which may end later"
    if answer.fits_by is not None:
        yield f"latest: by {local_times(answer.fits_by)} enough of them have ended, unless others start there first"
