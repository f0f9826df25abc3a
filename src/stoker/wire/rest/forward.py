"""REST shapes of a connection to a port of a job."""

from typing import Annotated

import msgspec

from stoker.wire.rest.decode import Count

MEDIA_TYPE = "application/octet-stream"


class ForwardQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Query of a connection to a port of a job.

    The body of the request is what is sent, that of the answer what comes back, both at once and in chunks; each ends
    by itself, as a TCP connection does. An answer that is broken off means that the connection was.
    """

    port: Annotated[int, msgspec.Meta(ge=0, le=65_535)] = 0
    """Must be given: the port on which a process of the task listens, on 127.0.0.1, [::1] or all addresses."""
    rank: Count = 0
    """Which task of the gang."""
    check: bool = False
    """Only whether a connection would be let through is told, by an empty answer; none is made, and none is noted."""
