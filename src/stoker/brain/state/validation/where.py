"""Checks of the nodes that a job selects: selection, partition, executor and account, and whether the job ever fits.

A selection is judged when it is submitted, against the nodes that ever registered. A label that changes later changes
only where the job may run.

Rules: E1  a partition that isn't there is refused, with the nearest name
       E2  a time limit above the partition's longest is refused
       E3  an excluded node that never registered is refused as mistyped, while any node is known
       E4  selection, partition and the lists of nodes of the tenant and of those above it must all hold
       E5  taints and drains come and go and aren't of the job's making: they make a job wait, and never refuse it
       E6  a job whose texts are Latin-1 runs only where the agent knows that: an older one would hand it other bytes
       E7  a job with a script runs only where the agent knows that: an older one would look for it on its own disk
       E9  a job with an image runs only on nodes that say that they run containers now, and never as a bare process
       E8  a job that shares a GPU runs only where the agent knows that: an older one would refuse the second sharer
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from msgspec.structs import replace

from stoker.brain.domain.demand import Demand, Shape
from stoker.brain.domain.errors import Refusal, refuse
from stoker.brain.domain.fit import suitable_gpus, task_demand_text, tasks_perhaps
from stoker.brain.domain.gpu import mig_profile
from stoker.brain.domain.ids import NodeName
from stoker.brain.domain.job import JobSpec, TextEncoding
from stoker.brain.domain.label import (
    CONTAINERS,
    JOB_GPU_SHARES,
    JOB_SCRIPTS,
    JOB_TEXTS,
    JOBS_AS,
    NO_GPU_SHARES,
    NO_SCRIPTS,
    ONLY_UTF_8,
    RUNS_CONTAINERS,
    USERS,
    labels_of,
)
from stoker.brain.domain.node import CONTAINER, ROOT, Node
from stoker.brain.domain.partition import selection
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.suggestion import did_you_mean
from stoker.brain.domain.tenant import nodes_text
from stoker.brain.domain.units import counted
from stoker.brain.domain.where import Operator, Requirement, Toleration, Where, both, where_text, why_not
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.validation.fields import account_fault, time_limit_fault
from stoker.brain.state.validation.lookups import partition_fault

_NOT_FOR_USERS: Final = Where(require=(Requirement(JOBS_AS, Operator.NOT_IN, (USERS,)),))
_READS_LATIN_1: Final = Where(require=(Requirement(JOB_TEXTS, Operator.NOT_IN, (ONLY_UTF_8,)),))
_KEEPS_SCRIPTS: Final = Where(require=(Requirement(JOB_SCRIPTS, Operator.NOT_IN, (NO_SCRIPTS,)),))
_RUNS_CONTAINERS: Final = Where(require=(Requirement(CONTAINERS, Operator.IN, (RUNS_CONTAINERS,)),))
_SHARES_GPUS: Final = Where(require=(Requirement(JOB_GPU_SHARES, Operator.NOT_IN, (NO_GPU_SHARES,)),))
_SHARE: Final = ", or let more of them share a node (`--tasks-per-node`)"


def where_fault(state: ClusterState, spec: JobSpec) -> Refusal | None:
    """Return the refusal of a job's partition, time limit or selection; its time limit must have been filled in."""
    return (
        partition_fault(state, spec.partition)
        or _too_long(state, spec)
        or terms_fault(spec.where, state.policy)
        or excluded_fault(state, spec.where.exclude)
    )


def _too_long(state: ClusterState, spec: JobSpec) -> Refusal | None:
    partition = state.partitions.get(spec.partition)
    if partition is None or not partition.time_max_ms:
        return None
    scope, name = f"in partition {partition.name}", partition.name
    return time_limit_fault(
        spec.time_limit_ms, partition.time_max_ms, scope, "choose another partition", partition=name
    )


def terms_fault(where: Where, policy: Policy) -> Refusal | None:
    """Return the refusal of a selection with more values, names and tolerations than the policy allows."""
    if where.terms <= policy.selector_terms_max:
        return None
    return refuse(
        "too_many_terms",
        f"the selection has {where.terms} values, names and tolerations; at most {policy.selector_terms_max} are taken",
        "put a label on the nodes that are meant (`stoker node label`), and select by that",
        terms=where.terms,
        terms_max=policy.selector_terms_max,
    )


def excluded_fault(state: ClusterState, names: Iterable[NodeName]) -> Refusal | None:
    """Return the refusal of an excluded node that never registered, with the nearest name (E3)."""
    for name in names if state.nodes else ():
        if name not in state.nodes:
            hint = did_you_mean(name, sorted(state.nodes), "")
            return refuse("unknown_node", f"there never was a node {name[:80]!r} to exclude", hint, node=name[:80])
    return None


def executor_fault(state: ClusterState, spec: JobSpec) -> Refusal | None:
    """Return the refusal of an account, an encoding or a container image for which no node would start the job."""
    return (
        account_fault(spec.user)
        or _no_node_for_account(state, spec.user)
        or _no_node_for_encoding(state, spec.encoding)
        or _no_node_for_script(state, spec.script)
        or _no_node_for_shares(state, spec.demand)
        or _no_container_runtime(state, spec.image)
    )


def _no_node_for_account(state: ClusterState, user: str) -> Refusal | None:
    # An agent that isn't root runs every job as itself.
    if not state.indexes.node_classes.strict.all:
        return None
    if not user:
        message = "the job names no Unix user, and agents here run as root: they start no job without one"
        hint = "submit with a token that names one: `stoker token create --role user --tenant T --user U`"
        return refuse("user_required", message, hint)
    if user != ROOT:
        return None
    hint = (
        "submit with a token of another user (`stoker token create --user U`), or set `executor.allow_root: true` on a "
        "node"
    )
    return refuse("root_refused", "the job would run as root, which no node allows", hint)


def _no_node_for_encoding(state: ClusterState, encoding: TextEncoding) -> Refusal | None:
    """Return the refusal of texts that aren't UTF-8 where no node's agent can read them (E6)."""
    nodes = len(state.nodes)
    if encoding is TextEncoding.UTF_8 or not nodes:
        return None
    if any(node.inventory.reads_latin_1 for node in state.nodes.values()):
        return None
    message = f"the texts of the job are {encoding}, and the agents of all nodes ({nodes}) are too old to know that"
    hint = "upgrade an agent first; or name files and variables in UTF-8 only"
    return refuse("encoding_unknown", message, hint, encoding=encoding.value, nodes=nodes)


def _no_node_for_script(state: ClusterState, script: str) -> Refusal | None:
    """Return the refusal of a script where no node's agent can keep one (E7)."""
    nodes = len(state.nodes)
    if not script or not nodes or any(node.inventory.keeps_scripts for node in state.nodes.values()):
        return None
    message = f"the job brings a script, and the agents of all nodes ({nodes}) are too old to know that"
    hint = "upgrade an agent first; or put the script where the nodes can read it, and submit `-- /its/path`"
    return refuse("scripts_unknown", message, hint, nodes=nodes)


def _no_node_for_shares(state: ClusterState, demand: Demand) -> Refusal | None:
    """Return the refusal of a share of a GPU where no node's agent knows shares (E8)."""
    nodes = len(state.nodes)
    if not demand.shares or not nodes or any(node.inventory.shares_gpus for node in state.nodes.values()):
        return None
    message = f"the job asks for a share of a GPU, and the agents of all nodes ({nodes}) are too old to know that"
    hint = "upgrade an agent first; or ask for a whole GPU (`--gpus 1`)"
    return refuse("shares_unknown", message, hint, nodes=nodes)


def _no_container_runtime(state: ClusterState, image: str) -> Refusal | None:
    # A node that is set up for them and can't run any just now is waited for.
    inventories = [node.inventory for node in state.nodes.values()] if image else []
    if not image or any(each.containers_fault or CONTAINER in each.executors for each in inventories):
        return None
    message = f"the job names the image {image[:80]!r}, but no node of this cluster can run containers"
    hint = "leave `image` out and give a command that the nodes have"
    return refuse("no_container_runtime", message, hint, image=image[:80])


def kept_off_strict_nodes(spec: JobSpec) -> JobSpec:
    """Return the job with a selection that avoids nodes which would refuse its user.

    Such nodes start no job without a user, or as root.
    """
    return replace(spec, where=both(spec.where, _NOT_FOR_USERS)) if spec.user in ("", ROOT) else spec


def kept_where_it_can_be_read(spec: JobSpec) -> JobSpec:
    """Return the job with a selection that avoids nodes too old for its encoding, scripts or shares (E6 to E8).

    One with an image runs only where containers do (E9).
    """
    if spec.encoding is not TextEncoding.UTF_8:
        spec = replace(spec, where=both(spec.where, _READS_LATIN_1))
    if spec.image:
        spec = replace(spec, where=both(spec.where, _RUNS_CONTAINERS))
    if spec.demand.shares:
        spec = replace(spec, where=both(spec.where, _SHARES_GPUS))
    return replace(spec, where=both(spec.where, _KEEPS_SCRIPTS)) if spec.script else spec


def never_fits(state: ClusterState, shape: Shape) -> Refusal | None:
    """Return the refusal of a job that the nodes it selects could not run even if they were empty."""
    if not state.nodes:
        return None
    demand, fitting, nodes = shape.demand, 0, list[Node]()
    for node in selected_nodes(state, shape):
        nodes.append(node)
        fitting += tasks_perhaps(node, demand)
        if fitting >= demand.tasks:
            return None
    if not nodes:
        return none_selected(state, shape)
    which = "" if len(nodes) == len(state.nodes) else " that it selects"
    if fitting:
        message = (
            f"the gang needs {demand.tasks} tasks of {task_demand_text(demand)}; all nodes{which} hold {fitting} of "
            "them together"
        )
        hint = f"ask for at most {fitting} tasks" + (_SHARE if demand.tasks_per_node else "")
        return refuse("demand_unsatisfiable", message, hint, tasks=demand.tasks, tasks_max=fitting)
    return _too_large(nodes, demand, which)


def selected_nodes(state: ClusterState, shape: Shape) -> Iterator[Node]:
    """Yield the nodes that ever registered on which a job may ever run, whatever their taints now (E5).

    One that is set up for containers, and can run none just now, counts as one that can.
    """
    wanted = replace(selection(state.partitions, state.tenants, shape), tolerate=(Toleration(),))
    others = tuple(each for each in wanted.require if each not in _RUNS_CONTAINERS.require)
    in_container = len(others) < len(wanted.require)
    for node_class in state.indexes.node_classes.admitted(replace(wanted, require=others)).classes:
        for name in node_class.names:
            node = state.nodes[name]
            if not in_container or node.inventory.containers_fault or CONTAINER in node.inventory.executors:
                yield node


def none_selected(state: ClusterState, shape: Shape) -> Refusal:
    """Return the refusal of a selection that no node which ever registered answers to."""
    wanted = selection(state.partitions, state.tenants, shape)
    first = state.nodes[min(state.nodes)]
    why, asked = why_not(wanted, first.name, labels_of(first), ()), where_text(wanted)
    within = f" in partition {shape.partition}" if shape.partition else ""
    nodes = nodes_text(state.tenants, shape.tenant)
    within += f", of those that tenant {shape.tenant} may use ({nodes[:200]})" if nodes else ""
    none = "the only node isn't one" if len(state.nodes) == 1 else f"none of the {len(state.nodes)} nodes is one"
    message = f"{none} that the job selects{within}: it selects {asked[:200]}"
    hint = f"node {first.name}, for one: {why}; `stoker node list -o wide` shows the labels of all"
    return refuse("demand_unsatisfiable", message, hint, nodes=len(state.nodes), selected=asked[:200])


def _too_large(nodes: Sequence[Node], demand: Demand, which: str) -> Refusal:
    inventories = [node.mended for node in nodes]
    largest = max(inventories, key=lambda inv: (len(inv.gpus), inv.cpus, inv.memory_mb))
    suit = [len(suitable_gpus(inv.gpus, demand)) for inv in inventories]
    suitable = max(suit)
    models = sorted({gpu.model for inv in inventories for gpu in inv.gpus})
    hint = "ask for less per task"
    if demand.gpu_count and not suitable:
        hint = f"the GPUs here are: {', '.join(models[:8]) or 'none'}"
        if not demand.gpu_model and any(map(mig_profile, models)):
            hint += "; a MIG instance is given to who asks for one, such as `--gpu-model mig`"
    elif suitable and demand.gpu_count > suitable:
        few = f"ask for {suitable} at most"
        hint = few if sum(suit) < demand.total_gpus else f"{few} per task, and spread it over several: `--tasks N`"
    unread = [node.name for node in nodes if demand.gpu_count and node.hides_unknown]
    if unread:
        hint += f"; GPUs of {counted(len(unread), 'node')}, {unread[0]} for one, can't be read: see `stoker node list`"
    return refuse(
        "demand_unsatisfiable",
        f"no node{which} could ever run one task of {task_demand_text(demand)}; the largest has "
        f"{counted(len(largest.gpus), 'GPU')}, {counted(largest.cpus, 'CPU')} and {largest.memory_mb} MiB memory, and "
        f"at most {counted(suitable, 'GPU')} {'suits' if suitable == 1 else 'suit'} on one node",
        hint,
        gpus=len(largest.gpus),
        suitable_gpus=suitable,
        cpus=largest.cpus,
        memory_mb=largest.memory_mb,
    )
