"""REST shapes of a session inside a running job."""

from typing import Annotated, Final

import msgspec

from stoker.wire.exec_session import SIDE_MAX
from stoker.wire.rest.decode import Count

Side = Annotated[int, msgspec.Meta(ge=0, le=SIDE_MAX)]
NAME_PATTERN: Final = "[0-9a-zA-Z_-]{1,64}"
WAIT_MS_MAX: Final = 30_000


class _SessionQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of every way into a task."""

    rank: Count = 0
    """Which task of the gang."""
    columns: Side = 0
    """Width of the terminal; 0 = unknown, which is 80 at first."""
    rows: Side = 0
    """Height of the terminal; 0 = unknown, which is 24 at first."""
    at: Annotated[int, msgspec.Meta(ge=-1)] = -1
    """Bytes of output that the client has had of this session before its connection broke. -1 = it is new."""


class ExecQuery(_SessionQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Query of a program that is executed in a running job, over a WebSocket (subprotocol `stoker.session.v1`)."""

    command: str = ""
    """Must be given: the words of the command, as a JSON array of texts."""
    tty: bool = False
    """Its standard streams are a terminal. Else they are three pipes."""
    term: Annotated[str, msgspec.Meta(pattern="^[!-~]{0,64}$")] = ""
    """TERM of that terminal."""
    session: Annotated[str, msgspec.Meta(pattern=f"^({NAME_PATTERN})?$")] = ""
    """Name of the session, best random, by which a client whose connection broke comes back to it: the same request
    begins nothing twice. Empty = one is made."""


class AttachQuery(_SessionQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Query of a client of a job's own terminal, over a WebSocket (subprotocol `stoker.session.v1`)."""

    wait_ms: Annotated[int, msgspec.Meta(ge=0, le=WAIT_MS_MAX)] = 0
    """Wait up to so long for the job to run."""
