"""Look-ups of jobs, nodes, partitions and tenants by name, each with the refusal of a name that isn't there."""

from collections.abc import Iterable

from stoker.brain.domain.array import JobRef, contains, spans_text
from stoker.brain.domain.errors import Refusal, refuse
from stoker.brain.domain.ids import NodeName, PartitionName, TenantName
from stoker.brain.domain.job import Job
from stoker.brain.domain.node import Node
from stoker.brain.domain.partition import Partition
from stoker.brain.domain.suggestion import did_you_mean
from stoker.brain.domain.tenant import Tenant
from stoker.brain.state.cluster import ClusterState


def find_job(state: ClusterState, ref: JobRef) -> Job | Refusal:
    """Return the job, or the one member of an array, that `ref` names; else the refusal says why it isn't there."""
    found = state.find(ref)
    if found is not None:
        return found
    array = state.jobs.get(ref.job)
    if array is None and state.locate(ref.job).members is not None:
        return refuse("not_an_array", f"job {ref.job} is a member of an array", f"say {ref.job} alone", job_id=str(ref))
    newest = f"the newest {state.policy.ended_jobs_max} ended jobs are kept"
    if array is None and ref.job < state.next_job_id:
        message, hint = f"job {ref} ended so long ago that its record is gone", f"{newest}; `stoker list` shows them"
        return refuse("job_forgotten", message, hint, job_id=str(ref))
    if array is None or ref.members is None:
        hint = "`stoker list` shows the jobs there are"
        return refuse("job_unknown", f"there is no job {ref}", hint, job_id=str(ref))
    if array.members is None or array.spec.array is None:
        return refuse("not_an_array", f"job {ref.job} is no array", f"say {ref.job} alone", job_id=str(ref))
    indexes = array.spec.array.indexes
    if contains(indexes, ref.members[0][0]):
        message = f"member {ref} ended so long ago that its record is gone"
        return refuse("job_forgotten", message, newest, job_id=str(ref))
    message = f"array {ref.job} has no member {spans_text(ref.members)[:80]}"
    return refuse("member_unknown", message, f"its members are {spans_text(indexes)[:80]}", job_id=str(ref))


def find_node(state: ClusterState, name: NodeName) -> Node | Refusal:
    """Return the node of this name, also a forgotten one."""
    none = "no node has registered yet: start `stoker agent -c FILE` on one"
    return state.nodes.get(name) or refuse_unknown("node_unknown", "node", name, state.nodes, none)


def find_registered_node(state: ClusterState, name: NodeName) -> Node | Refusal:
    """Return the node of this name, unless it was forgotten."""
    node = find_node(state, name)
    if isinstance(node, Refusal) or not node.forgotten:
        return node
    hint = "start its agent again, and it registers by itself"
    return refuse("node_forgotten", f"node {name} was forgotten", hint, node=name)


def find_tenant(state: ClusterState, name: TenantName) -> Tenant | Refusal:
    """Return the tenant of this name."""
    none = "`stoker tenant list` shows those there are"
    return state.tenants.get(name) or refuse_unknown("unknown_tenant", "tenant", name, state.tenants, none)


def tenant_fault(state: ClusterState, name: TenantName) -> Refusal | None:
    """Return the refusal of a tenant that isn't there."""
    found = find_tenant(state, name)
    return found if isinstance(found, Refusal) else None


def find_partition(state: ClusterState, name: PartitionName) -> Partition | Refusal:
    """Return the partition of this name, for a command about the partition itself."""
    none = "`stoker partition create NAME` makes one"
    return state.partitions.get(name) or refuse_unknown("partition_unknown", "partition", name, state.partitions, none)


def partition_fault(state: ClusterState, name: PartitionName) -> Refusal | None:
    """Return the refusal of a partition that a job names and that isn't there; the empty name stands for none."""
    if not name or name in state.partitions:
        return None
    none = "leave it out: this cluster has no partitions"
    return refuse_unknown("unknown_partition", "partition", name, state.partitions, none)


def refuse_unknown(code: str, noun: str, name: str, known: Iterable[str], none: str) -> Refusal:
    """Return the refusal of a name that isn't known, with the nearest one that is; `none` is the hint if none is."""
    hint = did_you_mean(name, sorted(known), none)
    return refuse(code, f"there is no {noun} {name[:80]!r}", hint, **{noun: name[:80]})
