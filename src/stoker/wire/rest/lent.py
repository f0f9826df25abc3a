"""REST shapes that tell that the GPUs of a guarantee are lent."""

from typing import Literal

import msgspec


class HolderView(msgspec.Struct, frozen=True, kw_only=True):
    """A class, or a tenant with all beneath it, that holds more than is guaranteed."""

    kind: Literal["class", "tenant"]
    name: str
    gpus: int
    """Beyond the guarantee."""


class LentView(msgspec.Struct, frozen=True, kw_only=True):
    """Borrowers of the GPUs of a guarantee that would cover a waiting job. The largest holders come first."""

    message: str
    guarantees: list[str]
    """Which ones cover it: `class online`, `tenant vision`."""
    holders: list[HolderView]
