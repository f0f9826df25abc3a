"""How is a control plane shown that is one of several?"""

from typing import Literal

import msgspec


class ControlView(msgspec.Struct, frozen=True, kw_only=True):
    """One control plane, as it sees itself and the marker that they share."""

    name: str = ""
    """Empty = it is the only one."""
    role: Literal["active", "standby"]
    epoch: int
    active: str = ""
    """Name of the one that holds the lease; empty = none does, or there is only this one."""
    active_http: str = ""
    in_sync: tuple[str, ...] = ()
    """Those whose disks hold all that was acknowledged: they may take over."""
    position: int
    """Of the newest record in its log."""
    lag_ms: int = 0
    """How old what it shows may be."""
    why: str = ""
    """Why a standby doesn't take over."""
