"""What the world does to two control planes and their nodes. One function per kind of fault; `one_fault` draws one."""

from collections.abc import Awaitable, Callable
from typing import Final

from tests.rig.pair_cluster import PairCluster


async def one_fault(cluster: PairCluster) -> None:
    cluster.faults += 1


FAULTS: Final[tuple[Callable[[PairCluster], Awaitable[None]], ...]] = ()
