"""What is a partition?"""

import msgspec

from stoker.brain.domain.ids import PartitionName
from stoker.brain.domain.where import ANYWHERE, Where


class Partition(msgspec.Struct, frozen=True, kw_only=True):
    """A named `where` with defaults and limits. Units: milliseconds."""

    name: PartitionName
    where: Where = ANYWHERE
    time_default_ms: int = 0
    """Given to its jobs that name no limit. 0 = the policy's default."""
    time_max_ms: int = 0
    """A longer wish is refused at submit. 0 = the policy's bound."""
    comment: str = ""
