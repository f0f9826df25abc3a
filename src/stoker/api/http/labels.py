"""REST routes for labels and taints of nodes: set, put on, take off."""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from stoker.api.http.nodes import node_shown
from stoker.api.http.responses import body_of, caller_of, carry_out, json_response, node_at
from stoker.api.http.routing import BODY, CHANGE, NODE, Routes
from stoker.brain.domain.label import parse_taint
from stoker.brain.domain.node import Node
from stoker.brain.state.commands import LabelNode, TaintNode
from stoker.control.control_plane import ControlPlane
from stoker.wire import endpoints
from stoker.wire.rest.decode import decode_body
from stoker.wire.rest.node import LabelsBody, TaintsBody

_SAID: Final = (*NODE, *BODY, "node_forgotten", "too_many_labels", *CHANGE)
"""What a label or taint may be refused with beside its own text."""


def routes(control: ControlPlane) -> Routes:
    router = Routes("nodes")

    def answer(request: Request, node: Node) -> Response:
        return json_response(node_shown(control, request, node))

    @router.serve(endpoints.LABEL, *_SAID, "bad_label")
    async def label(request: Request) -> Response:
        """Set labels on a node, or take some off: for good, whatever its agent names."""
        body = decode_body(LabelsBody, await body_of(request))
        node = node_at(request, control.committer.state)
        ask = LabelNode(by=caller_of(request).principal, node=node.name, labels=body.labels, remove=tuple(body.remove))
        await carry_out(control, request, ask)
        return answer(request, node)

    @router.serve(endpoints.TAINT, *_SAID, "bad_taint")
    async def taint(request: Request) -> Response:
        """Put taints on a node, or take some off. What runs there goes on."""
        body = decode_body(TaintsBody, await body_of(request))
        node = node_at(request, control.committer.state)
        taints = tuple(map(parse_taint, body.taints))
        await carry_out(
            control,
            request,
            TaintNode(by=caller_of(request).principal, node=node.name, taints=taints, remove=tuple(body.remove)),
        )
        return answer(request, node)

    return router
