"""REST routes for what the codes of refusals mean: the page to which the `type` of every problem leads.

It shows `wire.status` and nothing of the cluster, so everybody may read it.
"""

from html import escape
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from stoker.api.http.routing import Routes
from stoker.control.control_plane import ControlPlane
from stoker.wire import endpoints
from stoker.wire.status import STATUSES, Status

_PAGE: Final = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Refusals</title></head><body><h1>Refusals</h1>
<p>Each carries a code, a message that says what happened, and a hint that says what to do next.</p>
<table><tr><th>code</th><th>meaning</th><th>HTTP</th><th>gRPC</th><th>exit status</th></tr>
{rows}
</table></body></html>
"""


def routes(control: ControlPlane) -> Routes:
    router = Routes("health")
    page = _PAGE.format(rows="\n".join(_row(code, status) for code, status in STATUSES.items()))

    @router.serve(endpoints.ERRORS)
    async def errors(request: Request) -> Response:
        """Show what each code of a refusal means, as a page for people."""
        return Response(page, media_type="text/html")

    return router


def _row(code: str, status: Status) -> str:
    cells = (f"<code>{code}</code>", escape(status.title), str(status.http), status.grpc, str(status.exit))
    return f'<tr id="{code}">{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'
