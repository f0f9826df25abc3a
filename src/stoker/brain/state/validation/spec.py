"""Checks of a submitted job that need no other record of the state: well-formed texts and numbers within the policy.

Each refusal names the value and the bound. All bounds come from the policy.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from stoker.brain.domain.container import fault_of
from stoker.brain.domain.demand import Demand
from stoker.brain.domain.errors import Refusal, StokerError, refuse
from stoker.brain.domain.gpu import WHOLE_GPU, asks_for_mig, bad_gpu_share, gpus_number
from stoker.brain.domain.job import JobSpec, TextEncoding
from stoker.brain.domain.label import check_job_labels
from stoker.brain.domain.notify import nobody_fault
from stoker.brain.domain.output import pattern_fault
from stoker.brain.domain.policy import LEASE_MS_MAX, Policy
from stoker.brain.domain.units import SECOND_MS, Instant, human_duration, utc_text
from stoker.brain.state.validation.fields import refuse_long_text, refuse_out_of_range, time_limit_fault


def list_fault(specs: Sequence[JobSpec], policy: Policy) -> Refusal | None:
    """Return the refusal of a list of jobs that as a whole is empty or more than one request may bring."""
    if not specs:
        return refuse("no_jobs", "the list of jobs is empty", "send at least one job")
    if len(specs) > policy.jobs_per_submit_max:
        message = f"{len(specs)} jobs in one request; at most {policy.jobs_per_submit_max} are taken"
        hint = "send them in several requests"
        return refuse("too_many_jobs", message, hint, jobs=len(specs), jobs_max=policy.jobs_per_submit_max)
    for index, spec in enumerate(specs):
        if spec.array is not None and spec.array.count > policy.array_members_max:
            return in_list(_array_too_large(spec.array.count, policy.array_members_max), index, len(specs))
    # Each condition is judged anew whenever the job that it speaks of changes. One job has a bound of its own.
    conditions = sum(len(spec.after) for spec in specs)
    if len(specs) == 1 or conditions <= policy.dependencies_per_submit_max:
        return None
    return refuse(
        "too_many_dependencies",
        f"the {len(specs)} jobs of the request wait for {conditions} others in all; at most"
        f" {policy.dependencies_per_submit_max} such conditions are taken at once",
        "send them in several requests, or let them wait for one job that waits for the others",
        dependencies=conditions,
        dependencies_max=policy.dependencies_per_submit_max,
    )


def _array_too_large(count: int, count_max: int) -> Refusal:
    message = f"the array has {count} members; at most {count_max} are taken"
    hint = "submit it as several arrays, or let each member do more"
    return refuse("array_too_large", message, hint, members=count, members_max=count_max)


def in_list(fault: Refusal, index: int, count: int) -> Refusal:
    """Return the refusal of one job with its place in a list of `count` jobs; 0 is the first."""
    if count == 1:
        return fault
    return replace(fault, message=f"jobs[{index}]: {fault.message}", facts={**fault.facts, "index": index})


def spec_fault(spec: JobSpec, policy: Policy, now: Instant) -> Refusal | None:
    """Return the refusal of a job whose defaults have been filled in."""
    return (
        _text_fault(spec, policy)
        or _demand_fault(spec.demand, policy)
        or _limits_fault(spec, policy)
        or _terminal_fault(spec)
        or _waiting_fault(spec, policy, now)
        or (nobody_fault(spec.notify) if spec.notify is not None else None)
    )


def _text_fault(spec: JobSpec, policy: Policy) -> Refusal | None:
    parts = (spec.command,) if isinstance(spec.command, str) else spec.command
    # An image alone runs the command that its maker chose.
    if not any(part.strip() for part in parts[:1]) and not (spec.image and not parts):
        return refuse("empty_command", "the command is empty", "say what to run, such as `-- python train.py`")
    # The command first: a name that nobody gave is made from it, and would be blamed for its letters.
    for part in parts:
        fault = _bad_text("command", part, policy.command_bytes_max, spec.encoding)
        if fault:
            return fault
    total = sum([len(part.encode(spec.encoding)) + 8 for part in parts]) if len(parts) > 1 else 0
    if total > policy.arguments_bytes_max:
        hint = "put long lists of arguments in a file that the job reads"
        return refuse_long_text(
            "command", "the command with all its arguments", total, policy.arguments_bytes_max, hint
        )
    fault = _script_fault(spec, policy)
    if fault:
        return fault
    names = ("name", spec.name), ("user", spec.user), ("image", spec.image), ("comment", spec.comment)
    paths = ("workdir", spec.workdir), ("output", spec.output), ("error", spec.error)
    for texts, encoding in ((names, TextEncoding.UTF_8), (paths, spec.encoding)):
        for field, text in texts:
            fault = _bad_text(field, text, policy.text_bytes_max, encoding)
            if fault:
                return fault
    if spec.workdir and not spec.workdir.startswith("/"):
        hint = "begin it with a slash"
        return refuse("bad_workdir", f"workdir {spec.workdir[:80]!r} is not an absolute path", hint, field="workdir")
    return (
        _container_fault(spec, policy)
        or pattern_fault("output", spec.output)
        or pattern_fault("error", spec.error)
        or _labels_fault(spec)
        or _env_fault(spec, policy)
    )


def _container_fault(spec: JobSpec, policy: Policy) -> Refusal | None:
    options = spec.container
    if options is not None and not spec.image:
        message = "mounts, shared memory, network and entry point are of a container, and the job names no image"
        return refuse("image_required", message, "name one (`--image`), or leave them out")
    mounts, entrypoint = (options.mounts, options.entrypoint or "") if options else ((), "")
    for text in (entrypoint, *(path for each in mounts for path in (each.source, each.target))):
        fault = _bad_text("mounts", text, policy.text_bytes_max)
        if fault:
            return fault
    wrong = fault_of(spec.image, options)
    return wrong.refusal if wrong else None


def _labels_fault(spec: JobSpec) -> Refusal | None:
    try:
        check_job_labels(spec.labels)
    except StokerError as fault:
        return fault.refusal
    return None


def _terminal_fault(spec: JobSpec) -> Refusal | None:
    if spec.detached and not spec.tty:
        hint = "leave `detached` out: a job without a terminal never waits for anybody"
        return refuse("bad_terminal", "a job is `detached` from a terminal that it doesn't have", hint)
    beside = {
        "members of an array": spec.array is not None,
        "several tasks": spec.demand.tasks > 1,
        "files for its output": bool(spec.output or spec.error),
    }
    what = next((words for words, is_asked in beside.items() if is_asked), "")
    if not spec.tty or not what:
        return None
    hint = "leave `tty` out, and use `stoker exec` for a shell beside what runs"
    return refuse("bad_terminal", f"a job has a terminal, and {what}", hint)


def _script_fault(spec: JobSpec, policy: Policy) -> Refusal | None:
    if not spec.script:
        return None
    if isinstance(spec.command, str) or not spec.command:
        message = "a script comes with a command that is a list: its name, and what it is given"
        return refuse("bad_script", message, 'send `"command": ["train.sh", "--epochs", "3"]` beside it')
    if not spec.script.strip():
        return refuse("bad_script", "the script is empty", "give it a line to run")
    most = policy.script_bytes_max
    hint = (
        f"let it call what is large in a file that the nodes can read; an admin sets `policy.script_bytes_max` ({most})"
    )
    return _bad_text("script", spec.script, most, spec.encoding, hint)


def _bad_text(
    field: str,
    text: str,
    bytes_max: int,
    encoding: TextEncoding = TextEncoding.UTF_8,
    hint: str = "put long text in a file that the job reads",
) -> Refusal | None:
    if "\0" in text:
        remove = "remove it; no program could receive it"
        return refuse("bad_text", f"{field} contains a NUL character", remove, field=field)
    try:
        size = len(text.encode(encoding))
    except UnicodeEncodeError as fault:
        if encoding is TextEncoding.LATIN_1:
            message = f"{field} contains {text[fault.start]!r}, and `encoding` says {encoding}, which lacks it"
            leave = "leave `encoding` out; latin-1 is for texts whose letters stand for bytes"
            return refuse("bad_text", message, leave, field=field)
        return refuse("bad_text", f"{field} contains half a surrogate pair", "send valid Unicode", field=field)
    if size <= bytes_max:
        return None
    return refuse_long_text(field, field, size, bytes_max, hint)


def _env_fault(spec: JobSpec, policy: Policy) -> Refusal | None:
    total, most = 0, policy.env_bytes_max
    for name, value in spec.env.items():
        fault = _bad_text("env", name, most, spec.encoding)
        fault = fault or _bad_text(f"env.{name[:40]}", value, most, spec.encoding)
        if fault:
            return fault
        if not name or "=" in name:
            hint = "names aren't empty and have no `=`"
            return refuse("bad_env", f"{name[:80]!r} can't be the name of a variable", hint, field="env")
        total += len(name.encode(spec.encoding)) + len(value.encode(spec.encoding)) + 2
    if total <= most:
        return None
    hint = "put long values in a file that the job reads"
    return refuse_long_text("env", "the environment", total, most, hint)


def _demand_fault(demand: Demand, policy: Policy) -> Refusal | None:
    fault = _bad_text("gpu_model", demand.gpu_model, policy.text_bytes_max)
    if fault:
        return fault
    for field, value, low, high in (
        ("gpu_count", demand.gpu_count, 0, policy.gpus_per_task_max),
        ("gpu_memory_mb", demand.gpu_memory_mb, 0, policy.memory_mb_max),
        ("cpus", demand.cpus, 0, policy.cpus_per_task_max),
        ("memory_mb", demand.memory_mb, 0, policy.memory_mb_max),
        ("tasks", demand.tasks, 1, policy.tasks_max),
        ("tasks_per_node", demand.tasks_per_node, 0, policy.tasks_max),
    ):
        if not low <= value <= high:
            return refuse_out_of_range(field, value, low, high)
    if not 0 < demand.gpu_share <= WHOLE_GPU:
        return bad_gpu_share(f"{gpus_number(demand.gpu_share)}")
    if demand.shares and demand.gpu_count != 1:
        share = gpus_number(demand.gpu_share)
        return refuse(
            "share_of_one_gpu",
            f"a task may share one GPU, and {share} of each of {demand.gpu_count} is asked for",
            f"leave the number of GPUs out (`--gpu-share {share}`), spread it over more tasks (`--tasks`), or ask for "
            "whole GPUs",
            field="gpu_share",
        )
    if (demand.gpu_model or demand.gpu_memory_mb) and not demand.gpu_count:
        wish = "gpu_model" if demand.gpu_model else "gpu_memory_mb"
        hint = "say how many GPUs each task needs (`--gpus 1`), or leave the wish out"
        return refuse("gpu_wish_without_gpus", f"{wish} is given, but no GPU is asked for", hint, field=wish)
    return _mig_fault(demand) if asks_for_mig(demand.gpu_model) else None


def _mig_fault(demand: Demand) -> Refusal | None:
    """Return the refusal of what MIG instances can't give.

    Source: NVIDIA, "MIG User Guide", "CUDA Device Enumeration": a process sees one, however many it is given.
    """
    if demand.gpu_count == 1 and not demand.shares:
        return None
    share = f"{gpus_number(demand.gpu_share)} of " if demand.shares else ""
    return refuse(
        "mig_not_whole",
        f"a task has one MIG instance to itself, and {share}{demand.gpu_count} per task are asked for: a CUDA program "
        "sees no more than one, and instances aren't shared",
        f"ask for one per task (`--gpus 1 --tasks {demand.total_gpus}`), for a smaller or larger profile "
        "(`--gpu-model 2g.20gb`), or for whole GPUs",
        field="gpu_model",
        gpu_model=demand.gpu_model[:80],
    )


def _limits_fault(spec: JobSpec, policy: Policy) -> Refusal | None:
    for field, value, low, high in (
        ("priority", spec.priority, -policy.priority_max, policy.priority_max),
        ("retries", spec.retries_max, 0, policy.retries_max),
    ):
        if not low <= value <= high:
            return refuse_out_of_range(field, value, low, high)
    if spec.time_limit_ms < 0:
        hint = "give a time above zero"
        return refuse("bad_time", f"a time limit of {spec.time_limit_ms} ms lies in the past", hint, field="time")
    too_long = time_limit_fault(spec.time_limit_ms, policy.time_limit_max_ms, "here")
    return too_long or _lost_after_fault(spec.lost_after_ms, policy) or _warning_fault(spec)


def _lost_after_fault(asked_ms: int | None, policy: Policy) -> Refusal | None:
    least, most = policy.attempt_lease_min_ms, LEASE_MS_MAX
    if not asked_ms or least <= asked_ms <= most:
        return None
    usual = policy.attempt_lease_ms
    what = human_duration(usual) if usual else "never: it waits for its node"
    return refuse(
        "bad_lost_after",
        f"a job can't be given up after {human_duration(abs(asked_ms))}; it must be from {human_duration(least)} to "
        f"{human_duration(most)}",
        f"give a time in that range, or 0 for never; left out, it is what this cluster has set ({what})",
        field="lost_after",
        lost_after_ms=asked_ms,
        low_ms=least,
        high_ms=most,
    )


def _warning_fault(spec: JobSpec) -> Refusal | None:
    warn, limit_ms = spec.warn, spec.time_limit_ms
    if warn is None or not limit_ms or warn.lead_ms < limit_ms:
        return None
    lead, limit = human_duration(warn.lead_ms), human_duration(limit_ms)
    return refuse(
        "bad_signal",
        f"a warning {lead} before the end of a job whose whole time limit is {limit} would come before it starts",
        f"give a shorter lead, such as `--signal USR1@{max(1, limit_ms // 10 // SECOND_MS)}`, or a longer time limit",
        field="signal",
        lead_ms=warn.lead_ms,
        limit_ms=limit_ms,
    )


def _waiting_fault(spec: JobSpec, policy: Policy, now: Instant) -> Refusal | None:
    if len(spec.after) > policy.dependencies_max:
        return refuse(
            "too_many_dependencies",
            f"the job waits for {len(spec.after)} others; at most {policy.dependencies_max} are taken",
            "let it wait for an array, or for one job that waits for the others",
            dependencies=len(spec.after),
            dependencies_max=policy.dependencies_max,
        )
    if spec.begin > now + policy.begin_ahead_max_ms:
        message = f"it would begin at {utc_text(spec.begin)}, {human_duration(spec.begin - now)} from now"
        hint = f"give a time within {human_duration(policy.begin_ahead_max_ms)}; is the clock of your machine right?"
        return refuse("begin_too_late", message, hint, begin_ms=spec.begin)
    return None
