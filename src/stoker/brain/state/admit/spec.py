"""Is what a person asks for well-formed, within bounds, and possible on any node there ever was?

All bounds come from the policy, and a refusal names the value, the bound and, in a bulk, which job it was.
"""

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from stoker.brain.domain.demand import Demand, Shape
from stoker.brain.domain.errors import Refusal, refuse
from stoker.brain.domain.fit import suitable_gpus, task_demand_text, tasks_ever
from stoker.brain.domain.job import JobSpec
from stoker.brain.domain.label import JOBS_AS, USERS
from stoker.brain.domain.node import ROOT, Inventory, Node
from stoker.brain.domain.output import pattern_fault
from stoker.brain.domain.policy import LEASE_MS_MAX, Policy
from stoker.brain.domain.units import Instant, human_duration, utc_text
from stoker.brain.domain.where import Operator, Requirement, Where, both
from stoker.brain.state.admit.access import user_fault
from stoker.brain.state.admit.quota import TenantRules
from stoker.brain.state.admit.where import none_selected, selected_nodes, where_fault
from stoker.brain.state.cluster import ClusterState

_NOT_FOR_USERS: Final = Where(require=(Requirement(JOBS_AS, Operator.NOT_IN, (USERS,)),))
_SHARE: Final = ", or let more of them share a node (`--tasks-per-node`)"


def admit_specs(state: ClusterState, specs: Sequence[JobSpec], now: Instant) -> list[JobSpec] | Refusal:
    """The specs with defaults filled in, or the first refusal."""
    if not specs:
        return refuse("no_jobs", "the list of jobs is empty", "send at least one job")
    if len(specs) > state.policy.jobs_per_submit_max:
        return refuse(
            "too_many_jobs",
            f"{len(specs)} jobs in one request; at most {state.policy.jobs_per_submit_max} are taken",
            "send them in several requests",
            jobs=len(specs),
            jobs_max=state.policy.jobs_per_submit_max,
        )
    for index, spec in enumerate(specs):
        large = _array_fault(spec, state.policy)
        if large is not None:
            return _at(large, index) if len(specs) > 1 else large
    tenants, strict = TenantRules(state), state.indexes.node_classes.strict
    full = _too_many_conditions(specs, state.policy) or tenants.queue_full(specs)
    if full:
        return full
    possible: dict[Shape, Refusal | None] = {}
    admitted: list[JobSpec] = []
    for index, spec in enumerate(specs):
        spec = tenants.filled(spec)
        if strict.any:
            spec = _kept_off(spec)
        fault = _spec_fault(state.policy, spec, now) or tenants.fault(spec) or _place_fault(state, spec)
        if fault is None:
            shape = spec.shape
            if shape not in possible:
                possible[shape] = never_fits(state, shape)
            fault = possible[shape]
        if fault is not None:
            return _at(fault, index) if len(specs) > 1 else fault
        admitted.append(spec)
    return admitted


def _at(fault: Refusal, index: int) -> Refusal:
    facts = {**fault.facts, "index": index}
    return Refusal(code=fault.code, message=f"jobs[{index}]: {fault.message}", hint=fault.hint, facts=facts)


def _spec_fault(policy: Policy, spec: JobSpec, now: Instant) -> Refusal | None:
    return (
        _text_fault(spec, policy)
        or _demand_fault(spec.demand, policy)
        or _limits_fault(spec, policy)
        or _waiting_fault(spec, policy, now)
    )


def _place_fault(state: ClusterState, spec: JobSpec) -> Refusal | None:
    return _account_fault(state, spec.user) or _image_fault(state, spec) or where_fault(state, spec)


def _text_fault(spec: JobSpec, policy: Policy) -> Refusal | None:
    parts = (spec.command,) if isinstance(spec.command, str) else spec.command
    # An image alone runs the command that its maker chose.
    if not any(part.strip() for part in parts[:1]) and not (spec.image and not parts):
        return refuse("empty_command", "the command is empty", "say what to run, such as `-- python train.py`")
    # The command first: a name that nobody gave is made from it, and would be blamed for its letters.
    for part in parts:
        fault = _bad_text("command", part, policy.command_bytes_max)
        if fault:
            return fault
    for field, text in (
        *(("name", spec.name), ("workdir", spec.workdir), ("user", spec.user), ("image", spec.image)),
        *(("comment", spec.comment), ("output", spec.output), ("error", spec.error)),
    ):
        fault = _bad_text(field, text, policy.text_bytes_max)
        if fault:
            return fault
    if spec.workdir and not spec.workdir.startswith("/"):
        return refuse(
            "bad_workdir",
            f"workdir {spec.workdir[:80]!r} is not an absolute path",
            "begin it with a slash",
            field="workdir",
        )
    return pattern_fault("output", spec.output) or pattern_fault("error", spec.error) or _env_fault(spec.env, policy)


def _bad_text(field: str, text: str, bytes_max: int) -> Refusal | None:
    if "\0" in text:
        return refuse(
            "bad_text", f"{field} contains a NUL character", "remove it; no program could receive it", field=field
        )
    size = _utf8_size(text)
    if size is None:
        return refuse("bad_text", f"{field} contains half a surrogate pair", "send valid Unicode", field=field)
    if size > bytes_max:
        return refuse(
            "text_too_long",
            f"{field} has {size} bytes; at most {bytes_max} are taken",
            "put long text in a file that the job reads",
            field=field,
            bytes=size,
            bytes_max=bytes_max,
        )
    return None


def _utf8_size(text: str) -> int | None:
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        return None


def _env_fault(env: dict[str, str], policy: Policy) -> Refusal | None:
    total = 0
    for name, value in env.items():
        fault = _bad_text("env", name, policy.env_bytes_max) or _bad_text(
            f"env.{name[:40]}", value, policy.env_bytes_max
        )
        if fault:
            return fault
        if not name or "=" in name:
            return refuse(
                "bad_env",
                f"{name[:80]!r} can't be the name of a variable",
                "names aren't empty and have no `=`",
                field="env",
            )
        total += len(name.encode()) + len(value.encode()) + 2
    if total <= policy.env_bytes_max:
        return None
    return refuse(
        "text_too_long",
        f"the environment has {total} bytes; at most {policy.env_bytes_max} are taken",
        "put long values in a file that the job reads",
        field="env",
        bytes=total,
        bytes_max=policy.env_bytes_max,
    )


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
            return out_of_range(field, value, low, high)
    if (demand.gpu_model or demand.gpu_memory_mb) and not demand.gpu_count:
        wish = "gpu_model" if demand.gpu_model else "gpu_memory_mb"
        return refuse(
            "gpu_wish_without_gpus",
            f"{wish} is given, but no GPU is asked for",
            "say how many GPUs each task needs (`--gpus 1`), or leave the wish out",
            field=wish,
        )
    return None


def out_of_range(field: str, value: int, low: int, high: int) -> Refusal:
    return refuse(
        "out_of_range",
        f"{field} is {value}; it must be from {low} to {high}",
        f"give {field} a value in that range",
        field=field,
        value=value,
        low=low,
        high=high,
    )


def _limits_fault(spec: JobSpec, policy: Policy) -> Refusal | None:
    for field, value, low, high in (
        ("priority", spec.priority, -policy.priority_max, policy.priority_max),
        ("retries", spec.retries_max, 0, policy.retries_max),
    ):
        if not low <= value <= high:
            return out_of_range(field, value, low, high)
    if spec.time_limit_ms < 0:
        return refuse(
            "bad_time",
            f"a time limit of {spec.time_limit_ms} ms lies in the past",
            "give a time above zero",
            field="time",
        )
    if spec.time_limit_ms > policy.time_limit_max_ms:
        longest = human_duration(policy.time_limit_max_ms)
        return refuse(
            "time_limit_too_long",
            f"a time limit of {human_duration(spec.time_limit_ms)} was asked for; the longest here is {longest}",
            f"ask for at most {longest}, or let the job resume from a checkpoint",
            limit_ms=spec.time_limit_ms,
            limit_max_ms=policy.time_limit_max_ms,
        )
    return _lost_after_fault(spec.lost_after_ms, policy)


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


def _array_fault(spec: JobSpec, policy: Policy) -> Refusal | None:
    if spec.array is not None and spec.array.count > policy.array_members_max:
        return refuse(
            "array_too_large",
            f"the array has {spec.array.count} members; at most {policy.array_members_max} are taken",
            "submit it as several arrays, or let each member do more",
            members=spec.array.count,
            members_max=policy.array_members_max,
        )
    return None


def _too_many_conditions(specs: Sequence[JobSpec], policy: Policy) -> Refusal | None:
    """Each may have to be judged anew whenever the job that it speaks of changes."""
    conditions = sum(len(spec.after) for spec in specs)
    if len(specs) == 1 or conditions <= policy.dependencies_per_submit_max:  # one job has a bound of its own
        return None
    return refuse(
        "too_many_dependencies",
        f"the {len(specs)} jobs of the request wait for {conditions} others in all; at most"
        f" {policy.dependencies_per_submit_max} such conditions are taken at once",
        "send them in several requests, or let them wait for one job that waits for the others",
        dependencies=conditions,
        dependencies_max=policy.dependencies_per_submit_max,
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
        return refuse(
            "begin_too_late",
            f"it would begin at {utc_text(spec.begin)}, {human_duration(spec.begin - now)} from now",
            f"give a time within {human_duration(policy.begin_ahead_max_ms)}; is the clock of your machine right?",
            begin_ms=spec.begin,
        )
    return None


def _account_fault(state: ClusterState, user: str) -> Refusal | None:
    """Is there a node that would run a job of this account? One whose agent isn't root runs all as itself."""
    fault = user_fault(user)
    if fault or not state.indexes.node_classes.strict.all:
        return fault
    if not user:
        return refuse(
            "user_required",
            "the job names no Unix user, and agents here run as root: they start no job without one",
            "submit with a token that names one: `stoker token create --role user --tenant T --user U`",
        )
    if user != ROOT:
        return None
    return refuse(
        "root_refused",
        "the job would run as root, which no node allows",
        "submit with a token of another user (`stoker token create --user U`), or set `executor.allow_root: true` on a "
        "node",
    )


def _kept_off(spec: JobSpec) -> JobSpec:
    """Away from the nodes that would refuse to start it, where it names no user, or root."""
    if spec.user not in ("", ROOT):
        return spec
    return replace(spec, where=both(spec.where, _NOT_FOR_USERS))


def _image_fault(state: ClusterState, spec: JobSpec) -> Refusal | None:
    if spec.image and not any("container" in node.inventory.executors for node in state.nodes.values()):
        return refuse(
            "no_container_runtime",
            f"the job names the image {spec.image[:80]!r}, but no node of this cluster can run containers",
            "leave `image` out and give a command that the nodes have",
            image=spec.image[:80],
        )
    return None


def never_fits(state: ClusterState, shape: Shape) -> Refusal | None:
    """A refusal when no node that ever registered and is selected could run one task, or all of them together
    couldn't run them all."""
    if not state.nodes:
        return None
    demand, room, nodes = shape.demand, 0, list[Node]()
    for node in selected_nodes(state, shape.where, shape.partition):
        nodes.append(node)
        room += tasks_ever(node.inventory, demand)
        if room >= demand.tasks:
            return None
    if not nodes:
        return none_selected(state, shape.where, shape.partition)
    which = "" if len(nodes) == len(state.nodes) else " that it selects"
    if room:
        return refuse(
            "demand_unsatisfiable",
            f"the gang needs {demand.tasks} tasks of {task_demand_text(demand)}; all nodes{which} hold {room} of them "
            "together",
            f"ask for at most {room} tasks" + (_SHARE if demand.tasks_per_node else ""),
            tasks=demand.tasks,
            tasks_max=room,
        )
    return _too_large([node.inventory for node in nodes], demand, which)


def _too_large(inventories: Sequence[Inventory], demand: Demand, which: str) -> Refusal:
    largest = max(inventories, key=lambda inv: (len(inv.gpus), inv.cpus, inv.memory_mb))
    suitable = max(len(suitable_gpus(inv.gpus, demand)) for inv in inventories)
    models = sorted({gpu.model for inv in inventories for gpu in inv.gpus})
    hint = "ask for less per task"
    if demand.gpu_count and not suitable:
        hint = f"the GPUs here are: {', '.join(models[:8]) or 'none'}"
    elif suitable and demand.gpu_count > suitable:
        hint = f"spread it over several tasks: `--tasks N --gpus {suitable}` at most per task"
    return refuse(
        "demand_unsatisfiable",
        f"no node{which} could ever run one task of {task_demand_text(demand)}; the largest has {len(largest.gpus)} "
        f"GPU(s), {largest.cpus} CPU(s) and {largest.memory_mb} MiB memory, and at most {suitable} GPU(s) suit on one "
        "node",
        hint,
        gpus=len(largest.gpus),
        suitable_gpus=suitable,
        cpus=largest.cpus,
        memory_mb=largest.memory_mb,
    )
