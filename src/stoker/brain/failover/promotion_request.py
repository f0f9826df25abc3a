"""Does a person still want this standby to take over, whatever is lost by it?"""

from stoker.brain.domain.lease_record import LeaseRecord
from stoker.brain.domain.units import Mono


class PromotionRequest:
    """It stands until a lease that nobody renews is surely over, and for one promotion."""

    def __init__(self) -> None:
        self._version: int | None = None
        self._until = Mono(0.0)

    def hear(self, marker: LeaseRecord | None, until: Mono) -> None:
        self._version, self._until = marker.version if marker else 0, until

    def forget(self) -> None:
        self._version = None

    def stands(self, marker: LeaseRecord | None, now: Mono) -> bool:
        """Once somebody has written the marker, what was asked was about what is no more."""
        moved = marker is not None and self._version not in (0, marker.version)
        if moved or now >= self._until:
            self.forget()
        return self._version is not None
