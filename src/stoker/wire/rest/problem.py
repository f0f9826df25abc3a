"""REST shape of a refusal: a problem document (RFC 9457).

A token that somebody typed in the place of an id, or of anything else, isn't repeated: answers stand in logs of CI jobs
and on shared screens.

Source: RFC 9457. `error` repeats the message, because both seed dialects read that member.
"""

from typing import Final

import msgspec

from stoker.brain.domain.errors import FactValue, Refusal
from stoker.wire.endpoints import API_PREFIX
from stoker.wire.status import status_of
from stoker.wire.token import without_secrets

MEDIA_TYPE: Final = "application/problem+json"
TYPES_PATH: Final = f"{API_PREFIX}/errors"
"""A page for people, with an anchor for each code. Every control plane serves it, to everybody."""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One refusal. `type` is a reference, relative to the server that refused, to what the code means."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    message: str
    hint: str
    facts: dict[str, FactValue]
    error: str


def problem_of(refusal: Refusal) -> Problem:
    row = status_of(refusal.code)
    message = without_secrets(refusal.message)
    return Problem(
        type=f"{TYPES_PATH}#{refusal.code}",
        title=row.title,
        status=row.http,
        detail=message,
        code=refusal.code,
        message=message,
        hint=without_secrets(refusal.hint),
        facts={name: without_secrets(fact) if isinstance(fact, str) else fact for name, fact in refusal.facts.items()},
        error=message,
    )
