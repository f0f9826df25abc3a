"""What do the rules of quota say, counted slowly from the records alone?

It uses neither the books nor the walls nor the turns of the product, so that they can be held against it: every number
is summed anew from jobs, nodes and tenants. Properties and the rig share it.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from msgspec.structs import replace

from stoker.brain.domain.allocation import TaskPlacement
from stoker.brain.domain.array import indexes_of
from stoker.brain.domain.demand import Demand, JobClass
from stoker.brain.domain.gpu import WHOLE_GPU, Gpu, model_matches
from stoker.brain.domain.ids import GpuUuid, NodeName, TenantName
from stoker.brain.domain.job import Job, JobSpec, lazy_member
from stoker.brain.domain.label import labels_of, taints_of
from stoker.brain.domain.lifecycle import LIVE, JobState
from stoker.brain.domain.partition import selection
from stoker.brain.domain.plan import Place, Plan, Preempt
from stoker.brain.domain.quota import WHOLE
from stoker.brain.domain.tenant import Tenant
from stoker.brain.domain.units import NEVER
from stoker.brain.domain.where import admits
from stoker.brain.state.cluster import ClusterState

Sums = list[int]
"""Thousandths of GPUs, GPU memory, CPUs, memory, jobs: in the order of an Amount."""
Standing = tuple[bool, int]
"""Does it yield to the other class, and how far up is the tenant within whose guarantee it fits? Less comes first."""

_NOBODY = 1_000
_LAZY_MAX = 30
"""Members of one array that are looked at."""


class Count:
    """Who holds how much, and how many wait."""

    def __init__(self, tenants: Mapping[TenantName, Tenant]) -> None:
        self.tenants = tenants
        self._paths: dict[TenantName, list[Tenant]] = {}
        self.by_class: dict[JobClass, Sums] = {each: [0] * 5 for each in JobClass}
        self.by_tenant: Counter[tuple[TenantName, int]] = Counter()
        self.waiting: Counter[TenantName] = Counter()

    def path(self, name: TenantName) -> list[Tenant]:
        """The tenant and all above it."""
        if name not in self._paths:
            found, above = [], name
            while above in self.tenants:
                found.append(self.tenants[above])
                above = found[-1].parent
            self._paths[name] = found
        return self._paths[name]

    def hold(self, spec: JobSpec, more: Sums) -> None:
        names = [tenant.name for tenant in self.path(spec.tenant)]
        for at, amount in enumerate(more):
            if amount:
                self.by_class[spec.job_class][at] += amount
                for name in names:
                    self.by_tenant[name, at] += amount

    def used(self, name: TenantName) -> tuple[int, ...]:
        return tuple(self.by_tenant[name, at] for at in range(5))

    @property
    def held_milli(self) -> int:
        return sum(sums[0] for sums in self.by_class.values())


def wants(demand: Demand) -> Sums:
    gpus = demand.tasks * demand.gpu_count
    beside = [demand.tasks * demand.cpus, demand.tasks * demand.memory_mb, 1]
    return [gpus * demand.gpu_share, gpus * demand.gpu_memory_mb, *beside]


def holds(job: Job) -> Sums:
    """Now."""
    if job.state not in LIVE:
        return [0] * 5
    found = [0] * 5
    for task in job.attempts[-1].tasks:
        if task.end is None:
            place = task.placement
            for at, amount in enumerate((len(place.gpus) * place.gpu_share, 0, place.cpus, place.memory_mb)):
                found[at] += amount
            found[1] += len(place.gpus) * job.spec.demand.gpu_memory_mb
            found[4] = 1
    return found


def waits(job: Job) -> int:
    """How many jobs or members of it count as waiting."""
    if job.members is not None:
        final = job.state not in (JobState.PENDING, JobState.HELD)
        return 0 if final else sum(1 for _ in indexes_of(job.members.lazy))
    return int(job.state in (JobState.PENDING, JobState.HELD))


def count(state: ClusterState, jobs: Iterable[Job] | None = None) -> Count:
    """Of all jobs; `jobs` are those that haven't ended, where the caller knows them."""
    found = Count(state.tenants)
    for job in state.jobs.values() if jobs is None else jobs:
        if job.state in LIVE:
            found.hold(job.spec, holds(job))
        number = waits(job)
        for tenant in found.path(job.spec.tenant) if number else ():
            found.waiting[tenant.name] += number
    return found


def ledger_faults(state: ClusterState, found: Count) -> Iterator[str]:
    """Do the books say what was counted?"""
    usage_ledger = state.indexes.usage_ledger
    for job_class, sums in found.by_class.items():
        if tuple(usage_ledger.used_by_class(job_class)) != tuple(sums):
            yield f"{job_class} jobs hold {sums}, and the books say {usage_ledger.used_by_class(job_class)}"
    for name in state.tenants:
        if tuple(usage_ledger.used_by(name)) != found.used(name):
            yield f"tenant {name} holds {found.used(name)}, and the books say {usage_ledger.used_by(name)}"
        if usage_ledger.pending_of(name) != found.waiting[name]:
            yield f"{found.waiting[name]} wait in tenant {name}, and the books say {usage_ledger.pending_of(name)}"
    unknown = [name for name in (*usage_ledger.by_tenant, *usage_ledger.pending) if name not in state.tenants]
    if unknown:
        yield f"the books have accounts of tenants that aren't there: {unknown}"


# -- walls -------------------------------------------------------------------------------------------------------


def limits_of(tenant: Tenant) -> list[int | None]:
    quota, limits = tenant.quota, tenant.quota.limits
    gpus = [most for most in (limits.gpus, None if quota.borrow else quota.guaranteed) if most is not None]
    milli = min(gpus) * WHOLE_GPU if gpus else None
    return [milli, limits.gpu_memory_mb, limits.cpus, limits.memory_mb, limits.jobs]


def guaranteed(state: ClusterState, job_class: JobClass, in_service: int) -> int:
    """Of a pool: its share to the nearest GPU, the half one going to the online pool. Both in thousandths."""
    in_service //= WHOLE_GPU
    online, batch = state.pools.online, state.pools.batch
    first = (2 * in_service * online + WHOLE) // (2 * WHOLE)
    if job_class is JobClass.ONLINE:
        return first * WHOLE_GPU
    return min(in_service - first, (2 * in_service * batch + WHOLE) // (2 * WHOLE)) * WHOLE_GPU


def limit_faults(state: ClusterState, found: Count, spec: JobSpec, free: int) -> Iterator[str]:
    """Which limit is broken by a job of this spec that is among those that hold? `free` thousandths are left."""
    asked = wants(spec.demand)
    for tenant in found.path(spec.tenant):
        for at, limit in enumerate(limits_of(tenant)):
            if limit is not None and asked[at] and found.by_tenant[tenant.name, at] > limit:
                yield f"tenant {tenant.name} holds {found.used(tenant.name)}, beyond {limits_of(tenant)}"
    if asked[0]:
        yield from _strict_faults(state, found, spec, found.held_milli + free)
        kept = _kept(found, spec)
        if free < kept:
            yield f"{free} GPUs are left, and {kept} are kept by tenants that don't lend"


def _strict_faults(state: ClusterState, found: Count, spec: JobSpec, in_service: int) -> Iterator[str]:
    if state.pools.strict:
        (other,) = (each for each in JobClass if each is not spec.job_class)
        most = in_service - max(guaranteed(state, other, in_service), found.by_class[other][0])
        used = found.by_class[spec.job_class][0]
        if used > most:
            yield f"{spec.job_class} jobs hold {used} GPUs, and the other pool leaves {most}"


def _kept(found: Count, spec: JobSpec) -> int:
    """GPUs that stay idle for tenants that don't lend and that the job isn't of. Within a guarantee of its own it has
    to leave them only to those within the same one."""
    path = found.path(spec.tenant)
    own = next((each for each in path if found.by_tenant[each.name, 0] <= each.quota.guaranteed * WHOLE_GPU), None)
    roots = [own.name] if own else [each.name for each in found.tenants.values() if not each.parent]
    on_path = {each.name for each in path}
    return sum(_reserve(found, root, on_path) for root in roots)


def _reserve(found: Count, name: TenantName, on_path: set[TenantName]) -> int:
    beneath = sum(_reserve(found, each.name, on_path) for each in found.tenants.values() if each.parent == name)
    quota = found.tenants[name].quota
    if name in on_path or quota.lend:
        return beneath
    return max(beneath, quota.guaranteed * WHOLE_GPU - found.by_tenant[name, 0])


# -- what is free ------------------------------------------------------------------------------------------------


class NodeCapacity:
    """What each node in service has left: its GPUs, CPUs and memory."""

    def __init__(self, state: ClusterState, jobs: Iterable[Job] | None = None) -> None:
        self.state = state
        self.gpus: dict[NodeName, list[Gpu]] = {}
        self.rests: dict[GpuUuid, int] = {}
        """Thousandths that are left of GPUs that tasks share."""
        self.rest: dict[NodeName, tuple[int, int]] = {}
        taken: dict[NodeName, list[TaskPlacement]] = {name: [] for name in state.nodes}
        for job in state.jobs.values() if jobs is None else jobs:
            for task in job.attempts[-1].tasks if job.state in LIVE else ():
                if task.end is None:
                    taken[task.placement.node].append(task.placement)
        for name, node in state.nodes.items():
            works = node.pause is None and not node.inventory.fault
            if node.reachable and node.drain is None and works and not node.forgotten:
                strays = [uuid for stray in node.strays for uuid in stray.gpus]
                held = [uuid for place in taken[name] for uuid in place.gpus]
                known = [gpu.uuid for gpu in node.inventory.gpus if gpu.uuid not in strays]
                for place in taken[name]:
                    self._share(place, known)
                self.gpus[name] = [gpu for gpu in node.inventory.gpus if gpu.uuid not in (*strays, *held)]
                cpus = node.inventory.cpus - sum(place.cpus for place in taken[name])
                memory_mb = node.inventory.memory_mb - sum(place.memory_mb for place in taken[name])
                self.rest[name] = max(0, cpus), max(0, memory_mb)

    def copy(self) -> "NodeCapacity":
        made = NodeCapacity.__new__(NodeCapacity)
        made.state, made.gpus, made.rest = self.state, dict(self.gpus), dict(self.rest)
        made.rests = dict(self.rests)
        return made

    @property
    def free(self) -> int:
        """In thousandths of GPUs."""
        return sum(len(gpus) for gpus in self.gpus.values()) * WHOLE_GPU + sum(self.rests.values())

    def _share(self, place: TaskPlacement, known: Collection[GpuUuid]) -> None:
        for uuid in place.gpus if place.gpu_share != WHOLE_GPU else ():
            if uuid in known:
                self.rests[uuid] = self.rests.get(uuid, WHOLE_GPU) - place.gpu_share

    def take(self, place: Place) -> None:
        for task in place.tasks:
            cpus, memory_mb = self.rest[task.node]
            self._share(task, task.gpus)
            self.gpus[task.node] = [gpu for gpu in self.gpus[task.node] if gpu.uuid not in task.gpus]
            self.rest[task.node] = cpus - task.cpus, memory_mb - task.memory_mb

    def nodes(self, spec: JobSpec) -> list[NodeName]:
        """That take work, having returned since the last take-over, and that it selects."""
        where = selection(self.state.partitions, self.state.tenants, spec.shape)
        nodes = self.state.nodes
        ready = [nodes[name] for name in self.gpus if nodes[name].returned]
        return [node.name for node in ready if admits(where, node.name, labels_of(node), taints_of(node))]

    def suitable(self, name: NodeName, demand: Demand) -> list[GpuUuid]:
        return _suitable(self.gpus[name], demand)

    def fits(self, spec: JobSpec) -> bool:
        demand = spec.demand
        tasks = [self._tasks(self.suitable(name, demand), self.rest[name], demand) for name in self.nodes(spec)]
        return sum(tasks) >= demand.tasks

    def _tasks(self, suitable: Sequence[GpuUuid], rest: tuple[int, int], demand: Demand) -> int:
        most = [demand.tasks_per_node or demand.tasks]
        for has, needed in ((len(suitable), demand.gpu_count), (rest[0], demand.cpus), (rest[1], demand.memory_mb)):
            if needed:
                most.append(has // needed)
        return min(most)

    def large_enough(self, spec: JobSpec) -> list[NodeName]:
        """Of `nodes` those that would hold one task if they were empty."""
        found = []
        for name in self.nodes(spec):
            inventory = self.state.nodes[name].inventory
            rest = inventory.cpus, inventory.memory_mb
            if self._tasks(_suitable(inventory.gpus, spec.demand), rest, spec.demand):
                found.append(name)
        return found


def _suitable(gpus: Iterable[Gpu], demand: Demand) -> list[GpuUuid]:
    """Nodes here have GPUs of one model."""
    wish, memory_mb = demand.gpu_model, demand.gpu_memory_mb
    return [gpu.uuid for gpu in gpus if model_matches(wish, gpu.model) and gpu.memory_mb >= memory_mb]


# -- whose turn it is --------------------------------------------------------------------------------------------


class Pass:
    """One plan, replayed action by action."""

    def __init__(self, state: ClusterState, plan: Plan) -> None:
        self.state = state
        self.waiting = {job.id: job for job in _may_start(state)}
        self.in_service = count(state).held_milli + NodeCapacity(state).free
        self.contended = len({job.spec.job_class for job in self.waiting.values()}) > 1
        self.moments: list[tuple[Count, NodeCapacity]] = [(count(state), NodeCapacity(state))]
        """Before each action, and after the last."""
        self.standings: list[Standing] = []
        """Of each action when it was made."""
        for action in plan.actions:
            self._follow(action)
        placed = {action.job for action in plan.actions}
        self.left = [job for job in self.waiting.values() if job.id not in placed and self._has_room(job, plan)]
        """Who might have started, and didn't."""

    def _follow(self, action: Place) -> None:
        found, room = self.moments[-1]
        spec = self.waiting[action.job].spec
        self.standings.append(self.standing(spec, found))
        after = Count(self.state.tenants)
        after.by_class = {each: list(sums) for each, sums in found.by_class.items()}
        after.by_tenant = found.by_tenant.copy()
        after.hold(spec, wants(spec.demand))
        left = room.copy()
        left.take(action)
        self.moments.append((after, left))

    def _has_room(self, job: Job, plan: Plan) -> bool:
        """Does the limit of its own array let one more member start, after this plan?"""
        array = self.state.jobs.get(job.array_of)
        started = sum(self.waiting[action.job].array_of == job.array_of for action in plan.actions)
        return array is None or _below_array_limit(self.state, array, started)

    def standing(self, spec: JobSpec, found: Count) -> Standing:
        gpus = wants(spec.demand)[0]
        levels = [
            level
            for level, tenant in enumerate(found.path(spec.tenant))
            if gpus and found.by_tenant[tenant.name, 0] + gpus <= tenant.quota.guaranteed * WHOLE_GPU
        ]
        share = guaranteed(self.state, spec.job_class, self.in_service)
        within = gpus > 0 and found.by_class[spec.job_class][0] + gpus <= share
        return self.contended and not within, min(levels, default=_NOBODY)

    def walled(self, spec: JobSpec, moment: int) -> bool:
        """Would one more job of this spec break a limit then?"""
        found, room = self.moments[moment]
        more = Count(self.state.tenants)
        more.by_class = {each: list(sums) for each, sums in found.by_class.items()}
        more.by_tenant = found.by_tenant.copy()
        more.hold(spec, wants(spec.demand))
        return any(limit_faults(self.state, more, spec, room.free - wants(spec.demand)[0]))


def _below_array_limit(state: ClusterState, array: Job, started: int = 0) -> bool:
    """Does its own limit let one more member start, beside so many that are about to?"""
    most = array.spec.array.running_max if array.spec.array else 0
    live = sum(each.array_of == array.id and each.state in LIVE for each in state.jobs.values()) if most else 0
    return not most or live + started < most


def _may_start(state: ClusterState) -> Iterator[Job]:
    """Jobs and members that a pass may place; of an array's lazy members the first few."""
    for job in state.jobs.values():
        if job.state is JobState.PENDING and job.not_before == NEVER and not job.blocked:
            if job.members is None:
                yield job
            elif _below_array_limit(state, job):
                lazy = (lazy_member(job, index) for index in islice(indexes_of(job.members.lazy), _LAZY_MAX))
                yield from (each for each in lazy if each is not None)


def pass_faults(state: ClusterState, plan: Plan) -> Iterator[str]:
    """Was anyone served before his turn, or given what was another's? The plan was made for this very state.

    Rules: F1  whoever is placed has no better standing than who was placed before him, each as it was at that moment;
               only where nothing is kept for others, for what passes by backfill has its turn last, and whoever others
               gave way to has it first
           F2  who waits although nobody who waits has a better standing didn't fit, or not within his limits, on what
               was free before the first who was placed behind him; only where nothing is kept for others
           F3  where one job alone has the best standing and waits for GPUs of one node, nobody behind it takes it
               farther from having them: the most that is free on a node large enough is no less than before
           F4  no limit is broken by any placement
    """
    kept = plan.reservations or state.claims or any(isinstance(each, Preempt) for each in plan.actions)
    plan = replace(plan, actions=tuple(each for each in plan.actions if isinstance(each, Place)))
    done = Pass(state, plan)
    for before, after in zip(done.standings, done.standings[1:], strict=False):
        if after < before and not kept:
            yield f"F1 placed out of turn: standings {done.standings} of {[each.job for each in plan.actions]}"
    for at, action in enumerate(plan.actions):
        found, room = done.moments[at + 1]
        spec = done.waiting[action.job].spec
        yield from (f"F4 job {action.job}: {fault}" for fault in limit_faults(state, found, spec, room.free))
    starts = {job.id: done.standing(job.spec, done.moments[0][0]) for job in done.left}
    for job in _of_each_shape(done.left):
        end = done.standing(job.spec, done.moments[-1][0])
        better = [other for other in done.left if starts[other.id] < end and other.spec.shape != job.spec.shape]
        behind = next((at for at, standing in enumerate(done.standings) if standing > end), None)
        if better or behind is None or done.walled(job.spec, behind):
            continue
        if not kept and done.moments[behind][1].fits(job.spec):
            yield f"F2 job {plan.actions[behind].job} was placed before one of better standing that fits: {job.story()}"
        alone = not kept and not any(starts[other.id] <= end for other in done.left if other.id != job.id)
        if alone and job.spec.demand.tasks == 1 and not done.walled(job.spec, len(plan.actions)):
            yield from _keep_faults(done, job, behind)


def _of_each_shape(jobs: Iterable[Job]) -> list[Job]:
    return list({job.spec.shape: job for job in reversed(list(jobs))}.values())


def _keep_faults(done: Pass, job: Job, behind: int) -> Iterator[str]:
    """F3"""
    rooms, demand = (done.moments[behind][1], done.moments[-1][1]), job.spec.demand
    nodes = rooms[0].large_enough(job.spec)
    had, left = (max([len(room.suitable(name, demand)) for name in nodes], default=0) for room in rooms)
    if left < min(had, demand.gpu_count):
        yield f"F3 at most {left} GPUs are left on a node, and {had} were before others came, of {job.story()}"
