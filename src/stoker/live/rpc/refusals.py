"""Refusals of the gRPC services of this runtime: what a call raises becomes its status."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from stoker.api.rpc.callers import Context
from stoker.api.rpc.status import abort
from stoker.brain.domain.errors import Refusal, StokerError, refuse
from stoker.wire.agent_codec import Malformed


@asynccontextmanager
async def refusing(context: Context, hint: str) -> AsyncIterator[None]:
    """End the call with the refusal that its body raises. `hint`: where a message can't be understood."""
    try:
        yield
    except (StokerError, Malformed) as fault:
        await abort(context, refusal_of(fault, hint))


def refusal_of(fault: StokerError | Malformed, hint: str) -> Refusal:
    if isinstance(fault, StokerError):
        return fault.refusal
    return refuse("malformed_message", f"the message can't be understood: {fault}", hint)
