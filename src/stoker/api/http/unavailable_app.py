"""The application that answers while a control plane of a pair is between two tenures."""

from starlette.types import ASGIApp, Receive, Scope, Send

from stoker.api.http.responses import problem_response
from stoker.brain.domain.errors import Refusal, refuse


class UnavailableApp:
    """An ASGI application that is another one in each life."""

    def __init__(self) -> None:
        self.app: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self.app
        if app is not None:
            await app(scope, receive, send)
        elif scope["type"] == "http":
            await problem_response(_beginning_anew())(scope, receive, send)


def _beginning_anew() -> Refusal:
    return refuse(
        "not_active",
        "this control plane begins anew, and hasn't read its log yet",
        "ask again in a moment, or ask another one; its own log says if it waits for a database",
        active="",
    )
