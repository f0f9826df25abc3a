"""REST routes for nodes and their GPUs: list, show, drain, resume, forget, set labels and taints."""

from collections.abc import Callable
from typing import Final

from starlette.requests import Request

from stoker.api.http.gpu_figures import figures_of, node_hour, watch_figures
from stoker.api.http.responses import body_of, caller_of, carry_out, query_of, read_body
from stoker.api.http.routing import BODY, CHANGE, NODE, Routes
from stoker.brain.domain.allocation import TaskPlacement
from stoker.brain.domain.errors import Refusal, StokerError
from stoker.brain.domain.gpu import WHOLE_GPU
from stoker.brain.domain.health import HealthKind, HealthState
from stoker.brain.domain.ids import GpuUuid, JobId, NodeName, Principal
from stoker.brain.domain.label import label_sources, labels_of, parse_taint, taint_sources, taint_text, taints_of
from stoker.brain.domain.node import Node, OrphanTask
from stoker.brain.domain.node_health import node_health
from stoker.brain.domain.sight import Sight
from stoker.brain.domain.units import Instant
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.cluster_counts import (
    count_gpus,
    every_gpu,
    gpu_holders,
    gpu_sharers,
    gpu_statuses,
    known_nodes,
    quarantined_gpus,
)
from stoker.brain.state.commands import Command, DrainNode, ForgetNode, LabelNode, ResumeNode, TaintNode
from stoker.brain.state.validation.lookups import find_node
from stoker.control.access import Sights
from stoker.control.control_plane import ControlPlane
from stoker.wire import endpoints
from stoker.wire.rest.decode import decode_body
from stoker.wire.rest.gpu_figures import NodeHourView
from stoker.wire.rest.node import (
    DrainBody,
    ForgetQuery,
    FreeView,
    GpuHealthView,
    GpuLinkView,
    GpuListView,
    GpuSharerView,
    GpuView,
    LabelsBody,
    NodeHealthView,
    NodeListView,
    NodeView,
    OrphanTaskView,
    PauseView,
    TaintsBody,
    gpu_id,
)
from stoker.wire.rest.view import iso, iso_or_none

_LABELLED: Final = (*NODE, *BODY, "node_forgotten", "too_many_labels", *CHANGE)
"""What a label or taint may be refused with beside its own text."""


def routes(control: ControlPlane) -> Routes:
    router = Routes()

    @router.serve(endpoints.NODES)
    async def list_nodes(request: Request) -> NodeListView:
        """List every node ever registered, by name."""
        state, sees, now = _seen(control, request)
        watch_figures(control, state.nodes.keys())
        nodes = [_node_view(control, state.nodes[name], sees, now) for name in sorted(state.nodes)]
        return NodeListView(nodes=nodes, total=len(nodes))

    @router.serve(endpoints.NODE, *NODE)
    async def show_node(request: Request) -> NodeView:
        """Show one node."""
        node = _node_at(request, control.committer.state)
        watch_figures(control, [node.name])
        return _shown(control, request, node)

    @router.serve(endpoints.DRAIN, *NODE, *BODY, "node_forgotten", *CHANGE)
    async def drain(request: Request) -> NodeView:
        """Give a node no new work. What runs there goes on."""
        data = await body_of(request)
        body = decode_body(DrainBody, data) if data else DrainBody()
        return await _told(control, request, lambda by, node: DrainNode(by=by, node=node, reason=body.reason))

    @router.serve(endpoints.RESUME, *NODE, "node_forgotten", *CHANGE)
    async def resume(request: Request) -> NodeView:
        """End a drain, or the pause of a node on which starts failed."""
        return await _told(control, request, lambda by, node: ResumeNode(by=by, node=node))

    @router.serve(endpoints.FORGET, *NODE, "node_in_use", *CHANGE)
    async def forget(request: Request) -> NodeView:
        """Forget a node that won't come back; with `force`, settle what it held without proof that it is gone."""
        force = query_of(request, ForgetQuery).force
        return await _told(control, request, lambda by, node: ForgetNode(by=by, node=node, force=force))

    @router.serve(endpoints.LABEL, *_LABELLED, "bad_label")
    async def label(request: Request) -> NodeView:
        """Set labels on a node, or take some off: for good, whatever its agent names."""
        body = await read_body(request, LabelsBody)
        labels, off = body.labels, tuple(body.remove)
        return await _told(control, request, lambda by, node: LabelNode(by=by, node=node, labels=labels, remove=off))

    @router.serve(endpoints.TAINT, *_LABELLED, "bad_taint")
    async def taint(request: Request) -> NodeView:
        """Put taints on a node, or take some off. What runs there goes on."""
        body = await read_body(request, TaintsBody)
        off = tuple(body.remove)
        return await _told(
            control,
            request,
            lambda by, node: TaintNode(by=by, node=node, taints=tuple(map(parse_taint, body.taints)), remove=off),
        )

    _serve_gpus(control, router)
    return router


def _serve_gpus(control: ControlPlane, router: Routes) -> None:
    """Serve what is asked of GPUs."""

    @router.serve(endpoints.NODE_FIGURES, *NODE)
    async def figures(request: Request) -> NodeHourView:
        """Show the last hour of a node's GPUs: use, memory, temperature and power."""
        return node_hour(control, _node_at(request, control.committer.state))

    @router.serve(endpoints.GPUS)
    async def list_gpus(request: Request) -> GpuListView:
        """List the GPUs of every node that wasn't forgotten."""
        state, sees, now = _seen(control, request)
        known = list(known_nodes(state))
        watch_figures(control, [node.name for node in known])
        gpus = [gpu for node in known for gpu in _gpus_of(control, node, sees, now)]
        return GpuListView(**count_gpus(state)._asdict(), gpus=gpus)


def _seen(control: ControlPlane, request: Request) -> tuple[ClusterState, Sights, Instant]:
    """The state of now, as the caller of a request sees it."""
    state = control.committer.state
    return state, Sights(state, caller_of(request)), control.committer.now()


async def _told(control: ControlPlane, request: Request, command: Callable[[Principal, NodeName], Command]) -> NodeView:
    """Give a command about the node that the path names, and show that."""
    node = _node_at(request, control.committer.state)
    await carry_out(control, request, command(caller_of(request).principal, node.name))
    return _shown(control, request, node)


def _shown(control: ControlPlane, request: Request, node: Node) -> NodeView:
    """The node as it is now, or as it was where it has gone."""
    state, sees, now = _seen(control, request)
    return _node_view(control, state.nodes.get(node.name, node), sees, now)


def _node_at(request: Request, state: ClusterState) -> Node:
    """The node that the path names. Raises: StokerError `node_unknown`."""
    found = find_node(state, NodeName(request.path_params["name"]))
    if isinstance(found, Refusal):
        raise StokerError(found)
    return found


def _node_view(control: ControlPlane, node: Node, sees: Sights, now: Instant) -> NodeView:
    state = control.committer.state
    ahead_ms = control.nodes.clock_ahead_ms(node.name) if control.nodes is not None else 0
    health = node_health(node, ahead_ms)
    inventory, free = node.inventory, state.indexes.free.get(node.name)
    return NodeView(
        name=node.name,
        state=state.node_state(node.name),
        online=node.reachable and not node.forgotten,
        schedulable=node.takes_work,
        drain=node.drain,
        drained_by=node.drained_by,
        drained_at=iso_or_none(node.drained_at),
        pause=PauseView(until=iso(node.pause.until), error=node.pause.error) if node.pause else None,
        silent_since=iso_or_none(node.silent_since),
        registered_at=iso(node.registered_at),
        address=inventory.address,
        cpus=inventory.cpus,
        memory_mb=inventory.memory_mb,
        free=FreeView(gpus=len(free.gpus), cpus=free.cpus, memory_mb=free.memory_mb) if free else _NOTHING,
        gpus=_gpus_of(control, node, sees, now),
        links=[GpuLinkView(first=link.first, second=link.second, lanes=link.lanes) for link in inventory.links],
        jobs=[str(job) for job in state.indexes.on_node.get(node.name, ()) if _is_seen(state, job, sees)],
        strays=[
            OrphanTaskView(
                job=str(stray.job),
                attempt=stray.attempt,
                rank=stray.rank,
                gpus=stray.gpus,
                quarantined_since=iso_or_none(stray.settled_at),
            )
            for stray in node.strays
            if _is_seen(state, stray.job, sees)
        ],
        labels=labels_of(node),
        labels_by=label_sources(node),
        labels_off=tuple(sorted(key for key, value in node.labels.items() if value is None)),
        taints=tuple(map(taint_text, taints_of(node))),
        taints_by=taint_sources(node),
        taints_off=node.taints_off,
        executors=inventory.executors,
        account=inventory.account,
        allow_root=inventory.account == "root" and inventory.allow_root,
        keeps_leases=inventory.keeps_leases,
        health=NodeHealthView(state=health.state, reasons=health.reasons),
        clock_ahead_s=round(ahead_ms / 1_000, 1),
        fault=inventory.fault,
        limits=inventory.limits,
        gpu_fault=inventory.gpu_fault,
        containers_fault=inventory.containers_fault,
        shares_gpus=inventory.shares_gpus,
        mps=inventory.mps,
        unenforced=inventory.unenforced,
        simulated=inventory.simulated,
        version=inventory.version,
        boot_id=inventory.boot_id,
    )


_NOTHING = FreeView(gpus=0, cpus=0, memory_mb=0)
_HEALTHY = GpuHealthView(state=HealthState.HEALTHY)


def _gpus_of(control: ControlPlane, node: Node, sees: Sights, now: Instant) -> list[GpuView]:
    """Return the jobs of each GPU; a caller is shown those of jobs of which it sees where they run."""
    state, figures, health = control.committer.state, figures_of(control, node.name), _health_of(node)
    named = {uuid: str(job) for uuid, job in gpu_holders(state, node).items() if _is_seen(state, job, sees)}
    notes = {uuid: _quarantine_note(state, node, stray, sees) for uuid, stray in quarantined_gpus(node).items()}
    status_of, sharers, free = gpu_statuses(state, node), gpu_sharers(state, node), state.indexes.free.get(node.name)
    rests = {rest.gpu.uuid: rest.left for rest in free.shared} if free else {}
    return [
        GpuView(
            id=gpu_id(node.name, gpu.index),
            uuid=gpu.uuid,
            node_id=node.name,
            node=node.name,
            device_index=gpu.index,
            model=gpu.model,
            memory=gpu.memory_mb,
            memory_mb=gpu.memory_mb,
            status=status_of[gpu.uuid],
            current_task=named.get(gpu.uuid),
            simulated=gpu.simulated,
            parent=gpu.parent,
            numa_node=gpu.numa_node if gpu.numa_node >= 0 else None,
            bus=gpu.bus,
            updated_at=iso(now),
            note=notes.get(gpu.uuid, ""),
            sharers=[_sharer(state, job, task, sees) for job, task in sharers.get(gpu.uuid, ())],
            health=health.get(gpu.uuid, _HEALTHY),
            figures=figures.get(gpu.uuid),
            free_share=1 if status_of[gpu.uuid] == "idle" else rests.get(gpu.uuid, 0) / WHOLE_GPU,
        )
        for gpu in every_gpu(node)
    ]


def _health_of(node: Node) -> dict[GpuUuid, GpuHealthView]:
    """Health of the GPUs of a node that aren't healthy."""
    lost = {gpu.uuid: _UNREAD for gpu in node.unread}
    told = {
        each.uuid: GpuHealthView(state=each.state, kind=each.kind, reason=each.reason, since=iso_or_none(each.since))
        for each in node.inventory.conditions
        if not (each.offered and each.uuid in lost)  # what it was before it couldn't be read
    }
    return lost | told


_UNREAD = GpuHealthView(state=HealthState.DRAINED, kind=HealthKind.LOST, reason="its node can't read it")


def _sharer(state: ClusterState, job: JobId, task: TaskPlacement, sees: Sights) -> GpuSharerView:
    named = str(job) if _is_seen(state, job, sees) else ""
    return GpuSharerView(job=named, share=task.gpu_share / WHOLE_GPU, memory_mb=task.gpu_memory_mb)


def _is_seen(state: ClusterState, job: JobId, sees: Sights) -> bool:
    """Return whether the caller sees where this job runs; of one that nobody remembers only if it sees that of all."""
    if sees.of_all is not None:
        return sees.of_all >= Sight.OUTLINE
    record = state.jobs.get(job)
    return record is not None and sees(record) >= Sight.OUTLINE


def _quarantine_note(state: ClusterState, node: Node, stray: OrphanTask, sees: Sights) -> str:
    job = state.jobs.get(stray.job)
    named = f"job {job.label if job else stray.job}" if _is_seen(state, stray.job, sees) else "a job"
    return (
        f"{named} was on it until {iso(stray.settled_at)}, when node {node.name} had been silent for too long; it is "
        "offered again once the agent there is back and says that it is clean"
    )
