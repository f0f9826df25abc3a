"""gRPC status of a refusal.

Code from the one table, details for people. In the trailing metadata travel `stoker-code`, the refusal's own code, and
`stoker-problem`, the very problem that REST answers, as JSON in ASCII; `retry-after` where trying again may help, in
seconds.

Limits: a peer takes 8 KiB of metadata, so what doesn't fit is left out: first the facts, then the ends of long texts.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, NoReturn
from urllib.parse import quote

import grpc
import msgspec
from grpc import aio

from stoker.brain.domain.errors import Refusal, StokerError, refuse
from stoker.wire.agent_codec import Malformed
from stoker.wire.rest.problem import problem_of
from stoker.wire.status import retry_after_s, status_of
from stoker.wire.token import without_secrets

CODE_KEY: Final = "stoker-code"
PROBLEM_KEY: Final = "stoker-problem"
RETRY_KEY: Final = "retry-after"
DETAILS_BYTES_MAX: Final = 2_048
"""As they are sent, which is percent-encoded."""
PROBLEM_BYTES_MAX: Final = 4_096


async def abort(context: aio.ServicerContext[Any, Any], refusal: Refusal) -> NoReturn:
    """End the call with this refusal."""
    details = without_secrets(f"{refusal.message}. {refusal.hint}")
    metadata = [(CODE_KEY, refusal.code), (PROBLEM_KEY, problem_text(refusal))]
    after_s = retry_after_s(refusal)
    if after_s:
        metadata.append((RETRY_KEY, str(after_s)))
    await context.abort(
        grpc.StatusCode[status_of(refusal.code).grpc],
        _fitting(details.encode("utf-8", "backslashreplace").decode()),
        trailing_metadata=tuple(metadata),
    )
    raise AssertionError("abort always raises")


@asynccontextmanager
async def refusing(context: aio.ServicerContext[Any, Any], hint: str) -> AsyncIterator[None]:
    """End the call with the refusal that its body raises. `hint`: where a message can't be understood."""
    try:
        yield
    except (StokerError, Malformed) as fault:
        await abort(context, refusal_of(fault, hint))


def refusal_of(fault: StokerError | Malformed, hint: str) -> Refusal:
    if isinstance(fault, StokerError):
        return fault.refusal
    return refuse("malformed_message", f"the message can't be understood: {fault}", hint)


def problem_text(refusal: Refusal) -> str:
    """The problem as metadata can carry it."""
    text = _ascii(refusal)
    if len(text) > PROBLEM_BYTES_MAX:
        refusal = msgspec.structs.replace(refusal, facts={})
        text = _ascii(refusal)
    most = max(len(refusal.message), len(refusal.hint))
    while len(text) > PROBLEM_BYTES_MAX:
        most //= 2
        message, hint = _short(refusal.message, most), _short(refusal.hint, most)
        text = _ascii(msgspec.structs.replace(refusal, message=message, hint=hint))
    return text


def _ascii(refusal: Refusal) -> str:
    return json.dumps(msgspec.to_builtins(problem_of(refusal)), ensure_ascii=True, separators=(",", ":"))


def _fitting(details: str) -> str:
    most = len(details)
    while len(quote(_short(details, most))) > DETAILS_BYTES_MAX:
        most //= 2
    return _short(details, most)


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: max(0, most - 3)]}..."
