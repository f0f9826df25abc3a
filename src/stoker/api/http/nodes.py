"""REST routes for nodes: list, show, drain, resume, forget."""

from starlette.requests import Request
from starlette.responses import Response

from stoker.api.http.gpus import gpus_of, is_seen
from stoker.api.http.responses import body_of, caller_of, carry_out, json_response, node_at, query_of
from stoker.api.http.routing import BODY, CHANGE, NODE, Routes
from stoker.brain.domain.access import Caller
from stoker.brain.domain.label import label_sources, labels_of, taint_sources, taint_text, taints_of
from stoker.brain.domain.node import Node
from stoker.brain.domain.units import Instant
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.commands import DrainNode, ForgetNode, ResumeNode
from stoker.control.access import JobVisibility
from stoker.control.control_plane import ControlPlane
from stoker.wire import endpoints
from stoker.wire.rest.decode import NoQuery, decode_body
from stoker.wire.rest.node import (
    DrainBody,
    ForgetQuery,
    FreeView,
    NodeListView,
    NodeView,
    OrphanTaskView,
)
from stoker.wire.rest.view import iso, iso_or_none


def routes(control: ControlPlane) -> Routes:
    router = Routes("nodes")

    def answer(request: Request, node: Node) -> Response:
        return json_response(node_shown(control, request, node))

    @router.serve(endpoints.NODES)
    async def list_nodes(request: Request) -> Response:
        """List every node ever registered, by name."""
        query_of(request, NoQuery)
        return json_response(_all(control, caller_of(request)))

    @router.serve(endpoints.NODE, *NODE)
    async def show_node(request: Request) -> Response:
        """Show one node."""
        return answer(request, node_at(request, control.committer.state))

    @router.serve(endpoints.DRAIN, *NODE, *BODY, "node_forgotten", *CHANGE)
    async def drain(request: Request) -> Response:
        """Give a node no new work. What runs there goes on."""
        data = await body_of(request)
        body = decode_body(DrainBody, data) if data else DrainBody()
        node = node_at(request, control.committer.state)
        await carry_out(
            control, request, DrainNode(by=caller_of(request).principal, node=node.name, reason=body.reason)
        )
        return answer(request, node)

    @router.serve(endpoints.RESUME, *NODE, "node_forgotten", *CHANGE)
    async def resume(request: Request) -> Response:
        """End a drain."""
        node = node_at(request, control.committer.state)
        await carry_out(control, request, ResumeNode(by=caller_of(request).principal, node=node.name))
        return answer(request, node)

    @router.serve(endpoints.FORGET, *NODE, "node_in_use", *CHANGE)
    async def forget(request: Request) -> Response:
        """Forget a node that won't come back; with `force`, settle what it held without proof that it is gone."""
        force = query_of(request, ForgetQuery).force
        node = node_at(request, control.committer.state)
        await carry_out(control, request, ForgetNode(by=caller_of(request).principal, node=node.name, force=force))
        return answer(request, node)

    return router


def _all(control: ControlPlane, caller: Caller) -> NodeListView:
    state, now = control.committer.state, control.clock.now()
    sees = JobVisibility(state, caller)
    nodes = [_node_view(state, state.nodes[name], now, sees) for name in sorted(state.nodes)]
    return NodeListView(nodes=nodes, total=len(nodes))


def node_shown(control: ControlPlane, request: Request, node: Node) -> NodeView:
    """The node as it is now, or as it was where it has gone."""
    state = control.committer.state
    sees = JobVisibility(state, caller_of(request))
    return _node_view(state, state.nodes.get(node.name, node), control.clock.now(), sees)


def _node_view(state: ClusterState, node: Node, now: Instant, sees: JobVisibility) -> NodeView:
    inventory, free = node.inventory, state.indexes.free.get(node.name)
    return NodeView(
        name=node.name,
        state=state.node_state(node.name),
        online=node.reachable and not node.forgotten,
        schedulable=node.takes_work,
        drain=node.drain,
        silent_since=iso_or_none(node.silent_since),
        registered_at=iso(node.registered_at),
        address=inventory.address,
        cpus=inventory.cpus,
        memory_mb=inventory.memory_mb,
        free=FreeView(gpus=len(free.gpus), cpus=free.cpus, memory_mb=free.memory_mb) if free else _NOTHING,
        gpus=gpus_of(state, node, now, sees),
        jobs=[str(job) for job in state.indexes.on_node.get(node.name, ()) if is_seen(state, job, sees)],
        strays=[
            OrphanTaskView(
                job=str(stray.job),
                attempt=stray.attempt,
                rank=stray.rank,
                gpus=stray.gpus,
                quarantined_since=iso_or_none(stray.settled_at),
            )
            for stray in node.strays
            if is_seen(state, stray.job, sees)
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
        simulated=inventory.simulated,
        version=inventory.version,
        boot_id=inventory.boot_id,
    )


_NOTHING = FreeView(gpus=0, cpus=0, memory_mb=0)
