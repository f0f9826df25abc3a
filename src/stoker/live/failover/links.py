"""Messages between two control planes, and the link that carries them.

A standby dials; the active serves. gRPC stands behind it in `live.rpc`, a simulated network in the rig.

Rules: K1  frames of one stream arrive in order, each once, or the stream breaks
       K2  a stream that has broken raises PeerDown at both ends, sooner or later; nothing waits on it for ever
       K3  what is sent and not yet read has a bound; beyond it the sender waits, and is given up by its own timer
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol

import msgspec

from stoker.brain.domain.ids import Epoch, Position
from stoker.brain.domain.lease_record import Member
from stoker.brain.failover.inputs import PeerState
from stoker.brain.state import codec

FORMAT: Final = codec.FORMAT
"""Of records, snapshots and frames alike. A follower of an older format can't read what a newer active writes."""


class PeerDown(Exception):
    """The peer can't be reached, or the stream broke."""


class PeerRefused(Exception):
    """The peer refuses: it isn't active, has another secret, cluster or format. The message says which."""


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """Log that a follower has, said first on its stream."""

    member: Member
    cluster_id: str
    """Empty = it holds nothing yet."""
    position: Position
    """The end of its log."""
    ends: tuple[tuple[Epoch, Position], ...]
    """Of each epoch that it holds records of, the last position, newest first."""
    wants_backup: bool = False
    """Whatever it has: its log goes on otherwise than the active's, and can't be cut so far back."""
    format: int = FORMAT


class Welcome(msgspec.Struct, frozen=True, kw_only=True):
    """First frame of a stream: the logs are alike up to `position`.

    A follower whose log goes on behind that cuts it there and begins anew; else records follow.
    """

    leader: Member
    """The active."""
    epoch: Epoch
    """Under which it leads."""
    position: Position
    """0 when `backup_follows`."""
    backup_follows: bool = False
    """Pieces of a backup come, and no records."""


class BackupPiece(msgspec.Struct, frozen=True):
    """Next bytes of a backup (see `wire.backup`), since the log no longer reaches back to what the follower has.

    The last one is empty; the follower then installs it and begins anew. Signs of life may come between.
    """

    data: bytes


class Records(msgspec.Struct, frozen=True, kw_only=True):
    """Records of one epoch, behind `position`; without records a sign of life.

    Each is answered by how far the follower's disk reaches, so that the active knows that it lives.
    """

    leader_epoch: Epoch
    """Under which the active that sends them leads."""
    epoch: Epoch
    """Under which the records were written."""
    position: Position
    records: Sequence[bytes]
    acknowledged: Position
    """How far the active has told others that things have happened."""


Frame = Welcome | BackupPiece | Records


class Following(Protocol):
    """The follower's end of one stream."""

    def frames(self) -> AsyncIterator[Frame]:
        """Return the frames as they come. Raises: PeerDown, PeerRefused."""

    async def confirm(self, position: Position) -> None:
        """Say that our disk holds everything up to there. Raises: PeerDown."""


class PeerLink(Protocol):
    """Link to one other control plane, which dials anew by itself."""

    @property
    def address(self) -> str: ...

    async def ping(self, me: PeerState) -> PeerState:
        """Tell our state, and return that of the peer. Raises: PeerDown (after a bounded wait), PeerRefused."""

    def follow(self, offer: Offer) -> AbstractAsyncContextManager[Following]: ...

    async def close(self) -> None: ...
