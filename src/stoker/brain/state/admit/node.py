"""Admission of nodes that join, drain, resume and leave, and of the tasks that they say they run."""

from collections.abc import Iterable
from typing import Final

from stoker.brain.domain.errors import Refusal, StokerError, refuse
from stoker.brain.domain.gpu import index_text
from stoker.brain.domain.ids import GpuUuid, JobId, NodeName
from stoker.brain.domain.instruction import TaskKey
from stoker.brain.domain.job import EndCause, Job, StopCause, TaskEnd, tasks_on
from stoker.brain.domain.label import check_label, parse_taint
from stoker.brain.domain.node import Inventory, Node, OrphanTask
from stoker.brain.domain.report import TaskPhase, TaskStatus
from stoker.brain.domain.units import NEVER, Instant, counted
from stoker.brain.state.attempt_outcome import end_tasks
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.commands import Answer, CompareInventory, DrainNode, ForgetNode, Register, ResumeNode
from stoker.brain.state.events.job import AttemptStopping, TaskStarted
from stoker.brain.state.events.node import (
    NodeDrained,
    NodeDropped,
    NodeForgotten,
    NodeReachable,
    NodeRegistered,
    NodeResumed,
    NodeReturned,
    OrphanTasksFound,
)
from stoker.brain.state.events.union import Event
from stoker.brain.state.leases import broken_leases
from stoker.brain.state.validation.lookups import find_node, find_registered_node

NODES_MAX: Final = 10_000
"""One more makes the node that was forgotten first be dropped; without forgotten ones it is refused."""
GPUS_PER_NODE_MAX: Final = 1_024
_RUNS: Final = (TaskPhase.RUNNING, TaskPhase.ENDING)


def register(state: ClusterState, command: Register) -> Answer:
    """Admit a node that joins or whose inventory has changed.

    Rules: R1  jobs on GPUs that have failed since are stopped, unless the policy lets them go on; those that are ending
               already end as they were told to
    """
    name, inventory = command.registration.node, command.registration.inventory
    fault = _inventory_fault(state, name, inventory)
    if fault:
        return fault
    old = state.nodes.get(name)
    if old is not None and not old.forgotten and old.inventory == inventory:
        return ()
    return (*_dropped(state, name), NodeRegistered(node=name, inventory=inventory), *_stopped(state, old, inventory))


def _stopped(state: ClusterState, old: Node | None, inventory: Inventory) -> Iterable[AttemptStopping]:
    """Yield the end of attempts whose GPUs have failed (R1)."""
    known = {each.uuid for each in old.inventory.conditions if each.ends_work} if old else set[GpuUuid]()
    failed = {each.uuid: each for each in inventory.conditions if each.ends_work and each.uuid not in known}
    if not failed or old is None or not state.policy.gpu_faults_stop_jobs:
        return
    stopped: dict[JobId, None] = {}
    for (job, number, _), placement in state.indexes.held.get(old.name, {}).items():
        bad = next((failed[uuid] for uuid in placement.gpus if uuid in failed), None)
        attempt = state.jobs[job].live_attempt
        if bad is None or job in stopped or attempt is None or attempt.stop is not None:
            continue
        stopped[job] = None
        error = f"GPU {index_text(bad.index)} of node {old.name} ({bad.uuid}): {bad.reason}"
        yield AttemptStopping(job=job, attempt=number, cause=StopCause.GPU_FAILED, error=error)


def _dropped(state: ClusterState, name: NodeName) -> tuple[NodeDropped, ...]:
    if name in state.nodes or len(state.nodes) < NODES_MAX:
        return ()
    forgotten = (node for node in state.nodes.values() if node.forgotten)
    return (NodeDropped(node=min(forgotten, key=lambda node: (node.silent_since, node.name)).name),)


def _inventory_fault(state: ClusterState, name: NodeName, inventory: Inventory) -> Refusal | None:
    full = name not in state.nodes and len(state.nodes) >= NODES_MAX
    if full and not any(node.forgotten for node in state.nodes.values()):
        hint = "forget nodes that are gone"
        return refuse("too_many_nodes", f"{NODES_MAX} nodes are known already", hint, nodes_max=NODES_MAX)
    uuids = [gpu.uuid for gpu in (*inventory.gpus, *inventory.withheld)]
    if len(uuids) > GPUS_PER_NODE_MAX:
        what = f"reports {len(uuids)} GPUs; at most {GPUS_PER_NODE_MAX} are taken"
        return _bad_inventory(name, what, "check the agent's GPU detection")
    if len(dict.fromkeys(uuids)) != len(uuids):
        return _bad_inventory(name, "reports one GPU twice", "check the agent's GPU detection")
    for uuid in uuids:
        owner = state.indexes.gpu_owner.get(uuid, name)
        if owner != name:
            message = f"node {name} reports GPU {uuid}, which node {owner} has"
            hint = f"stop one of the two agents, or `stoker node forget {owner}` if that name is no longer used"
            return refuse("gpu_claimed", message, hint, node=name, owner=owner, gpu=uuid)
    fault = _carried_fault(state.nodes.get(name), name, inventory, state.policy.node_labels_max)
    return fault or _name_taken(state, name, inventory) or _renamed(state, name, inventory)


def _carried_fault(old: Node | None, name: NodeName, inventory: Inventory, most: int) -> Refusal | None:
    # Labels and taints that no selector could ask for are refused where they come from. Those that an older version
    # took are taken again: an upgrade must not cost a node.
    carried = (inventory.labels, inventory.taints)
    if old is not None and (old.inventory.labels, old.inventory.taints) == carried:
        return None
    if max(len(inventory.labels), len(inventory.taints)) > most:
        why = f"{len(inventory.labels)} labels and {len(inventory.taints)} taints; at most {most} of each are taken"
        return _bad_inventory(name, f"reports {why}", "name fewer in its agent.yaml")
    keys: dict[str, None] = {}
    try:
        for key, value in inventory.labels.items():
            check_label(key, value)
        for text in inventory.taints:
            keys[parse_taint(text).key] = None
    except StokerError as fault:
        return _bad_inventory(name, f"reports what can't be: {fault.refusal.message}", "mend its agent.yaml")
    if len(keys) < len(inventory.taints):
        return _bad_inventory(name, "reports two taints of one key", "name one of them in its agent.yaml")
    return None


def _bad_inventory(name: NodeName, what: str, hint: str) -> Refusal:
    return refuse("bad_inventory", f"node {name} {what}", hint, node=name)


def _name_taken(state: ClusterState, name: NodeName, inventory: Inventory) -> Refusal | None:
    # Two machines under one name would each be told that the other's work is gone.
    old = state.nodes.get(name)
    if old is None or old.forgotten or not old.inventory.agent_uid or old.inventory.agent_uid == inventory.agent_uid:
        return None
    # What was settled without proof is no work that another machine could be told to end.
    if name not in state.indexes.held and all(orphan.unproved for orphan in old.strays):
        return None
    message = f"node {name} holds work and belongs to another agent's data folder"
    hint = f"give this agent another name, or `stoker node forget --force {name}` if the old machine is surely gone"
    return refuse("node_name_taken", message, hint, node=name)


def _renamed(state: ClusterState, name: NodeName, inventory: Inventory) -> Refusal | None:
    # Under a new name the tasks of a machine would be orphans and killed. A copied data folder has another boot id.
    me = (inventory.agent_uid, inventory.boot_id)
    for old in state.indexes.held if inventory.agent_uid else ():
        known = state.nodes[old].inventory
        if old != name and (known.agent_uid, known.boot_id) == me:
            return refuse(
                "node_name_taken",
                f"this machine is node {old}, which holds work, and now calls itself {name}",
                f"set node.name to {old} until its jobs have ended, or `stoker node forget --force {old}` to end them",
                node=name,
                owner=old,
            )
    return None


def compare(state: ClusterState, command: CompareInventory, now: Instant) -> Answer:
    """Admit what follows from the tasks that a node says it runs.

    Rules: C1  a task that runs there and is live here has started
           C2  a task that had started and isn't there is gone: it ends
           C3  a task that never was seen to start and isn't there is left alone: its start is sent again
           C4  a task that runs there and isn't live here is an orphan, told to stop, and its GPUs are not offered
           C5  GPUs that were in quarantine are offered again unless one of those tasks does run there
           C6  from then on the node gets new work: it is reachable, and has returned
    """
    node = find_registered_node(state, command.node)
    if isinstance(node, Refusal):
        return node
    there = {status.key: status for status in command.inventory.tasks}
    events: list[Event] = []
    for job_id in tuple(state.indexes.on_node.get(node.name, ())):
        events.extend(_compare_job(state, state.jobs[job_id], node.name, there, now))
    strays = tuple(_orphans(state, node.name, there.values()))
    events.extend(broken_leases(state, node, (TaskKey(*orphan.key) for orphan in strays)))
    if strays != node.strays:
        events.append(OrphanTasksFound(node=node.name, strays=strays))
    if not node.reachable:
        events.append(NodeReachable(node=node.name))
    elif not node.returned:
        events.append(NodeReturned(node=node.name))
    return tuple(events)


def _compare_job(
    state: ClusterState, job: Job, node: NodeName, there: dict[TaskKey, TaskStatus], now: Instant
) -> Iterable[Event]:
    ends: dict[int, TaskEnd] = {}
    for task in tasks_on(job, node):
        key = TaskKey(job.id, job.attempts[-1].number, task.placement.rank)
        status = there.get(key)
        if status is None and task.started_at != NEVER:
            ends[key.rank] = TaskEnd(cause=EndCause.GONE, at=now, error="the node has no trace of it")
        elif status is not None and status.phase in _RUNS and task.started_at == NEVER:
            yield TaskStarted(job=key.job, attempt=key.attempt, rank=key.rank)
    if ends:
        yield from end_tasks(job, ends, now, state.policy)


def _orphans(state: ClusterState, node: NodeName, statuses: Iterable[TaskStatus]) -> Iterable[OrphanTask]:
    for status in statuses:
        key = status.key
        if status.phase is not TaskPhase.ENDED and not _is_live(state, key, node):
            yield OrphanTask(job=key.job, attempt=key.attempt, rank=key.rank, gpus=status.gpus)


def _is_live(state: ClusterState, key: TaskKey, node: NodeName) -> bool:
    return (key.job, key.attempt, key.rank) in state.indexes.held.get(node, {})


def drain(state: ClusterState, command: DrainNode) -> Answer:
    """Admit that a node gets no new work."""
    node = find_registered_node(state, command.node)
    if isinstance(node, Refusal):
        return node
    return () if node.drain == command.reason else (NodeDrained(node=node.name, reason=command.reason, by=command.by),)


def resume(state: ClusterState, command: ResumeNode) -> Answer:
    """Admit the end of a node's drain and of its pause, with what led to that."""
    node = find_registered_node(state, command.node)
    if isinstance(node, Refusal):
        return node
    is_trusted = node.drain is None and not (node.failed_starts or node.pauses)
    return () if is_trusted else (NodeResumed(node=node.name),)


def forget(state: ClusterState, command: ForgetNode, now: Instant) -> Answer:
    """Admit the end of a silent node that holds nothing; with `force` of any, its tasks settled without proof."""
    node = find_node(state, command.node)
    if isinstance(node, Refusal):
        return node
    if node.forgotten:
        return ()
    jobs = tuple(state.indexes.on_node.get(node.name, ()))
    if not command.force and (node.reachable or jobs):
        return _forget_refused(node, jobs)
    events: list[Event] = []
    for job_id in jobs:
        job = state.jobs[job_id]
        end = TaskEnd(cause=EndCause.FORGOTTEN, at=now, error=f"{command.by} said that the node is gone")
        ends = {task.placement.rank: end for task in tasks_on(job, node.name)}
        events.extend(end_tasks(job, ends, now, state.policy))
    return (*events, NodeForgotten(node=node.name))


def _forget_refused(node: Node, jobs: tuple[JobId, ...]) -> Refusal:
    what = f"holds work of {counted(len(jobs), 'job')}" if jobs else "is reachable"
    hint = "stop its agent first; if the machine is surely gone, `--force` ends what it held without proof"
    return refuse("node_in_use", f"node {node.name} {what}", hint, node=node.name, jobs=len(jobs))
