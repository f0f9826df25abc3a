"""Answers of a standby from its copy of the log, marked as possibly old.

Rules: S1  every answer of a standby bears `Stoker-Role: standby`, and in `Stoker-Lag-Ms` how old it may be; also a
           refusal, for its copy may not hold a new token yet. Those of an active one bear `Stoker-Role: active`
       S2  it shows what is in its copy of the log. What changes something, what only the active knows (why a job waits,
           what the nodes say) and any request with `Stoker-Stale: no` is refused with the active's address
"""

from typing import Final

from starlette.types import Message, Scope, Send

from stoker.control.failover_control import PairView
from stoker.wire.endpoints import API_PREFIX

PROMOTE_PATH: Final = f"{API_PREFIX}/control/promote"
STALE_HEADER: Final = b"stoker-stale"
_READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_ACTIVE_KNOWS: Final = ("/logs", "/why")
"""How paths end under which the active tells what isn't in the log."""


def must_be_active(scope: Scope) -> bool:
    """Return whether a request must be refused by a standby, since only the active one can answer it (S2)."""
    path: str = scope["path"]
    if scope["method"] not in _READS:
        return path != PROMOTE_PATH
    if path.endswith(_ACTIVE_KNOWS) and path.startswith(API_PREFIX):
        return True
    return any(name == STALE_HEADER and value.strip().lower() == b"no" for name, value in scope["headers"])


def marked(send: Send, standby: PairView | None) -> Send:
    """S1. `standby`: None = it is the active one that answers."""
    headers = [(b"stoker-role", b"active")]
    if standby is not None:
        headers = [(b"stoker-role", b"standby"), (b"stoker-lag-ms", str(standby.lag_ms).encode())]

    async def forward(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *headers]}
        await send(message)

    return forward
