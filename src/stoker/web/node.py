"""The pages of nodes: their states and health, and one node with its GPUs, jobs, labels and taints."""

from typing import Final

from starlette.requests import Request
from starlette.routing import Route

from stoker.brain.domain.health import HealthState
from stoker.web.site import FIGURES_STILL_S, Context, Site
from stoker.wire import endpoints
from stoker.wire.rest.node import NodeView

_GRAVE: Final = ("unreachable", "drained", "draining", "ready", "forgotten")
"""States of nodes, those first that somebody should look at."""


def routes(site: Site) -> list[Route]:
    """Return the routes of the list of nodes and of one node."""

    async def show_all(request: Request) -> Context:
        found = await site.ask(request, endpoints.NODES)
        nodes = [node for node in found.nodes if node.state != "forgotten"]
        return {"nodes": sorted(nodes, key=_gravest_first), "troubles": {node.name: troubles(node) for node in nodes}}

    async def show(request: Request) -> Context:
        node = await site.ask(request, endpoints.NODE, name=request.path_params["name"])
        return {"node": node, "troubles": troubles(node)}

    return [
        site.page("/nodes", "nodes.html", "nodes", show_all),
        site.page("/nodes/{name}", "node.html", "nodes", show, still_s=FIGURES_STILL_S),
    ]


def troubles(node: NodeView) -> list[str]:
    """Return in words what keeps a node from all that it could do; empty where it is well."""
    words = [
        node.fault,
        node.gpu_fault,
        node.limits,
        node.containers_fault,
        *(node.health.reasons if node.health.state is not HealthState.HEALTHY else ()),
        *(f"GPU {gpu.device_index}: {gpu.health.reason}" for gpu in node.gpus if gpu.health.reason),
        f"starts failed there: {node.pause.error}" if node.pause else "",
        f"{len(node.strays)} tasks run there that shouldn't" if node.strays else "",
        f"its clock is {abs(node.clock_ahead_s):.0f} s {'ahead' if node.clock_ahead_s > 0 else 'behind'}"
        if abs(node.clock_ahead_s) >= 1
        else "",
    ]
    return [each for each in dict.fromkeys(words) if each]


def _gravest_first(node: NodeView) -> tuple[int, bool, str]:
    return _GRAVE.index(node.state), not troubles(node), node.name
