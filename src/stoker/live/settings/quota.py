"""How do online and batch jobs share the GPUs, as the settings say?

Policy: part of the log, and replayed. The shares can be changed while the control plane runs (`stoker quota set`).
"""

from dataclasses import dataclass
from decimal import Decimal

from stoker.brain.domain.quota import WHOLE, Pools


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaSettings:
    online_percent: float = 0.7
    """Share of the GPUs in service that jobs of class online are guaranteed, from 0 to 1. What is said here holds from
    the start that first reads it; a later `stoker quota set` outlives restarts for as long as these lines stay as they
    are, and a change of them wins over it."""
    batch_percent: float | None = None
    """The same of class batch; both together at most 1. Left out = what online_percent leaves, 0.3 by default."""
    strict: bool = False
    """Whether the shares are walls. By default each class borrows what the other leaves idle."""

    def __post_init__(self) -> None:
        if self.batch_percent is None and 0 <= self.online_percent <= 1:
            # What holds is what people see, so the rest is written out.
            object.__setattr__(self, "batch_percent", (WHOLE - _parts(self.online_percent)) / WHOLE)

    def faults(self) -> list[str]:
        shares = {"online_percent": self.online_percent, "batch_percent": self.batch_percent}
        found = [
            f"{key}: {share} isn't between 0 and 1; write 0.7 for seventy per cent"
            for key, share in shares.items()
            if share is not None and not 0 <= share <= 1
        ]
        if not found and _parts(self.online_percent) + _parts(self.batch_percent or 0) > WHOLE:
            pair = f"online_percent ({self.online_percent}) and batch_percent ({self.batch_percent})"
            found.append(f"{pair} are more than 1 together")
        return found

    def as_pools(self) -> Pools:
        """The shares that these settings ask for."""
        return Pools(online=_parts(self.online_percent), batch=_parts(self.batch_percent or 0), strict=self.strict)


def _parts(share: float) -> int:
    """By its decimal digits, so that 0.7 is exactly seven tenths."""
    return round(Decimal(repr(share)) * WHOLE)
