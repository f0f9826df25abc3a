"""What passes between two control planes, in nouns?

A standby dials; the active serves. gRPC stands behind it in `live.rpc`, a simulated network in the rig.

Rules: K1  frames of one stream arrive in order, each once, or the stream breaks
       K2  a stream that has broken raises PeerDown at both ends, sooner or later; whoever waits is never left for ever
       K3  what is sent and not yet read has a bound; beyond it the sender waits, and is given up by its own timer
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import msgspec

from stoker.brain.domain.ids import Epoch, Position
from stoker.brain.domain.marker import Member
from stoker.brain.failover.inputs import PeerSaid, Role

FORMAT = 1
"""Of records, snapshots and frames. A follower of an older format can't read what a newer active writes."""


class PeerDown(Exception):
    """The peer can't be reached, or the stream broke."""


class PeerRefused(Exception):
    """The peer answers, and won't: it isn't active, has another secret, cluster or format. The message says which."""


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """What a follower has, said first on its stream."""

    member: Member
    cluster_id: str
    """Empty = it holds nothing yet."""
    position: Position
    """The end of its log."""
    ends: tuple[tuple[Epoch, Position], ...]
    """Of each epoch that it holds records of, the last position, newest first."""
    anew: bool = False
    """It wants a backup, whatever it has: its log goes on otherwise than the active's, and can't be cut so far back."""
    format: int = FORMAT


class Goon(msgspec.Struct, frozen=True, kw_only=True, tag="goon"):
    """The first frame of a stream. The logs are alike up to `position`: a follower whose log goes on behind that cuts
    it there and begins anew; else rows follow. Unless it is `anew`: then the pieces of a backup follow."""

    leader: Member
    """The active."""
    epoch: Epoch
    """Under which it leads."""
    position: Position
    """0 when `anew`."""
    anew: bool = False


class Piece(msgspec.Struct, frozen=True, tag="piece"):
    """The next bytes of a backup (see `wire.backup`), because the log no longer reaches back to what the follower has.
    The last one is empty; the follower then installs it and begins anew. Signs of life may come between."""

    data: bytes


class Rows(msgspec.Struct, frozen=True, kw_only=True, tag="rows"):
    """Records of one epoch, behind `position`. Without records it is a sign of life. Each is answered by how far the
    follower's disk reaches, so that the active knows that it lives."""

    leader: Epoch
    """Of the active that sends them."""
    epoch: Epoch
    """Of the records."""
    position: Position
    records: Sequence[bytes]
    acknowledged: Position
    """How far the active has told others that things have happened."""


Frame = Goon | Piece | Rows


class Following(Protocol):
    """The follower's end of one stream."""

    def frames(self) -> AsyncIterator[Frame]:
        """Raises: PeerDown, PeerRefused."""
        ...

    async def have(self, position: Position) -> None:
        """Our disk holds everything up to there. Raises: PeerDown."""
        ...


class PeerLink(Protocol):
    """One other control plane, as we reach it. It dials anew by itself."""

    @property
    def address(self) -> str: ...

    async def ping(self, me: PeerSaid) -> PeerSaid:
        """Say how we are, and hear how it is. Raises: PeerDown (after a bounded wait), PeerRefused."""
        ...

    def follow(self, offer: Offer) -> AbstractAsyncContextManager[Following]: ...

    async def close(self) -> None: ...


__all__ = [
    "FORMAT",
    "Following",
    "Frame",
    "Goon",
    "Offer",
    "PeerDown",
    "PeerLink",
    "PeerRefused",
    "PeerSaid",
    "Piece",
    "Role",
    "Rows",
]
