"""How is it told that the GPUs of a guarantee are lent?"""

from typing import Literal

import msgspec


class HolderView(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds more than is guaranteed: a class, or a tenant with all beneath it."""

    kind: Literal["class", "tenant"]
    name: str
    gpus: int
    """Beyond the guarantee."""


class LentView(msgspec.Struct, frozen=True, kw_only=True):
    """Why a job waits that a guarantee covers: its GPUs are lent. The largest holders come first."""

    message: str
    guarantees: list[str]
    """Which ones cover it: `class online`, `tenant vision`."""
    holders: list[HolderView]
