"""Query of a task's output, and the headers that mark the part that was sent.

The body is the bytes themselves, valid text or not; where they lie is in the headers. An answer that follows has only
its body: what isn't output stands there in a line of its own that begins with `[stoker: `.
"""

from typing import Annotated, Final

import msgspec

from stoker.wire.rest.decode import Count, SignedInteger

OFFSET_HEADER: Final = "X-Stoker-Log-Offset"
"""Where the body begins, counted from the first byte ever written."""
SIZE_HEADER: Final = "X-Stoker-Log-Size"
"""Bytes ever written."""
ENDED_HEADER: Final = "X-Stoker-Log-Ended"
"""`true` when no more will be written."""
ATTEMPT_HEADER: Final = "X-Stoker-Log-Attempt"
"""Which attempt wrote it."""

LOG_LIMIT_DEFAULT: Final = 64 * 1024
LOG_LIMIT_MAX: Final = 1024 * 1024
"""Bytes of one answer; a higher limit is read as this."""
LOG_WAIT_MAX_S: Final = 30
"""Seconds of one wait; a longer one is refused. Below what proxies and clients take for a dead connection."""
TAIL_FIRST_BYTES: Final = 16 * 1024


class LogQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Query of a task's output.

    `attempt` 0 is the newest. `tail` counts lines from the end, within the last MiB; 0 = read from `offset`, which
    counts from the end when it is negative. With `wait_s` the answer may take that many seconds: it comes once there
    are bytes beyond `offset`. With `follow` it goes on until the attempt asked for ends, or else the job.
    """

    rank: Count = 0
    """Which task of the gang."""
    attempt: Count = 0
    offset: SignedInteger = 0
    limit: Count = LOG_LIMIT_DEFAULT
    """Bytes of one answer at most."""
    tail: Count = 0
    wait_s: Annotated[int, msgspec.Meta(ge=0, le=LOG_WAIT_MAX_S)] = 0
    follow: bool = False


def last_lines(data: bytes, lines: int) -> bytes:
    """The last `lines` lines of `data`; an unfinished last line counts as one."""
    end = len(data) - 1 if data.endswith(b"\n") else len(data)
    for _ in range(lines):
        end = data.rfind(b"\n", 0, end)
        if end < 0:
            return data
    return data[end + 1 :]
