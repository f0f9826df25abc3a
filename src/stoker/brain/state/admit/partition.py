"""Admission of commands that make, change and delete partitions.

Rules: Q1  a name is that of a label's value, and not empty
       Q2  the default time lies within the longest, and that within the policy's
       Q3  a change holds for jobs that are submitted from then on; where those that wait may run changes at once
       Q4  a partition that a job names can't be deleted before that job has ended
"""

from stoker.brain.domain.errors import Refusal, refuse
from stoker.brain.domain.ids import JobId, PartitionName
from stoker.brain.domain.partition import Partition
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.units import counted, human_duration
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.commands import Answer, DeletePartition, PutPartition
from stoker.brain.state.events.partition import PartitionDefined, PartitionDeleted
from stoker.brain.state.validation.fields import comment_fault, name_fault
from stoker.brain.state.validation.lookups import find_partition
from stoker.brain.state.validation.where import excluded_fault, terms_fault


def put(state: ClusterState, command: PutPartition) -> Answer:
    """Admit a new partition, or new values of one that exists."""
    partition = command.partition
    old = state.partitions.get(partition.name)
    if old is not None and command.create:
        message = f"there is a partition {partition.name} already"
        hint = f"change it with `stoker partition set {partition.name}`, or choose another name"
        return refuse("partition_exists", message, hint, partition=partition.name)
    fault = (
        name_fault("bad_partition_name", "partition", partition.name, "`a100` or `long-runs`")
        or _time_fault(partition, state.policy)
        or comment_fault(partition.comment, state.policy.text_bytes_max)
        or terms_fault(partition.where, state.policy)
        or excluded_fault(state, partition.where.exclude)
        or (None if old else _full(state))
    )
    if fault:
        return fault
    return () if old == partition else (PartitionDefined(partition=partition),)


def _time_fault(partition: Partition, policy: Policy) -> Refusal | None:
    longest = partition.time_max_ms or policy.time_limit_max_ms
    for what, given, most, whose in (
        ("longest", partition.time_max_ms, policy.time_limit_max_ms, "longest of the cluster"),
        ("default", partition.time_default_ms, longest, "longest of the partition"),
    ):
        if given > most:
            message = (
                f"the {what} time of partition {partition.name} is {human_duration(given)}, and the {whose} "
                f"{human_duration(most)}"
            )
            hint = f"give at most {human_duration(most)}"
            return refuse("time_limit_too_long", message, hint, limit_ms=given, limit_max_ms=most)
    return None


def _full(state: ClusterState) -> Refusal | None:
    most = state.policy.partitions_max
    if len(state.partitions) < most:
        return None
    message = f"there are {most} partitions already, as many as are taken"
    hint = "delete one that nobody uses, or let jobs select nodes with `--where`"
    return refuse("too_many_partitions", message, hint, partitions_max=most)


def delete(state: ClusterState, command: DeletePartition) -> Answer:
    """Admit the end of a partition that no job names which hasn't ended. Costs a look at every job in the state."""
    partition = find_partition(state, command.name)
    if isinstance(partition, Refusal):
        return partition
    jobs = [job.id for job in state.jobs.values() if job.spec.partition == partition.name and not job.is_final]
    return _in_use(partition.name, jobs) if jobs else (PartitionDeleted(name=partition.name),)


def _in_use(name: PartitionName, jobs: list[JobId]) -> Refusal:
    many = f"{counted(len(jobs), 'job')} yet to end {'names' if len(jobs) == 1 else 'name'}"
    message = f"{many} partition {name}, such as job {min(jobs)}"
    return refuse("partition_in_use", message, "wait for them to end, or cancel them", partition=name, jobs=len(jobs))
