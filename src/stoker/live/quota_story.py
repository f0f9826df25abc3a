"""Who holds and who wants which GPUs, by class pool?

Read from the indexes of the state at one instant, so that the numbers add up.
"""

from stoker.brain.domain.array import count_of
from stoker.brain.domain.demand import JobClass
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.facade import ClusterView
from stoker.brain.state.view import Bucket
from stoker.wire.rest.quota import PoolNow, QuotaView, quota_view


def quota_now(state: ClusterState) -> QuotaView:
    """Its cost: a step for each shape that waits, never the length of the queue."""
    books, wanted = state.indexes.books, dict.fromkeys(JobClass, 0)
    for bucket in ClusterView(state).pending():
        wanted[bucket.shape.job_class] += bucket.shape.demand.total_gpus * _jobs(state, bucket)
    now = {each: PoolNow(books.used_by_class(each).gpus, wanted[each]) for each in JobClass}
    return quota_view(state.pools, state.indexes.free_gpus, now)


def _jobs(state: ClusterState, bucket: Bucket) -> int:
    """An array counts as those of its members that may come up."""
    count = len(bucket.jobs)
    for array_id in bucket.arrays:
        _, members = state.jobs[array_id].as_array
        room, lazy = state.indexes.arrays.room(state.jobs[array_id]), count_of(members.lazy)
        count += lazy if room is None else min(lazy, room)
    return count
