"""A cluster in one expression: `cluster(node("n1", gpus=8), job(1, gpus=4))`.

`Cluster` is a small honest View: it derives everything from its nodes and jobs at each call, as slowly as it likes, so
that the engine is not tested against the indexes that serve it in the product.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from stoker.brain.domain.allocation import Claim, TaskPlacement
from stoker.brain.domain.array import Members, index_of, indexes_of, member_id, parse_array, without
from stoker.brain.domain.demand import Demand, JobClass, Shape
from stoker.brain.domain.gpu import WHOLE_GPU, Gpu
from stoker.brain.domain.ids import (
    Epoch,
    GpuUuid,
    JobId,
    NodeName,
    PartitionName,
    Position,
    Principal,
    TenantName,
)
from stoker.brain.domain.job import Attempt, EndCause, Job, JobSpec, StopRequest, Task, TaskEnd, lazy_member
from stoker.brain.domain.lifecycle import JobState, Outcome
from stoker.brain.domain.node import Free, Inventory, Node, NodePause
from stoker.brain.domain.partition import Partition
from stoker.brain.domain.plan import Place, Plan, Preempt
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.quota import Amount, Limits, Pools, Quota, held
from stoker.brain.domain.tenant import THE_DEFAULT, Tenant, path_of
from stoker.brain.domain.units import DAY_MS, HOUR_MS, NEVER, Instant
from stoker.brain.domain.where import ANYWHERE, Where, selects
from stoker.brain.engine.decide import decide
from stoker.brain.state.decayed_usage import DecayedUsage, TenantUse
from stoker.brain.state.state_view import last_of_each_gpu, latest_end
from stoker.brain.state.usage_ledger import UsageLedger
from stoker.brain.state.view import Bucket, FutureRelease, GpuKinds, NodeClass, RunningJob, SelectedNodes, SharedRest

A100: Final = "NVIDIA A100-SXM4-80GB"
V100: Final = "Tesla V100-SXM2-32GB"
H100: Final = "NVIDIA H100 80GB HBM3"
MEMORY_MB: Final = {A100: 81_920, V100: 32_768, H100: 81_559}
NOW: Final = Instant(1_000 * HOUR_MS)
Thing = Node | Job | Partition | Tenant | Pools


def node(  # noqa: PLR0913  # a builder: each test names the one or two that it is about
    name: str,
    *,
    gpus: int = 0,
    models: Sequence[str] = (),
    gpu_memory_mb: int = 0,
    cpus: int = 64,
    memory_mb: int = 524_288,
    address: str = "",
    reachable: bool = True,
    drain: str | None = None,
    forgotten: bool = False,
    returned: bool = True,
    pause: NodePause | None = None,
    labels: Mapping[str, str] | None = None,
    taints: Sequence[str] = (),
) -> Node:
    """A node with `gpus` A100s, or with one GPU per entry of `models` in that order."""
    names = list(models) or [A100] * gpus
    return Node(
        name=NodeName(name),
        inventory=Inventory(
            boot_id="boot-1",
            address=address or f"{name}.example",
            gpus=tuple(
                Gpu(
                    uuid=GpuUuid(f"GPU-{name}-{index}"),
                    index=index,
                    model=model,
                    memory_mb=gpu_memory_mb or MEMORY_MB.get(model, 16_384),
                )
                for index, model in enumerate(names)
            ),
            cpus=cpus,
            memory_mb=memory_mb,
            labels=dict(labels or {}),
            taints=tuple(taints),
        ),
        registered_at=NOW,
        reachable=reachable,
        drain=drain,
        forgotten=forgotten,
        returned=returned,
        pause=pause,
    )


def job(  # noqa: PLR0913  # a builder: each test names the one or two that it is about
    id_: int,
    *,
    gpus: int = 0,
    tasks: int = 1,
    model: str = "",
    gpu_memory_mb: int = 0,
    share: int = WHOLE_GPU,
    cpus: int = 1,
    memory_mb: int = 0,
    priority: int = 500,
    tries: int = 0,
    tasks_per_node: int = 0,
    where: Where = ANYWHERE,
    partition: str = "",
    array: str = "",
    waited_h: float = 0,
    begin: Instant = NEVER,
    tenant: str = "default",
    job_class: JobClass = JobClass.BATCH,
    limit_h: float = 24,
    preemptible: bool = False,
    requeue: bool = True,
    preemptions: int = 0,
) -> Job:
    """A job that has waited for so many hours, after `tries` attempts that have ended; or an array of such."""
    needs = {"gpu_count": gpus, "gpu_memory_mb": gpu_memory_mb, "cpus": cpus, "memory_mb": memory_mb}
    demand = Demand(**needs, gpu_share=share, gpu_model=model, tasks=tasks, tasks_per_node=tasks_per_node)
    members = parse_array(array) if array else None
    spec = JobSpec(
        name=f"job{id_}",
        demand=demand,
        command="true",
        priority=priority,
        time_limit_ms=int(limit_h * HOUR_MS),
        where=where,
        partition=PartitionName(partition),
        array=members,
        begin=begin,
        tenant=TenantName(tenant),
        job_class=job_class,
        preemptible=preemptible,
        requeue=requeue,
    )
    return Job(
        id=JobId(id_),
        uid=f"uid-{id_}",
        spec=spec,
        by=Principal("user:test"),
        submitted_at=Instant(NOW - int(waited_h * HOUR_MS)),
        attempts=_ended(tries),
        preemptions=preemptions,
        members=Members(lazy=members.indexes, waiting=members.count) if members else None,
    )


def _ended(tries: int) -> tuple[Attempt, ...]:
    return tuple(Attempt(number=n, epoch=Epoch(1), placed_at=NOW, tasks=()) for n in range(1, tries + 1))


def tenant(  # noqa: PLR0913  # a builder: each test names the one or two that it is about
    name: str,
    *,
    parent: str = "",
    guaranteed: int = 0,
    borrow: bool = True,
    lend: bool = True,
    weight: int = 1,
    nodes: Iterable[str] = (),
    **limits: int,
) -> Tenant:
    """A tenant with these limits, by the fields of Limits."""
    quota = Quota(guaranteed=guaranteed, limits=Limits(**limits), borrow=borrow, lend=lend, weight=weight)
    return Tenant(name=TenantName(name), parent=TenantName(parent), quota=quota, nodes=tuple(nodes))


def member(array: Job, index: int, *, tries: int = 1) -> Job:
    """A member of `array` that is a record and waits, after attempts that have ended."""
    made = lazy_member(array, index)
    assert made is not None, f"member {index} is no longer lazy"
    return msgspec.structs.replace(made, attempts=_ended(tries))


def started_members(array: Job, *indexes: int) -> Job:
    """`array` once these members are records."""
    _, members = array.as_array
    for index in indexes:
        members = Members(lazy=without(members.lazy, index), waiting=members.waiting - 1)
    return msgspec.structs.replace(array, members=members)


class Cluster:
    """Nodes and jobs at one moment. Never changed: `after` and `without` give the next moment."""

    def __init__(  # noqa: PLR0913  # a builder
        self,
        nodes: Iterable[Node],
        jobs: Iterable[Job],
        partitions: Iterable[Partition] = (),
        tenants: Iterable[Tenant] = (),
        pools: Pools | None = None,
        used: Mapping[str, int] | None = None,
        claims: Iterable[Claim] = (),
    ) -> None:
        """`used` is the decayed usage of each tenant's own jobs, in GPUs; nobody holds any of it now."""
        self.nodes: Mapping[NodeName, Node] = {node.name: node for node in nodes}
        self.jobs: Mapping[JobId, Job] = {job.id: job for job in jobs}
        self.partitions: Mapping[PartitionName, Partition] = {each.name: each for each in partitions}
        self.tenants: Mapping[TenantName, Tenant] = {each.name: each for each in (THE_DEFAULT, *tenants)}
        self.pools = pools or Pools()
        self.used = dict(used or {})
        waiting = [job.id for job in self.jobs.values() if job.state is JobState.PENDING]
        self.claims = {each.job: each for each in claims if each.job in waiting}
        live = [job for job in self.jobs.values() if job.live_attempt is not None]
        self.preemptible = [job.id for job in live if job.spec.preemptible]
        self.position = Position(len(self.jobs))
        self.epoch = Epoch(1)
        self.free = self._free_where(lambda node: node.takes_work)
        self.returning = self._free_where(lambda node: node.schedulable and not node.returned)
        self.tenant_use = TenantUse(self._decayed(), {}, self._capacity(), self.tenants)

    def _decayed(self) -> DecayedUsage:
        decayed = DecayedUsage(DAY_MS)
        decayed.now = Instant(NOW - DAY_MS)
        decayed.begin({})
        paths = {name: [each.name for each in path_of(self.tenants, TenantName(name))] for name in self.used}
        for name, gpus in self.used.items():
            decayed.change(paths[name], Amount(gpu_milli=2 * gpus * WHOLE_GPU))
        decayed.now = NOW  # one half-life later
        for name, gpus in self.used.items():
            decayed.change(paths[name], Amount(gpu_milli=-2 * gpus * WHOLE_GPU))
        return decayed

    def _capacity(self) -> Amount:
        has = [node.inventory for node in self.nodes.values() if node.schedulable]
        memory_mb = sum(gpu.memory_mb for each in has for gpu in each.gpus)
        gpus = sum(len(each.gpus) for each in has)
        return Amount(gpus * WHOLE_GPU, memory_mb, sum(each.cpus for each in has), sum(each.memory_mb for each in has))

    def _free_where(self, holds: Callable[[Node], bool]) -> Mapping[NodeName, Free]:
        return {name: self._free_on(node) for name, node in self.nodes.items() if holds(node)}

    def _free_on(self, node: Node) -> Free:
        kept = [uuid for stray in node.strays for uuid in stray.gpus]
        gpus = tuple(gpu for gpu in node.inventory.gpus if gpu.uuid not in kept)
        free = Free(gpus, node.inventory.cpus, node.inventory.memory_mb)
        for attempt in self.live_attempts():
            for task in attempt.tasks:
                if task.placement.node == node.name:
                    free = free.take(task.placement)
        return free

    @property
    def free_milli(self) -> int:
        return sum(free.gpu_milli for free in (*self.free.values(), *self.returning.values()))

    @property
    def shared(self) -> Sequence[SharedRest]:
        rests = ((free.shared, name) for name, free in self.free.items())
        return sorted(SharedRest(rest.left, name, rest.gpu.index) for shared, name in rests for rest in shared)

    @property
    def usage_ledger(self) -> UsageLedger:
        usage_ledger = UsageLedger(self.tenants)
        for name, each in self.tenants.items():
            usage_ledger.tenant_changed(name, each)
        for job in self.jobs.values():
            usage_ledger.charge(job.spec.tenant, job.spec.job_class, held(job))
        for job in self.waiting():
            usage_ledger.wait(job.spec.tenant, 1)
        return usage_ledger

    def live_attempts(self) -> list[Attempt]:
        return [job.live_attempt for job in self.jobs.values() if job.live_attempt is not None]

    def waiting(self) -> list[Job]:
        """Whoever may be placed, in order of ids: jobs, and members that are records or not."""
        found = [job for job in self.jobs.values() if _may_start(job) and job.members is None]
        for array in self.jobs.values():
            if array.members is not None and _may_start(array) and self.array_slots(array.id) != 0:
                lazy = (lazy_member(array, index) for index in indexes_of(array.members.lazy))
                found += [each for each in lazy if each is not None]
        return sorted(found, key=lambda job: job.id)

    def pending(self) -> list[Bucket]:
        buckets: dict[tuple[int, Shape, Instant], tuple[list[JobId], list[JobId]]] = {}
        for id_ in sorted(self.jobs):
            job = self.jobs[id_]
            lazy = job.members is not None and bool(job.members.lazy) and self.array_slots(id_) != 0
            if _may_start(job) and (lazy or job.members is None):
                begin = job.spec.begin if job.spec.begin > job.submitted_at else NEVER
                key = job.spec.priority, job.spec.shape, begin
                jobs, arrays = buckets.setdefault(key, ([], []))
                (arrays if lazy else jobs).append(id_)
        return [Bucket(priority, shape, *ids) for (priority, shape, _), ids in buckets.items()]

    def live(self) -> list[Job]:
        return [job for _, job in sorted(self.jobs.items()) if job.live_attempt is not None]

    def running(self, job: Job, now: Instant) -> RunningJob:
        tasks = [task.placement for task in job.live_attempt.open_tasks] if job.live_attempt else []
        return RunningJob(job.id, job.spec.shape, job.spec.priority, latest_end(job, Policy(), now), tasks)

    def releases(self, node: NodeName, now: Instant) -> list[FutureRelease]:
        known = self.nodes[node].gpus_by_uuid
        found = []
        for each in [self.running(job, now) for job in self.live()]:
            attempt = self.jobs[each.job].live_attempt
            assert attempt is not None
            since = attempt.placed_at if attempt.began_at == NEVER else NEVER
            here = [task for task in each.tasks if task.node == node]
            gpus = [known[uuid] for task in here for uuid in task.gpus if uuid in known]
            if here:
                cpus, memory_mb = sum(task.cpus for task in here), sum(task.memory_mb for task in here)
                found.append(
                    FutureRelease(
                        max(now, latest_end(self.jobs[each.job], Policy(), since)), each.job, gpus, cpus, memory_mb
                    )
                )
        return last_of_each_gpu(sorted(found, key=lambda each: each[:2]))

    def coming_free(self, node: NodeName) -> set[GpuUuid]:
        ending = [job.live_attempt for job in self.jobs.values() if job.state is JobState.STOPPING]
        tasks = [task.placement for attempt in ending if attempt for task in attempt.open_tasks]
        return {uuid for placement in tasks if placement.node == node for uuid in placement.gpus}

    def held_on(self, node: NodeName) -> list[TaskPlacement]:
        tasks = [task.placement for attempt in self.live_attempts() for task in attempt.open_tasks]
        return [placement for placement in tasks if placement.node == node]

    def job(self, job: JobId) -> Job:
        return self.jobs[job]

    def members(self, array: JobId) -> Iterator[JobId]:
        spec, members = self.jobs[array].as_array
        return (member_id(array, spec, index) for index in indexes_of(members.lazy))

    def array_slots(self, array: JobId) -> int | None:
        spec, _ = self.jobs[array].as_array
        live = sum(job.array_of == array and job.live_attempt is not None for job in self.jobs.values())
        return max(0, spec.running_max - live) if spec.running_max else None

    def admitted(self, where: Where) -> SelectedNodes:
        names = [name for name in sorted(self.nodes) if selects(where, self.nodes[name])]
        classes = [NodeClass(_kinds(self.nodes[name]), self.nodes[name].inventory, [name]) for name in names]
        return SelectedNodes(classes, everywhere=len(names) == len(self.nodes))

    @property
    def by_free(self) -> Mapping[GpuKinds, Mapping[int, Sequence[NodeName]]]:
        found: dict[GpuKinds, dict[int, list[NodeName]]] = {}
        for name in sorted(self.free):
            kinds = _kinds(self.nodes[name])
            found.setdefault(kinds, {}).setdefault(len(self.free[name].gpus), []).append(name)
        return found

    def ports_in_use(self, address: str) -> frozenset[int]:
        return frozenset(a.master_port for a in self.live_attempts() if a.master_port and a.master_addr == address)

    def plan(self, *, policy: Policy | None = None, budget: int = 1_024, seed: int = 0, now: Instant = NOW) -> Plan:
        return decide(self, policy or Policy(), now, seed, budget)

    def after(self, plan: Plan) -> "Cluster":
        """The cluster in which all that was planned runs, and who has to give way is ending."""
        jobs, claims = dict(self.jobs), dict(self.claims)
        for place in plan.actions:
            if isinstance(place, Preempt):
                claims[place.job] = Claim(job=place.job, tasks=place.tasks, at=NOW)
                jobs.update((victim.job, _stopping(jobs[victim.job], place)) for victim in place.victims)
                continue
            if place.array:
                array = jobs[place.array]
                index = index_of(array.id, array.as_array[0], place.job)
                jobs[place.job] = member(array, index, tries=0)
                jobs[place.array] = started_members(array, index)
            jobs[place.job] = _started(jobs[place.job], place)
        return self._with(jobs.values(), claims=claims.values())

    def without(self, *ids: int) -> "Cluster":
        """The cluster in which these jobs have gone, and what they held is free; who gave way waits again."""
        kept = [job for job in self.jobs.values() if job.id not in ids]
        gone = [job for job in self.jobs.values() if job.id in ids]
        return self._with([*kept, *[_waiting_again(job) for job in gone if job.state is JobState.STOPPING]])

    def _with(
        self, jobs: Iterable[Job], used: Mapping[str, int] | None = None, claims: Iterable[Claim] | None = None
    ) -> "Cluster":
        parts, tenants = self.partitions.values(), self.tenants.values()
        kept = self.claims.values() if claims is None else claims
        return Cluster(self.nodes.values(), jobs, parts, tenants, self.pools, self.used if used is None else used, kept)

    def having_used(self, tenant: str, gpus: int) -> "Cluster":
        """The cluster in which this tenant's own jobs have used so many GPUs on average by now."""
        return self._with(self.jobs.values(), {**self.used, tenant: gpus})

    def plus(self, *things: Thing) -> "Cluster":
        """The cluster with these beside, or in the place of, what it has."""
        own = (*self.nodes.values(), *self.jobs.values(), *self.partitions.values(), *self.tenants.values(), self.pools)
        made = cluster(*own, *things)
        for name, gpus in self.used.items():
            made = made.having_used(name, gpus)
        return made._with(made.jobs.values(), made.used, self.claims.values())


def cluster(*things: Thing) -> Cluster:
    """Nodes, jobs, partitions, tenants and pools in any order; of two with one name the later counts."""
    return Cluster(
        [thing for thing in things if isinstance(thing, Node)],
        [thing for thing in things if isinstance(thing, Job)],
        [thing for thing in things if isinstance(thing, Partition)],
        [thing for thing in things if isinstance(thing, Tenant)],
        ([Pools()] + [thing for thing in things if isinstance(thing, Pools)])[-1],
    )


def _may_start(job: Job) -> bool:
    return job.state is JobState.PENDING and job.not_before == NEVER and not job.blocked


def _kinds(node: Node) -> GpuKinds:
    return tuple(sorted({(gpu.model, gpu.memory_mb) for gpu in node.inventory.gpus}))


def _started(job: Job, place: Place) -> Job:
    attempt = Attempt(
        number=place.attempt,
        epoch=Epoch(1),
        placed_at=NOW,
        tasks=tuple(Task(placement=placement) for placement in place.tasks),
        master_addr=place.master_addr,
        master_port=place.master_port,
    )
    return msgspec.structs.replace(job, state=JobState.STARTING, attempts=(*job.attempts, attempt))


def _stopping(job: Job, preempt: Preempt) -> Job:
    stop = StopRequest(cause=preempt.cause, at=NOW, by=Principal("control"), for_job=preempt.job)
    attempt = msgspec.structs.replace(job.attempts[-1], stop=stop)
    return msgspec.structs.replace(job, state=JobState.STOPPING, attempts=(*job.attempts[:-1], attempt))


def _waiting_again(job: Job) -> Job:
    end = TaskEnd(cause=EndCause.STOPPED, at=NOW)
    tasks = tuple(msgspec.structs.replace(task, end=end) for task in job.attempts[-1].tasks)
    ended = msgspec.structs.replace(job.attempts[-1], tasks=tasks, outcome=Outcome.PREEMPTED, ended_at=NOW)
    counted = {"attempts": (*job.attempts[:-1], ended), "preemptions": job.preemptions + 1}
    return msgspec.structs.replace(job, state=JobState.PENDING, **counted)


def running_on(job: Job, *where: tuple[str, Sequence[int]]) -> Job:
    """`job` with its ranks started: for each the node and the indexes of its GPUs."""
    return _started(
        job,
        Place(
            job=job.id,
            attempt=job.newest_attempt + 1,
            tasks=tuple(placement(rank, job, name, indexes) for rank, (name, indexes) in enumerate(where)),
        ),
    )


def refused_on(job: Job, *where: tuple[str, ...]) -> Job:
    """`job` after attempts of which each failed to start on these nodes."""
    for names in where:
        end = TaskEnd(cause=EndCause.NEVER_STARTED, at=NOW)
        placements = (placement(rank, job, name, ()) for rank, name in enumerate(names))
        tasks = tuple(Task(placement=each, end=end) for each in placements)
        failed = Attempt(number=len(job.attempts) + 1, epoch=Epoch(1), placed_at=NOW, ended_at=NOW, tasks=tasks)
        job = msgspec.structs.replace(job, attempts=(*job.attempts, failed))
    return job


def sharing_on(job: Job, *where: tuple[str, int]) -> Job:
    """`job`, which asks for a share, with its ranks started: for each the node and the index of its GPU (an A100)."""
    demand, started = job.spec.demand, running_on(job, *[(name, [index]) for name, index in where])
    bound = demand.memory_bound_mb(MEMORY_MB[A100])
    attempt = started.attempts[-1]
    tasks = [
        msgspec.structs.replace(
            task, placement=msgspec.structs.replace(task.placement, gpu_share=demand.gpu_share, gpu_memory_mb=bound)
        )
        for task in attempt.tasks
    ]
    newest = msgspec.structs.replace(attempt, tasks=tuple(tasks))
    return msgspec.structs.replace(started, attempts=(*started.attempts[:-1], newest))


def placement(rank: int, job: Job, node_name: str, indexes: Sequence[int]) -> TaskPlacement:
    demand = job.spec.demand
    return TaskPlacement(
        rank=rank,
        node=NodeName(node_name),
        gpus=tuple(GpuUuid(f"GPU-{node_name}-{index}") for index in indexes),
        cpus=demand.cpus,
        memory_mb=demand.memory_mb,
    )


def where(plan: Plan) -> dict[int, list[tuple[str, list[int]]]]:
    """For each job that was placed: the node and the GPU indexes of each rank."""
    return {
        place.job: [(task.node, [int(uuid.rpartition("-")[2]) for uuid in task.gpus]) for task in place.tasks]
        for place in plan.actions
    }
