"""Indexes of the state: look-ups derived from the records, kept up by `apply` and rebuilt from scratch in tests.

Everything here is derived from the records of jobs and nodes: `job_changed` and `node_changed` take the old and the
new record, undo what the old one contributed and add what the new one does. `rebuild` makes the same from nothing,
and a test holds the two against each other after every event.
"""

from bisect import bisect_left, insort
from collections.abc import Mapping

from stoker.brain.domain.allocation import TaskPlacement
from stoker.brain.domain.gpu import WHOLE_GPU, SharedGpu
from stoker.brain.domain.ids import GpuUuid, JobId, NodeName, TenantName
from stoker.brain.domain.job import Attempt, Job
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.domain.node import Free, Node, free_on
from stoker.brain.domain.quota import NOTHING, Amount, held
from stoker.brain.domain.tenant import Tenant
from stoker.brain.domain.units import NEVER, Instant, later
from stoker.brain.state.arrays import Tallies
from stoker.brain.state.dependencies import Dependents
from stoker.brain.state.job_queues import Agenda, Ascending, QueueKey, Queues, queue_key, requeue
from stoker.brain.state.node_classes import NodeClasses, kinds_of
from stoker.brain.state.notices import DueNotices
from stoker.brain.state.usage_ledger import UsageLedger
from stoker.brain.state.view import GpuKinds, SharedRest

TaskId = tuple[JobId, int, int]
"""(job, attempt, rank)"""

_ArrayMemberEntry = tuple[JobState | None, QueueKey | None]
"""What a job is shown as, and under which key it is offered to the engine."""

_LIMITED = frozenset({JobState.STARTING, JobState.RUNNING})


class Indexes:
    """All derived look-ups of one ClusterState."""

    def __init__(
        self, nodes: Mapping[NodeName, Node], jobs: Mapping[JobId, Job], tenants: Mapping[TenantName, Tenant]
    ) -> None:
        self._nodes = nodes
        self._jobs = jobs
        self.by_state: dict[JobState, Ascending[JobId]] = {state: Ascending() for state in JobState}
        self.waiting: Queues = {}
        """Jobs that the engine may place."""
        self.waiting_arrays: Queues = {}
        """Arrays that may start another member."""
        self.arrays = Tallies(jobs)
        self.dependents = Dependents(jobs)
        self.notices = DueNotices(jobs, self.arrays)
        self.over: dict[JobId, None] = {}  # arrays whose members have all ended, while they haven't yet
        self.pending_count = 0  # jobs and members that wait
        self.open_bytes = 0
        """Memory of the records of jobs that haven't ended."""
        self.ended_bytes = 0
        """Memory of the records of those that have."""
        self.running_arrays = 0
        """Arrays that are shown as running because a member is live."""
        self._of_array: dict[JobId, _ArrayMemberEntry] = {}
        """What each array is shown as and offered under: both depend on its members too."""
        self.delayed = Agenda()
        self.limits = Agenda()
        """When running jobs reach their time limit, by a clock that never moved (`ClockMoved`)."""
        self.warnings = Agenda()
        """When it is to be said that running jobs are near their time limit, by the same clock."""
        self.signals = Agenda()
        """When the processes of running jobs are to be given notice of their time limit, by the same clock."""
        self.warning_ms = 0
        """How long before it, as the policy says. 0 = it isn't said."""
        self.ended = Agenda()
        """Final jobs by the time of their end, oldest first."""
        self.on_node: dict[NodeName, dict[JobId, None]] = {}
        self.held: dict[NodeName, dict[TaskId, TaskPlacement]] = {}
        self.preemptible: dict[JobId, None] = {}  # live ones
        self.ports: dict[str, dict[int, JobId]] = {}
        self.gpu_owner: dict[GpuUuid, NodeName] = {}
        self.free: dict[NodeName, Free] = {}  # on each node in service
        self.returning: dict[NodeName, None] = {}
        """Those of them that get no new work yet, since they haven't returned."""
        self.paused: dict[NodeName, Instant] = {}
        """Until when each node pauses that does."""
        self.by_free: dict[GpuKinds, dict[int, list[NodeName]]] = {}
        """The other nodes in service."""
        self._slot: dict[NodeName, tuple[GpuKinds, int]] = {}
        self.free_gpus = 0
        """On all nodes in service."""
        self.capacity = NOTHING
        """What all nodes in service have, held or free."""
        self.free_milli = 0
        """Thousandths of GPUs that nobody holds, on all nodes in service."""
        self.shared: list[SharedRest] = []
        """Of GPUs with sharers, on nodes in service that have returned; sorted."""
        self.node_classes = NodeClasses()
        self.usage_ledger = UsageLedger(tenants)
        self.ended_max = 0
        self.ended_bytes_max = 0
        """Both copied from the policy, so that `next_deadline` knows when pruning is due."""

    @property
    def milli_in_service(self) -> int:
        """Thousandths of GPUs held, or free on a node in service: what class pools are shares of."""
        return self.usage_ledger.held_milli + self.free_milli

    def next_deadline(self, clock_moved_ms: int = 0) -> Instant | None:
        """Return when `RunDeadlines` has something to do next; None = nothing is foreseen."""
        surplus = len(self.ended) > self.ended_max + self.ended_max // 10 or self.ended_bytes > self.ended_bytes_max
        if self.over or self.dependents.decided or surplus:
            return NEVER
        limits = [
            later(at, clock_moved_ms)
            for at in (self.limits.head(), self.warnings.head(), self.signals.head())
            if at is not None
        ]
        heads = (self.delayed.head(), *limits, *self.paused.values())
        return min((at for at in heads if at is not None), default=None)

    # -- jobs ----------------------------------------------------------------------------------------------------

    def job_changed(self, old: Job | None, new: Job | None) -> None:
        """Follow one job record being replaced, made (old None) or dropped (new None)."""
        waiting = waiting_count(new) - waiting_count(old)
        self.pending_count += waiting
        self.arrays.job_changed(old, new)
        self.dependents.job_changed(old, new)
        self.notices.job_changed(old, new)
        changed = new or old
        assert changed is not None, "a change has a before or an after"
        if waiting:
            self.usage_ledger.wait(changed.spec.tenant, waiting)
        was_open, is_open = _is_open(old), _is_open(new)
        if was_open is not is_open:
            self._follow_memory(changed, was_open, is_open)
        elif old is not None and new is not None and old.spec is not new.spec:
            self._follow_memory(old, was_open, None)
            self._follow_memory(new, None, is_open)
        if changed.members is not None:
            self._follow_array(changed.id)
        else:
            self._follow_state(changed.id, _state(old), _state(new))
            requeue(self.waiting, changed.id, queue_key(old), queue_key(new))
            if changed.array_of in self._jobs:
                self._follow_array(changed.array_of)
        self._follow_agendas(old, new)
        before, after = _live(old), _live(new)
        if new is not None and after is not None and new.spec.preemptible:
            self.preemptible[changed.id] = None
        else:
            self.preemptible.pop(changed.id, None)
        if before is not after:
            self._follow_attempt(old, before, new, after)

    def _follow_memory(self, job: Job, before: bool | None, after: bool | None) -> None:
        """Count the memory of a record that was made, ended, runs again or is dropped."""
        size = job.spec.memory_bytes
        for is_open, more in ((before, -size), (after, size)):
            if is_open:
                self.open_bytes += more
                self.usage_ledger.remember(job.spec.tenant, more)
            elif is_open is not None:
                self.ended_bytes += more

    def _follow_state(self, job: JobId, before: JobState | None, after: JobState | None) -> None:
        if before is not after:
            if before:
                self.by_state[before].remove(job)
            if after:
                self.by_state[after].add(job)

    def _follow_array(self, array: JobId) -> None:
        """Its shown state, its place among what is offered and whether it is over, anew."""
        job = self._jobs.get(array)
        new: _ArrayMemberEntry = (None, None)
        if job is not None:
            lazy = job.members is not None and job.members.lazy and self.arrays.slots_left(job) != 0
            new = self.arrays.shown(job), queue_key(job) if lazy else None
        shown_before, offered_before = self._of_array.pop(array, (None, None))
        self._follow_state(array, shown_before, new[0])
        self.running_arrays += (new[0] is JobState.RUNNING) - (shown_before is JobState.RUNNING)
        requeue(self.waiting_arrays, array, offered_before, new[1], arrays=True)
        if job is not None:
            self._of_array[array] = new
        if job is not None and self.arrays.is_over(job):
            self.over[array] = None
        else:
            self.over.pop(array, None)

    def _follow_agendas(self, old: Job | None, new: Job | None) -> None:
        for agenda, due in (
            (self.delayed, _delay),
            (self.limits, _limit),
            (self.warnings, self._warning),
            (self.signals, _signal),
            (self.ended, end_of),
        ):
            before, after = due(old), due(new)
            if before != after:
                if old and before is not None:
                    agenda.remove((before, old.id))
                if new and after is not None:
                    agenda.add((after, new.id))

    def warn_before(self, warning_ms: int) -> None:
        """Say so long before a time limit that it is near, from now on."""
        if warning_ms == self.warning_ms:
            return
        self.warning_ms, self.warnings = warning_ms, Agenda()
        for state in _LIMITED:
            for job in self.by_state[state].entries:
                at = self._warning(self._jobs.get(job))
                if at is not None:
                    self.warnings.add((at, job))

    def _warning(self, job: Job | None) -> Instant | None:
        limit = _limit(job) if self.warning_ms else None
        if job is None or limit is None or job.spec.time_limit_ms < 2 * self.warning_ms:
            return None
        warned = job.attempts[-1].warned_limit_ms == job.spec.time_limit_ms
        return None if warned else later(limit, -self.warning_ms)

    def _follow_attempt(self, old: Job | None, before: Attempt | None, new: Job | None, after: Attempt | None) -> None:
        touched: dict[NodeName, None] = {}
        was = _holdings(old, before)
        now = _holdings(new, after)
        for task, placement in was.items():
            if task not in now:
                self._drop(task, placement)
                touched[placement.node] = None
        for task, placement in now.items():
            if task not in was:
                self._hold(task, placement)
                touched[placement.node] = None
        self._follow_port(before, new, after)
        for node in touched:
            self._refresh(node)
        if touched:
            self._follow_usage_ledger(old, new)

    def _follow_usage_ledger(self, old: Job | None, new: Job | None) -> None:
        """A job's tenant and class never change."""
        job = new or old
        before, after = held(old), held(new)
        if job is not None and before != after:
            more = after if before == NOTHING else after.minus(before)
            self.usage_ledger.charge(job.spec.tenant, job.spec.job_class, more)

    def _hold(self, task: TaskId, placement: TaskPlacement) -> None:
        self.held.setdefault(placement.node, {})[task] = placement
        self.on_node.setdefault(placement.node, {})[task[0]] = None

    def _drop(self, task: TaskId, placement: TaskPlacement) -> None:
        held = self.held[placement.node]
        del held[task]
        if not any(other[0] == task[0] for other in held):
            del self.on_node[placement.node][task[0]]
        if not held:
            del self.held[placement.node]
            del self.on_node[placement.node]

    def _follow_port(self, before: Attempt | None, new: Job | None, after: Attempt | None) -> None:
        was = (before.master_addr, before.master_port) if before and before.master_port else None
        now = (after.master_addr, after.master_port) if after and after.master_port else None
        if was == now:
            return
        if was:
            ports = self.ports[was[0]]
            del ports[was[1]]
            if not ports:
                del self.ports[was[0]]
        if now and new:
            ports = self.ports.setdefault(now[0], {})
            assert now[1] not in ports, f"port {now} of job {new.id} is held by job {ports[now[1]]}"
            ports[now[1]] = new.id

    # -- nodes ---------------------------------------------------------------------------------------------------

    def node_changed(self, old: Node | None, new: Node) -> None:
        """Follow one node record being made or replaced; `nodes` already holds the new one."""
        if old is None or old.inventory is not new.inventory or old.forgotten is not new.forgotten:
            for gpu in old.inventory.gpus if old else ():
                if self.gpu_owner.get(gpu.uuid) == new.name:
                    del self.gpu_owner[gpu.uuid]
            if not new.forgotten:
                for gpu in new.inventory.gpus:
                    self.gpu_owner[gpu.uuid] = new.name
        if new.pause is not None:
            self.paused[new.name] = new.pause.until
        else:
            self.paused.pop(new.name, None)
        self.node_classes.node_changed(old, new)
        before, after = _capacity(old), _capacity(new)
        if before != after:
            self.capacity = self.capacity.plus(after).minus(before)
        self._refresh(new.name)

    def node_dropped(self, name: NodeName) -> None:
        """Follow one forgotten node whose record is gone: it was in nothing else."""
        self.node_classes.node_dropped(name)

    def _refresh(self, name: NodeName) -> None:
        node = self._nodes.get(name)
        slot = self._slot.pop(name, None)
        if slot:
            had = self.free[name]
            self.free_milli -= had.gpu_milli
            if name in self.returning:
                del self.returning[name]
            else:
                self._leave_slot(name, slot)
                for rest in had.shared:
                    entry = _shared_rest(name, rest)
                    del self.shared[bisect_left(self.shared, entry)]
        if node is None or not node.schedulable:
            self.free.pop(name, None)
            return
        free = free_on(node, self.held.get(name, {}).values())
        self.free[name] = free
        slot = (kinds_of(node), len(free.gpus))
        self._slot[name] = slot
        self.free_milli += free.gpu_milli
        if node.returned:
            for rest in free.shared:
                insort(self.shared, _shared_rest(name, rest))
            insort(self.by_free.setdefault(slot[0], {}).setdefault(slot[1], []), name)
        else:
            self.returning[name] = None

    def _leave_slot(self, name: NodeName, slot: tuple[GpuKinds, int]) -> None:
        kinds, count = slot
        names = self.by_free[kinds][count]
        del names[bisect_left(names, name)]
        if not names:
            del self.by_free[kinds][count]
            if not self.by_free[kinds]:
                del self.by_free[kinds]


def _capacity(node: Node | None) -> Amount:
    """What a node in service has; nothing for any other."""
    if node is None or not node.schedulable:
        return NOTHING
    has = node.inventory
    return Amount(len(has.gpus) * WHOLE_GPU, sum([gpu.memory_mb for gpu in has.gpus]), has.cpus, has.memory_mb)


def _shared_rest(node: NodeName, rest: SharedGpu) -> SharedRest:
    return SharedRest(rest.left, node, rest.gpu.index)


def rebuild(
    jobs: Mapping[JobId, Job],
    nodes: Mapping[NodeName, Node],
    tenants: Mapping[TenantName, Tenant],
    *,
    ended_max: int,
    ended_bytes_max: int = 0,
    known: Mapping[JobId, Job] | None = None,
) -> Indexes:
    """Build the indexes from nothing. `known` are all jobs that one of `jobs` may wait for, when there are more."""
    made = Indexes(nodes, jobs if known is None else known, tenants)
    made.ended_max, made.ended_bytes_max = ended_max, ended_bytes_max
    for tenant in tenants.values():
        made.usage_ledger.tenant_changed(tenant.name, tenant)
    for node in nodes.values():
        made.node_changed(None, node)
    for job in jobs.values():
        made.job_changed(None, job)
    return made


def _is_open(job: Job | None) -> bool | None:
    """Whether a job hasn't ended; None = there is none."""
    return None if job is None else not job.is_final


def _live(job: Job | None) -> Attempt | None:
    return job.live_attempt if job else None


def _delay(job: Job | None) -> Instant | None:
    if job is None or job.state is not JobState.PENDING or job.not_before == NEVER:
        return None
    return job.not_before


def _limit(job: Job | None) -> Instant | None:
    if job is None or job.state not in _LIMITED:
        return None
    attempt = job.attempts[-1]
    began = attempt.began_at
    return None if began == NEVER else later(began, job.spec.time_limit_ms - attempt.clock_moved_ms)


def _signal(job: Job | None) -> Instant | None:
    limit = _limit(job)
    if job is None or limit is None or job.spec.warn is None:
        return None
    told = job.attempts[-1].signalled_limit_ms == job.spec.time_limit_ms
    return None if told else later(limit, -job.spec.warn.lead_ms)


def end_of(job: Job | None) -> Instant | None:
    """Under which time a final job waits to be forgotten."""
    if job is None or not job.is_final:
        return None
    # An array is forgotten after its members, which are found through it.
    return job.ended_at if job.members is None else later(job.ended_at, 1)


def _state(job: Job | None) -> JobState | None:
    return job.state if job else None


def waiting_count(job: Job | None) -> int:
    """Return how many jobs and members wait under this record: an array counts as its members that wait."""
    if job is None or job.is_final:
        return 0
    if job.members is not None:
        return job.members.waiting
    return int(job.state in (JobState.PENDING, JobState.HELD))


def _holdings(job: Job | None, attempt: Attempt | None) -> dict[TaskId, TaskPlacement]:
    if job is None or attempt is None:
        return {}
    return {(job.id, attempt.number, task.placement.rank): task.placement for task in attempt.open_tasks}
