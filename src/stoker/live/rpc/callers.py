"""Who calls, and may he?

Rules: C1  a call of one of our services without a token that is good is refused before its message is read; the
           standard health and reflection services are open
       C2  only an agent's token joins nodes, and it does nothing else; where no token is wanted, whoever sends none may
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, TypeAlias

import grpc
from grpc import aio

from stoker.brain.domain.access import Caller, Role
from stoker.brain.domain.audit import NOBODY
from stoker.brain.domain.errors import StokerError
from stoker.live.access import Access, not_allowed
from stoker.live.audit_rows import Asked
from stoker.live.control import ControlPlane
from stoker.live.rpc.status import abort
from stoker.wire.token import HEADER

Context = aio.ServicerContext[Any, Any]
_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
_Find: TypeAlias = "Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]]"

_KEY: Final = HEADER.lower()
_OURS: Final = "/stoker."


def authorization(metadata: Iterable[tuple[str, str | bytes]]) -> str | None:
    """The one value of that key; several make none that anybody could have meant."""
    found = [value for key, value in metadata if key == _KEY]
    texts = [value if isinstance(value, str) else value.decode("ascii", "replace") for value in found]
    return ", ".join(texts) if texts else None


class Gate(aio.ServerInterceptor):
    """C1. It stands before every service of the listener."""

    def __init__(self, control: ControlPlane) -> None:
        self._control = control

    async def intercept_service(
        self, continuation: "_Find", handler_call_details: grpc.HandlerCallDetails
    ) -> "_Handler | None":
        if handler_call_details.method.startswith(_OURS):
            try:
                self._control.access.caller(authorization(handler_call_details.invocation_metadata or ()))
            except StokerError as fault:
                asked = Asked("ask", handler_call_details.method)
                self._control.audit_trail.refused(NOBODY, asked, fault.refusal, self._control.committer.now())
                return _refusing(fault)
        return await continuation(handler_call_details)


def _refusing(fault: StokerError) -> "_Handler":
    """A method of streams is called before any message came; on the wire it looks like any other."""

    async def refuse_call(requests: object, context: Context) -> None:
        await abort(context, fault.refusal)

    return grpc.stream_stream_rpc_method_handler(refuse_call)


def caller_of(context: Context, access: Access) -> Caller:
    """Raises: StokerError `token_missing` or `token_unknown`."""
    return access.caller(authorization(context.invocation_metadata() or ()))


def agent_of(context: Context, access: Access) -> Caller:
    """C2. Raises: StokerError as `caller_of`, and `not_allowed`."""
    caller = caller_of(context, access)
    if caller.token and caller.role is not Role.AGENT:
        raise not_allowed(
            f"only agents join nodes, and this token has the role {caller.role}",
            "make one for them: `stoker token create --role agent`",
        )
    return caller
