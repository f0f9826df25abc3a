"""Who must have what the writer does beside its own disk, and may it speak at all?"""

from collections.abc import Sequence
from typing import Protocol

from stoker.brain.domain.ids import Epoch, Position


class NotActive(Exception):
    """The right to be active has ended. Nothing after this may be acknowledged."""


class Replicas(Protocol):
    """The other disks that our facts have to reach."""

    def ship(self, epoch: Epoch, position: Position, records: Sequence[bytes]) -> None:
        """`records` are about to be appended after `position`. Only queues them."""
        ...

    async def wait_for(self, position: Position) -> None:
        """Returns when everyone who is in sync has all up to there. Raises: NotActive."""
        ...

    def check_lease(self) -> None:
        """Raises: NotActive when our lease doesn't hold now."""
        ...


class NoReplicas:
    """The `Replicas` of a control plane without standbys."""

    def ship(self, epoch: Epoch, position: Position, records: Sequence[bytes]) -> None:
        """Nobody else wants them."""

    async def wait_for(self, position: Position) -> None:
        """Our own disk is all."""

    def check_lease(self) -> None:
        """Nobody can take over."""
