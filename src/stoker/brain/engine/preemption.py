"""Choice of the running jobs that give way to a waiting one: reclaim of what was borrowed, and preemption by priority.

Rules: P1  a job that fits within the guarantee of its tenant, of a tenant above, or of its class takes back what jobs
           of other tenants, or of the other class, hold beyond theirs, lowest priority first (reclaim); else it takes
           from preemptible jobs of strictly lower base priority (preemption). Who is spared is said by
           `domain.preemption`
       P2  nobody loses what it is guaranteed: each tenant of a victim, but for those that are above the waiting job
           too, and its class, if it is the other one, keep as much as their guarantees
       P3  victims are whole gangs, and none of them could be left out; on one node they are the fewest that do, and of
           as few those that lose least: GPU time since the last checkpoint
       P4  nobody gives way to a job that wouldn't start then, nor to one for which others are giving way already, nor
           for what comes free anyway since jobs are ending there, unless they have outstayed their grace
       P5  a job that asks for no GPU, or for a share of one, takes nothing back, and of a shared GPU nothing is taken
Limits: a pass looks at WAITING_MAX waiting jobs, each on the NODES_MAX nodes that lack the fewest GPUs, each with the
        HOLDERS_MAX holders that lose least, and at SETS_MAX sets of these. About 2 us per running
        job that may give way, for each job of those.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from heapq import nsmallest
from itertools import accumulate, chain, combinations, islice
from typing import Final, NamedTuple

from stoker.brain.domain.demand import Demand, JobClass, Shape
from stoker.brain.domain.fit import suits
from stoker.brain.domain.gpu import WHOLE_GPU, Gpu
from stoker.brain.domain.ids import GpuUuid, JobId, NodeName, TenantName
from stoker.brain.domain.job import Job, StopCause
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.domain.plan import Victim
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.preemption import spared_because
from stoker.brain.domain.quota import Amount, held, needs
from stoker.brain.domain.tenant import path_of
from stoker.brain.domain.units import NEVER, Instant
from stoker.brain.engine.draft import Draft
from stoker.brain.engine.quota_order import OwedTo, QuotaOrder, UsageDraft
from stoker.brain.engine.reservation import NodeAmount, free_for
from stoker.brain.state.view import RunningJob, View

WAITING_MAX: Final = 8
"""Waiting jobs for which a pass looks for victims."""
NODES_MAX: Final = 64
HOLDERS_MAX: Final = 12
SETS_MAX: Final = 256
"""Sets of so many holders of one node that are compared, those that lose least first."""
TRIES_MAX: Final = 16
"""Sets of which it is tried out whether the waiting job fits then."""

Fits = Callable[[], bool]
"""Whether the waiting job fits into what is free in the draft."""


class _PossibleVictim(NamedTuple):
    """A running job that may give way."""

    running: RunningJob
    lost: int
    """Milliseconds of work since its last checkpoint, times the thousandths of GPUs that it holds."""

    @property
    def job(self) -> JobId:
        return self.running.job

    @property
    def milli(self) -> int:
        """Thousandths of GPUs that it holds."""
        return _milli_of(self.running)


class VictimSearch:
    """The running jobs of one pass, and who of them gives way to whom."""

    def __init__(self, draft: Draft, view: View, policy: Policy, now: Instant, order: QuotaOrder) -> None:
        self._draft, self._view, self._policy, self._now, self._order = draft, view, policy, now, order
        self._used = order.used.copy()
        """Use once all that is ending has ended, and with what this pass and earlier ones promised."""
        self._expected = order.used.copy()
        """The same, with those who need nobody's place for what comes free anyway: nothing is kept for them."""
        live = view.live()
        self._running = [job for job in live if job.state is not JobState.STOPPING]
        self._chosen: dict[JobId, _PossibleVictim] = {}
        self._gpus: dict[NodeName, dict[GpuUuid, Gpu]] = {}
        self._ending: list[RunningJob] = []
        """Those that will be gone in time whatever is decided here."""
        for job in live:
            if job.state is JobState.STOPPING:
                stopping = view.running(job, now)
                self._discharge(stopping)
                if stopping.ends_by > now:
                    self._ending.append(stopping)

    def promise(self, shape: Shape) -> None:
        """Count a job that gets what others give up."""
        for used in (self._used, self._expected):
            _charge(used, shape, needs(shape.demand), 1)

    def expect(self, shape: Shape, jobs: int = 1) -> None:
        """Count a job that will start on what comes free anyway."""
        _charge(self._expected, shape, needs(shape.demand), jobs)

    def breaks_limit(self, shape: Shape) -> bool:
        """Return whether one more job would go beyond a limit, once those who were promised places have started."""
        return self._order.breaks_limit(shape, self._used)

    def victims(self, waiting: Job, fits: Fits) -> tuple[StopCause, tuple[Victim, ...]] | None:
        """Return why and who is to give way to a job that doesn't fit; None = nobody may, or it wouldn't help (P4).

        What they hold is free in the draft afterwards.
        """
        for cause in (StopCause.RECLAIMED, StopCause.PREEMPTED):
            holders = self._holders(waiting, cause)
            chosen = self._chosen_of(waiting, holders, cause, fits) if holders else None
            if chosen:
                self._chosen.update((each.job, each) for each in chosen)
                for each in chosen:
                    self._free(each)
                    self._discharge(each.running)
                return cause, tuple(sorted(Victim(each.job, self._attempt(each.job)) for each in chosen))
        return None

    def free_ending(self, taken: Collection[NodeName]) -> None:
        """Free in the draft what comes free anyway, but on those nodes, where it is somebody else's."""
        for each in self._ending:
            for task in each.tasks:
                if task.node not in taken:
                    self._draft.put_back(task)

    def free_chosen(self) -> None:
        """Free in the draft what those hold who were chosen."""
        for each in self._chosen.values():
            self._free(each)

    def _attempt(self, job: JobId) -> int:
        return self._view.job(job).newest_attempt

    # -- who may -----------------------------------------------------------------------------------------------------

    def _holders(self, waiting: Job, cause: StopCause) -> list[_PossibleVictim]:
        """Those that may give way, the one that loses least first; in a reclaim the lowest priority first."""
        priority, policy, shape = waiting.spec.priority, self._policy, waiting.spec.shape
        owed_to = self._order.owed_to(shape, self._expected) if cause is StopCause.RECLAIMED else None
        if owed_to is not None and not any(owed_to):
            return []
        if owed_to is None and not self._view.preemptible:
            return []
        found = []
        borrowing: dict[tuple[TenantName, JobClass], bool] = {}
        for job in self._running:
            if job.id in self._chosen:
                continue
            if owed_to is not None:
                owner = job.spec.tenant, job.spec.job_class
                borrows = borrowing.get(owner)
                if borrows is None:
                    borrows = borrowing[owner] = self._borrow(*owner, owed_to)
                if not borrows or not job.spec.demand.gpu_count:
                    continue
            if spared_because(job, cause, priority, policy) or not self._has_run(job):
                continue
            running = self._view.running(job, self._now)
            holder = _PossibleVictim(running, self._lost(job, running))
            if self._may_lose(waiting, [holder]):
                found.append(holder)
        return sorted(found, key=lambda each: _rank(each, cause))

    def _borrow(self, tenant: TenantName, job_class: JobClass, owed_to: OwedTo) -> bool:
        """Whether these jobs are none of the tenant, or not of the class, that takes back (P1)."""
        if owed_to.job_class not in (None, job_class):
            return True
        path = path_of(self._view.tenants, tenant)
        return owed_to.tenant is not None and all(each.name != owed_to.tenant for each in path)

    def _has_run(self, job: Job) -> bool:
        attempt = job.live_attempt
        began = attempt.began_at if attempt else NEVER
        return not self._policy.preempt_min_run_ms or (
            began != NEVER and self._now - began >= self._policy.preempt_min_run_ms
        )

    def _lost(self, job: Job, running: RunningJob) -> int:
        attempt = job.live_attempt
        began = attempt.began_at if attempt else NEVER
        ran_ms = max(0, self._now - began) if began != NEVER else 0
        since_ms = ran_ms % job.spec.checkpoint_ms if job.spec.checkpoint_ms else ran_ms
        return since_ms * _milli_of(running)

    def _may_lose(self, waiting: Job, victims: Sequence[_PossibleVictim]) -> bool:
        """Whether all victims together leave everybody what he is guaranteed (P2)."""
        shape = waiting.spec.shape
        shared = {each.name for each in path_of(self._view.tenants, shape.tenant)}
        freed: dict[TenantName, int] = {}
        other_class = 0
        for each in victims:
            other_class += each.milli if each.running.shape.job_class is not shape.job_class else 0
            for tenant in path_of(self._view.tenants, each.running.shape.tenant):
                freed[tenant.name] = freed.get(tenant.name, 0) + each.milli
        for name, milli in freed.items():
            guaranteed = self._view.tenants[name].quota.guaranteed * WHOLE_GPU
            if guaranteed and name not in shared and self._used.by_tenant[name][0] - milli < guaranteed:
                return False
        if not other_class:
            return True
        other = next(each.running.shape for each in victims if each.running.shape.job_class is not shape.job_class)
        return self._used.account(other).pool[0] - other_class >= self._order.guaranteed_to(other.job_class)

    # -- who does ----------------------------------------------------------------------------------------------------

    def _chosen_of(
        self, waiting: Job, holders: Sequence[_PossibleVictim], cause: StopCause, fits: Fits
    ) -> list[_PossibleVictim] | None:
        demand = waiting.spec.demand
        on_node: dict[NodeName, list[_PossibleVictim]] = {}
        for each in holders:
            for node in dict.fromkeys(task.node for task in each.running.tasks):
                if node in self._draft.free:
                    on_node.setdefault(node, []).append(each)
        nodes = self._promising(on_node, demand)
        tries = self._on_one_node(waiting, on_node, nodes, cause) if demand.tasks == 1 else iter(())
        for chosen in chain(islice(tries, TRIES_MAX), [self._on_many_nodes(waiting, on_node, nodes)]):
            if chosen and self._help(chosen, fits):
                return self._needed(chosen, cause, fits)
        return None

    def _promising(self, on_node: dict[NodeName, list[_PossibleVictim]], demand: Demand) -> list[NodeName]:
        """The nodes that would have place for a task, those first that lack the fewest GPUs."""
        lacking = []
        for name, holders in on_node.items():
            free = free_for(self._draft, name, demand)
            if free.plus(*[self._gain(each, name, demand) for each in holders]).tasks(demand):
                lacking.append((demand.gpu_count - free.gpus, name))
        return [name for _, name in nsmallest(NODES_MAX, lacking)]

    def _on_one_node(
        self, waiting: Job, on_node: dict[NodeName, list[_PossibleVictim]], nodes: Sequence[NodeName], cause: StopCause
    ) -> Iterator[list[_PossibleVictim]]:
        """Sets of the fewest holders of a node that make place for the one task, the best first (P3)."""
        demand = waiting.spec.demand
        found: list[tuple[tuple[int, ...], NodeName, list[_PossibleVictim]]] = []
        for name in nodes:
            free, holders = free_for(self._draft, name, demand), on_node[name][:HOLDERS_MAX]
            gains = {each.job: self._gain(each, name, demand) for each in holders}
            most = accumulate(sorted([gain.gpus for gain in gains.values()], reverse=True), initial=free.gpus)
            least = sum(1 for gpus in most if gpus < demand.gpu_count)
            for count in range(max(1, least), len(holders) + 1):
                sets = [
                    list(some)
                    for some in islice(combinations(holders, count), SETS_MAX)
                    if free.plus(*[gains[each.job] for each in some]).tasks(demand) and self._may_lose(waiting, some)
                ]
                if sets:
                    found.extend((_weight(some, cause), name, some) for some in sets)
                    break
        for _, _, some in sorted(found, key=lambda each: each[:2]):
            yield some

    def _on_many_nodes(
        self, waiting: Job, on_node: dict[NodeName, list[_PossibleVictim]], nodes: Sequence[NodeName]
    ) -> list[_PossibleVictim]:
        """Holders whose ends make place for the whole gang, where they make most of it. Empty = there are none."""
        demand = waiting.spec.demand
        chosen: dict[JobId, _PossibleVictim] = {}
        found = sum(
            free_for(self._draft, name, demand).tasks(demand) for name in self._draft.free if name not in on_node
        )
        largest_first = {name: self._largest_first(on_node[name], name, demand) for name in nodes}
        for name in sorted(nodes, key=lambda name: (self._count_for_one(largest_first[name], name, demand), name)):
            if found >= demand.tasks:
                break
            free = free_for(self._draft, name, demand)
            for each in [None, *largest_first[name]]:
                if each is not None and each.job not in chosen and self._may_lose(waiting, [*chosen.values(), each]):
                    chosen[each.job] = each
                gains = [self._gain(other, name, demand) for other in on_node[name] if other.job in chosen]
                tasks = free.plus(*gains).tasks(demand)
                if found + tasks >= demand.tasks:
                    break
            found += tasks
        return list(chosen.values()) if found >= demand.tasks else []

    def _largest_first(
        self, holders: Sequence[_PossibleVictim], node: NodeName, demand: Demand
    ) -> Sequence[_PossibleVictim]:
        """Those first of whom the fewest make place; among equals the order stays."""
        return sorted(holders, key=lambda each: -self._gain(each, node, demand).gpus)

    def _count_for_one(self, holders: Sequence[_PossibleVictim], node: NodeName, demand: Demand) -> int:
        """How many of them, from the first, make place for one task."""
        free = free_for(self._draft, node, demand)
        for count, each in enumerate(holders):
            if free.tasks(demand):
                return count
            free = free.plus(self._gain(each, node, demand))
        return len(holders)

    def _help(self, chosen: Sequence[_PossibleVictim], fits: Fits) -> bool:
        """Whether the waiting job fits once these are gone. The draft is as before."""
        mark = self._draft.checkpoint()
        for each in chosen:
            self._free(each)
        found = fits()
        self._draft.rollback(mark)
        return found

    def _needed(self, chosen: list[_PossibleVictim], cause: StopCause, fits: Fits) -> list[_PossibleVictim]:
        """Those without whom it wouldn't fit: who has most to lose is let off first (P3)."""
        for each in sorted(chosen, key=lambda each: _rank(each, cause), reverse=True):
            others = [other for other in chosen if other.job != each.job]
            if others and self._help(others, fits):
                chosen = others
        return chosen

    def _free(self, holder: _PossibleVictim) -> None:
        for task in holder.running.tasks:
            self._draft.put_back(task)

    def _gain(self, holder: _PossibleVictim, node: NodeName, demand: Demand) -> NodeAmount:
        """What the end of a job frees on a node."""
        known = self._gpus.get(node)
        if known is None:
            known = self._gpus[node] = self._view.nodes[node].gpus_by_uuid
        here = [task for task in holder.running.tasks if task.node == node]
        gpus = sum(
            uuid in known and suits(known[uuid], demand)
            for task in here
            if task.gpu_share == WHOLE_GPU
            for uuid in task.gpus
        )
        return NodeAmount(gpus, sum(task.cpus for task in here), sum(task.memory_mb for task in here))

    def _discharge(self, ending: RunningJob) -> None:
        for used in (self._used, self._expected):
            _charge(used, ending.shape, held(self._view.job(ending.job)), -1)


def _charge(used: UsageDraft, shape: Shape, amount: Amount, times: int) -> None:
    for row in used.account(shape).charged:
        for at, each in enumerate(amount):
            row[at] += times * each


def _milli_of(running: RunningJob) -> int:
    return sum([task.gpu_milli for task in running.tasks])


def _rank(holder: _PossibleVictim, cause: StopCause) -> tuple[int, int, JobId]:
    """Who gives way first."""
    priority = holder.running.priority if cause is StopCause.RECLAIMED else 0
    return priority, holder.lost, holder.job


def _weight(holders: Sequence[_PossibleVictim], cause: StopCause) -> tuple[int, ...]:
    """The lower, the rather they give way: in a reclaim the lowest priority, then fewest, then least lost."""
    highest = max(each.running.priority for each in holders) if cause is StopCause.RECLAIMED else 0
    return highest, len(holders), sum(each.lost for each in holders)
