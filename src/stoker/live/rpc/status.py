"""How does a refusal look as a gRPC status?

Code from the one table, details for people; the refusal's own code travels as the trailing metadata `stoker-code`.
"""

from typing import Any, Final, NoReturn

import grpc
from grpc import aio

from stoker.brain.domain.errors import Refusal
from stoker.wire.status import grpc_status

CODE_KEY: Final = "stoker-code"


async def abort(context: aio.ServicerContext[Any, Any], refusal: Refusal) -> NoReturn:
    """End the call with this refusal."""
    details = f"{refusal.message}. {refusal.hint}"
    await context.abort(
        grpc.StatusCode[grpc_status(refusal.code)],
        details.encode("utf-8", "backslashreplace").decode(),
        trailing_metadata=((CODE_KEY, refusal.code),),
    )
    raise AssertionError("abort always raises")
