"""How is a refusal written on the wire?

Source: RFC 9457. `error` repeats the message, because both seed dialects read that member.
"""

from typing import Final

import msgspec

from stoker.brain.domain.errors import Fact, Refusal
from stoker.wire.status import status_of

MEDIA_TYPE: Final = "application/problem+json"


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One refusal. `type` is the path of the page in the documents that explains the code."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    message: str
    hint: str
    facts: dict[str, Fact]
    error: str


def problem_of(refusal: Refusal) -> Problem:
    row = status_of(refusal.code)
    return Problem(
        type=f"/docs/reference/errors#{refusal.code}",
        title=row.title,
        status=row.http,
        detail=refusal.message,
        code=refusal.code,
        message=refusal.message,
        hint=refusal.hint,
        facts=refusal.facts,
        error=refusal.message,
    )
