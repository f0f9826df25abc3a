"""How does the engine look at a ClusterState?

The one implementation of `view.View` over live state. It hands out the indexes themselves, so it costs nothing to
make; a reader that changed them would be a bug.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

from stoker.brain.domain.array import member_ids
from stoker.brain.domain.ids import Epoch, JobId, NodeName, PartitionName, Position, TenantName
from stoker.brain.domain.job import Job
from stoker.brain.domain.node import Free, Node
from stoker.brain.domain.partition import Partition
from stoker.brain.domain.quota import Pools
from stoker.brain.domain.tenant import Tenant
from stoker.brain.domain.where import Where
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.usage_ledger import UsageLedger
from stoker.brain.state.view import Bucket, GpuKinds, SelectedNodes

_NO_PORTS: dict[int, JobId] = {}


class StateView:
    """A View of `state` as it is at each call."""

    __slots__ = ("_state",)

    def __init__(self, state: ClusterState) -> None:
        self._state = state

    @property
    def position(self) -> Position:
        return self._state.position

    @property
    def epoch(self) -> Epoch:
        return self._state.epoch

    def pending(self) -> Iterable[Bucket]:
        waiting, arrays = self._state.indexes.waiting, self._state.indexes.waiting_arrays
        for (priority, shape, _), jobs in waiting.items():
            yield Bucket(priority, shape, jobs.ids)
        for (priority, shape, _), ids in arrays.items():
            yield Bucket(priority, shape, (), ids.ids)

    def members(self, array: JobId) -> Iterator[JobId]:
        spec, members = self._state.jobs[array].as_array
        return member_ids(array, spec, members.lazy)

    def room(self, array: JobId) -> int | None:
        job = self._state.jobs.get(array)
        return self._state.indexes.arrays.room(job) if job else None

    def job(self, job: JobId) -> Job:
        return self._state.jobs[job]

    @property
    def partitions(self) -> Mapping[PartitionName, Partition]:
        return self._state.partitions

    @property
    def tenants(self) -> Mapping[TenantName, Tenant]:
        return self._state.tenants

    @property
    def pools(self) -> Pools:
        return self._state.pools

    @property
    def usage_ledger(self) -> UsageLedger:
        return self._state.indexes.usage_ledger

    @property
    def free_gpus(self) -> int:
        return self._state.indexes.free_gpus

    def admitted(self, where: Where) -> SelectedNodes:
        return self._state.indexes.node_classes.admitted(where)

    @property
    def nodes(self) -> Mapping[NodeName, Node]:
        return self._state.nodes

    @property
    def free(self) -> Mapping[NodeName, Free]:
        free, returning = self._state.indexes.free, self._state.indexes.returning
        return {name: free[name] for name in free if name not in returning} if returning else free

    @property
    def returning(self) -> Mapping[NodeName, Free]:
        return {name: self._state.indexes.free[name] for name in self._state.indexes.returning}

    @property
    def by_free(self) -> Mapping[GpuKinds, Mapping[int, Sequence[NodeName]]]:
        return self._state.indexes.by_free

    def ports_in_use(self, address: str) -> Set[int]:
        return self._state.indexes.ports.get(address, _NO_PORTS).keys()
