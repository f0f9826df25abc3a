"""View of a ClusterState for the engine: the one implementation of `view.View` over live state."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from itertools import chain
from operator import attrgetter, is_not

from stoker.brain.domain.allocation import Claim, TaskPlacement
from stoker.brain.domain.array import member_ids
from stoker.brain.domain.demand import Shape
from stoker.brain.domain.gpu import WHOLE_GPU, Gpu
from stoker.brain.domain.ids import GpuUuid, JobId, NodeName, PartitionName, TenantName
from stoker.brain.domain.job import Job, tasks_on
from stoker.brain.domain.lifecycle import LIVE, JobState
from stoker.brain.domain.node import Free, Node
from stoker.brain.domain.partition import Partition
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.preemption import gone_by
from stoker.brain.domain.tenant import Tenant
from stoker.brain.domain.units import NEVER, Instant, later
from stoker.brain.domain.where import Where
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.decayed_usage import TenantUse
from stoker.brain.state.view import Bucket, FutureRelease, GpuKinds, RunningJob, SelectedNodes, SharedRest


class StateView:
    """A view of `state` as it is now, good until the next event is applied.

    It hands out the indexes themselves, so it costs nothing to make; a reader that changed them would be a bug.
    """

    def __init__(self, state: ClusterState, set_aside: Set[Shape] = frozenset()) -> None:
        """Jobs of shapes that are `set_aside` are not shown as pending."""
        self._set_aside = set_aside
        self._state = state
        indexes = self._indexes = state.indexes
        self._jobs = state.jobs
        self.partitions: Mapping[PartitionName, Partition] = state.partitions
        self.tenants: Mapping[TenantName, Tenant] = state.tenants
        self.pools = state.pools
        self.usage_ledger = held = indexes.usage_ledger
        self.tenant_use = TenantUse(
            state.decayed_usage, held.by_tenant, indexes.capacity, state.tenants, state.clock_moved_ms
        )
        self.nodes: Mapping[NodeName, Node] = state.nodes
        self.claims: Mapping[JobId, Claim] = state.claims
        self.preemptible: Collection[JobId] = indexes.preemptible
        self.returning: Mapping[NodeName, Free] = {name: indexes.free[name] for name in indexes.returning}
        self.free: Mapping[NodeName, Free] = indexes.free
        if self.returning:
            self.free = {name: free for name, free in indexes.free.items() if name not in self.returning}
        self.free_milli = indexes.free_milli
        self.shared: Sequence[SharedRest] = indexes.shared
        self.by_free: Mapping[GpuKinds, Mapping[int, Sequence[NodeName]]] = indexes.by_free

    def pending(self) -> Iterable[Bucket]:
        offers = chain(self._indexes.waiting.values(), self._indexes.waiting_arrays.values())
        buckets = [offer.bucket for offer in offers]
        if not self._set_aside:
            return buckets
        return [bucket for bucket in buckets if bucket.shape not in self._set_aside]

    def live(self) -> Sequence[Job]:
        return sorted(live_jobs(self._state), key=attrgetter("id"))

    def running(self, job: Job, now: Instant) -> RunningJob:
        attempt, spec = job.live_attempt, job.spec
        assert attempt is not None, f"a live job has a live attempt: {job.story()}"
        tasks = tuple([task.placement for task in attempt.open_tasks])
        ends_by = latest_end(job, self._state.policy, now, self._state.clock_moved_ms)
        return RunningJob(job.id, spec.shape, spec.priority, ends_by, tasks)

    def releases(self, node: NodeName, now: Instant) -> Sequence[FutureRelease]:
        # Kept from pass to pass for as long as no record that it was made from is replaced.
        record, kept = self.nodes[node], self._state.releases.get(node)
        jobs = [self._jobs[job] for job in self._indexes.on_node.get(node, ())]
        policy, moved_ms = self._state.policy, self._state.clock_moved_ms
        made_from = (policy, moved_ms, record, *jobs)
        if kept is None or len(kept[0]) != len(made_from) or any(map(is_not, kept[0], made_from)):
            known = record.gpus_by_uuid
            found = sorted([_release(job, record.name, known, policy, moved_ms) for job in jobs], key=_by_end)
            if any(placement.gpu_share != WHOLE_GPU for placement in self.held_on(node)):
                found = last_of_each_gpu(found)
            kept = self._state.releases[node] = made_from, found
        if not kept[1] or kept[1][0].ends_by > now:
            return kept[1]
        return [each if each.ends_by > now else each._replace(ends_by=now) for each in kept[1]]

    def coming_free(self, node: NodeName) -> Set[GpuUuid]:
        held = self._indexes.held.get(node, {})
        ending = [placement for (job, _, _), placement in held.items() if self._jobs[job].state is JobState.STOPPING]
        return {uuid for placement in ending for uuid in placement.gpus}

    def held_on(self, node: NodeName) -> Collection[TaskPlacement]:
        return self._indexes.held.get(node, {}).values()

    def job(self, job: JobId) -> Job:
        return self._jobs[job]

    def members(self, array: JobId) -> Iterator[JobId]:
        spec, members = self._jobs[array].as_array
        return member_ids(array, spec, members.lazy)

    def array_slots(self, array: JobId) -> int | None:
        job = self._jobs.get(array)
        return self._indexes.arrays.slots_left(job) if job else None

    def admitted(self, where: Where) -> SelectedNodes:
        return self._indexes.node_classes.admitted(where)

    def ports_in_use(self, address: str) -> Set[int]:
        return self._indexes.ports.get(address, {}).keys()


def live_jobs(state: ClusterState) -> Iterator[Job]:
    """Yield the jobs that hold something, by state and id; never an array, whose members hold."""
    for each in sorted(LIVE):
        for job_id in state.indexes.by_state[each].entries:
            job = state.jobs[job_id]
            if job.members is None:
                yield job


def _release(job: Job, node: NodeName, gpus: Mapping[GpuUuid, Gpu], policy: Policy, moved_ms: int) -> FutureRelease:
    """What the end of a job frees on a node. A start that takes long isn't foreseen."""
    attempt = job.live_attempt
    assert attempt is not None, f"only live jobs hold anything: {job.story()}"
    tasks = [task.placement for task in tasks_on(job, node)]
    ends_by = latest_end(job, policy, attempt.placed_at if attempt.began_at == NEVER else NEVER, moved_ms)
    held = tuple([gpus[uuid] for task in tasks for uuid in task.gpus if uuid in gpus])
    return FutureRelease(
        ends_by, job.id, held, sum([task.cpus for task in tasks]), sum([task.memory_mb for task in tasks])
    )


def last_of_each_gpu(releases: Sequence[FutureRelease]) -> list[FutureRelease]:
    """Return releases in the order of time, each GPU in the last alone: a shared one is free once all have ended."""
    seen: dict[GpuUuid, None] = {}
    found = []
    for each in reversed(releases):
        here = {gpu.uuid: gpu for gpu in each.gpus if gpu.uuid not in seen}  # tasks of one gang may share one too
        found.append(each._replace(gpus=list(here.values())))
        seen.update(dict.fromkeys(gpu.uuid for gpu in each.gpus))
    return found[::-1]


def _by_end(release: FutureRelease) -> tuple[Instant, JobId]:
    return release.ends_by, release.job


def latest_end(job: Job, policy: Policy, now: Instant, clock_moved_ms: int = 0) -> Instant:
    """Return when a live job will have ended at the latest: by its time limit, and the grace time after it.

    What hasn't started counts from now. `clock_moved_ms` is that of the state: by so much the limit ends later on its
    clock than by the time since the start, less what had been moved by then.
    """
    attempt = job.live_attempt
    assert attempt is not None, f"only live jobs hold anything: {job.story()}"
    if attempt.stop is not None:
        return max(now, gone_by(job, policy))
    moved_ms = clock_moved_ms - attempt.clock_moved_ms
    began = later(attempt.began_at, moved_ms) if attempt.began_at != NEVER else now
    return later(max(now, later(began, job.spec.time_limit_ms)), policy.stop_grace_ms)
