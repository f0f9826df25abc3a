"""Does what a job selects exist, and which nodes are it?

Selections are judged at submit, against what is known then; a label that changes later changes only where it may run.

Rules: E1  a partition that isn't there is refused, with the nearest name
       E2  a time limit above the partition's longest is refused, and who names none gets the partition's default
       E3  who excludes a node that never registered has mistyped it, and is told so while any node is known
       E4  selection and partition must both hold
       E5  taints come and go, as drains do, and aren't of the job's making: they make it wait, and never refuse it
"""

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from stoker.brain.domain.errors import Refusal, refuse
from stoker.brain.domain.ids import NodeName, PartitionName
from stoker.brain.domain.job import JobSpec
from stoker.brain.domain.label import labels_of
from stoker.brain.domain.node import Node
from stoker.brain.domain.partition import Partition, selection
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.suggestion import did_you_mean
from stoker.brain.domain.units import human_duration
from stoker.brain.domain.where import Toleration, Where, where_text, why_not
from stoker.brain.state.cluster import ClusterState


def time_default(state: ClusterState, spec: JobSpec) -> int:
    """Milliseconds for a job that names no time limit (E2)."""
    partition = state.partitions.get(spec.partition)
    policy = state.policy.time_limit_default_ms
    if partition is None:
        return policy
    longest = partition.time_max_ms or state.policy.time_limit_max_ms
    return partition.time_default_ms or min(policy, longest)


def where_fault(state: ClusterState, spec: JobSpec) -> Refusal | None:
    """Why the selection of a job can't be meant. Its time limit must have been filled in."""
    return (
        partition_fault(state, spec.partition)
        or _too_long(state.partitions.get(spec.partition), spec.time_limit_ms)
        or terms_fault(spec.where, state.policy)
        or excluded_fault(state, spec.where.exclude)
    )


def partition_fault(state: ClusterState, name: PartitionName) -> Refusal | None:
    """Refuses a partition that isn't there (E1): of a job to come, and of one that has ended and shall run again."""
    if not name or name in state.partitions:
        return None
    return refuse(
        "unknown_partition",
        f"there is no partition {name[:80]!r}",
        did_you_mean(name, sorted(state.partitions), "leave it out: this cluster has no partitions"),
        partition=name[:80],
    )


def _too_long(partition: Partition | None, time_limit_ms: int) -> Refusal | None:
    if partition is None or not partition.time_max_ms or time_limit_ms <= partition.time_max_ms:
        return None
    longest = human_duration(partition.time_max_ms)
    return refuse(
        "time_limit_too_long",
        f"a time limit of {human_duration(time_limit_ms)} was asked for; the longest in partition {partition.name} is "
        f"{longest}",
        f"ask for at most {longest}, or choose another partition",
        limit_ms=time_limit_ms,
        limit_max_ms=partition.time_max_ms,
        partition=partition.name,
    )


def terms_fault(where: Where, policy: Policy) -> Refusal | None:
    """Refuses a selection that takes long to look at."""
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
    """E3"""
    for name in names if state.nodes else ():
        if name not in state.nodes:
            return refuse(
                "unknown_node",
                f"there never was a node {name[:80]!r} to exclude",
                did_you_mean(name, sorted(state.nodes), ""),
                node=name[:80],
            )
    return None


def selected_nodes(state: ClusterState, where: Where, partition: PartitionName) -> Iterator[Node]:
    """Of all nodes that ever registered, those that a job may ever run on (E5), one by one: who has seen enough may
    stop."""
    wanted = replace(selection(state.partitions, where, partition), tolerate=(Toleration(),))
    for alike in state.indexes.node_classes.admitted(wanted).alike:
        for name in alike.names:
            yield state.nodes[name]


def none_selected(state: ClusterState, where: Where, partition: PartitionName) -> Refusal:
    """The refusal of a selection that no node which ever registered answers to."""
    wanted = selection(state.partitions, where, partition)
    first = state.nodes[min(state.nodes)]
    why, asked = why_not(wanted, first.name, labels_of(first), ()), where_text(wanted)
    within = f" in partition {partition}" if partition else ""
    return refuse(
        "demand_unsatisfiable",
        f"none of the {len(state.nodes)} node(s) is one that the job selects{within}: it selects {asked[:200]}",
        f"node {first.name}, for one: {why}; `stoker node list -o wide` shows the labels of all",
        nodes=len(state.nodes),
        selected=asked[:200],
    )
