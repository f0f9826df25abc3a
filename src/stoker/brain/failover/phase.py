"""How far is a life of a control plane on its way to be active, and from there to its end?"""

from enum import Enum, auto
from typing import Final, NamedTuple

from stoker.brain.domain.lease_record import Member


class Phase(Enum):
    """A life begins with the first and ends with the last, or is cut off where it stands."""

    WATCHING = auto()
    """It looks at the marker, follows whoever is active, and waits for a reason to take over."""
    PROMISING = auto()
    """Its log is to refuse what is older than the epoch that it wants to begin."""
    CLAIMING = auto()
    """Its log has promised; its marker is being put."""
    LEADING = auto()
    """Its marker is there: it is active for as long as the lease holds."""
    GIVING_BACK = auto()
    """It acts no more, and puts a marker without a holder."""
    SPENT = auto()
    """Whatever it is told, it does nothing more. Another life begins from what is on disk."""


MOVES: Final = {
    Phase.WATCHING: (Phase.PROMISING, Phase.SPENT),
    Phase.PROMISING: (Phase.CLAIMING, Phase.WATCHING, Phase.SPENT),
    Phase.CLAIMING: (Phase.LEADING, Phase.GIVING_BACK, Phase.WATCHING, Phase.SPENT),
    Phase.LEADING: (Phase.GIVING_BACK, Phase.SPENT),
    Phase.GIVING_BACK: (Phase.SPENT,),
    Phase.SPENT: (),
}
TAKING_OVER: Final = (Phase.PROMISING, Phase.CLAIMING)
WITH_LEASE: Final = (Phase.LEADING, Phase.GIVING_BACK)


class GivingBack(NamedTuple):
    """Why the lease is given back, and to whom: any of `to` may take it at once."""

    code: str
    why: str
    to: tuple[Member, ...]
