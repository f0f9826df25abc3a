"""Who must have what the writer does beside its own disk, and may it speak at all?"""

from collections.abc import Sequence
from typing import Protocol

from stoker.brain.domain.ids import Epoch, Position


class NotActive(Exception):
    """The right to be active has ended. Nothing after this may be acknowledged."""


class Copies(Protocol):
    """Who must have our facts beside our own disk, and may we speak at all?"""

    def ship(self, epoch: Epoch, position: Position, records: Sequence[bytes]) -> None:
        """`records` are about to be appended after `position`. Only queues them."""
        ...

    async def kept(self, position: Position) -> None:
        """Returns when everyone who is in sync has all up to there. Raises: NotActive."""
        ...

    def check(self) -> None:
        """Raises: NotActive when our lease doesn't hold now."""
        ...


class Alone:
    """The `Copies` of a control plane without standbys."""

    def ship(self, epoch: Epoch, position: Position, records: Sequence[bytes]) -> None:
        """Nobody else wants them."""

    async def kept(self, position: Position) -> None:
        """Our own disk is all."""

    def check(self) -> None:
        """Nobody can take over."""
