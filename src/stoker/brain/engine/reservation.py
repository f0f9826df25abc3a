"""Reservations of the first blocked jobs: the nodes that each waits for, and when it starts at the latest.

Rules: R1  a job for which there is no room gets the earliest time at which it would fit if every job ended as late as
           its limit lets it, and the nodes on which it would: those with most room at that time, then those with most
           free now, then by name
       R2  of what is free there now, what it needs beside what will have come free by then is withdrawn from others;
           so is the rest of a shared GPU that is to come free whole, which new sharers would hold on
       R3  a job that will have ended by then may use it (backfill), and one that takes nothing of it may start anyhow
       R4  a later reservation counts what an earlier one takes as gone for good: how long that job will run is its own
       R5  a job that doesn't fit even once all have ended gets none: it waits for nodes, not for ends
       R6  what comes free for a job because others give way to it (its claim) is kept as a whole, and before all else;
           reservations count on it only once that job has ended
So the first in the queue starts no later than its reservation says, whatever is submitted behind it: what starts
meanwhile is over by then or leaves it alone, and an end that comes earlier only brings it forward.
Alternatives: reservations for all that wait (conservative backfill) cost a walk over the nodes for each of them.
Source: EASY backfill: Lifka, "The ANL/IBM SP Scheduling System", 1995; depth as Slurm's `bf_max_job_test` and Maui's
RESERVATIONDEPTH have it.
Limits: about 2 us per candidate node once in a pass, and 3 us per end that comes before a reservation. On a node with
        GPUs of several models what others wait for there counts as if it were of every model, which only delays.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from heapq import heapify, heappop, heappush
from itertools import islice
from types import MappingProxyType
from typing import NamedTuple

from msgspec.structs import replace

from stoker.brain.domain.allocation import TaskPlacement
from stoker.brain.domain.demand import Demand
from stoker.brain.domain.fit import suitable_gpus, suits, tasks_that_fit
from stoker.brain.domain.gpu import WHOLE_GPU
from stoker.brain.domain.ids import GpuUuid, JobId, NodeName
from stoker.brain.domain.job import JobSpec
from stoker.brain.domain.plan import Reservation
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.units import NEVER, Instant, later
from stoker.brain.engine.candidate_nodes import CandidateNodes
from stoker.brain.engine.draft import Draft
from stoker.brain.state.view import FutureRelease, View


class NodeAmount(NamedTuple):
    """GPUs that suit, CPUs and memory in MiB of one node."""

    gpus: int
    cpus: int
    memory_mb: int

    def tasks(self, demand: Demand) -> int:
        """Return how many tasks fit; nothing fits into less than nothing."""
        return max(0, tasks_that_fit(self.gpus, self.cpus, self.memory_mb, demand))

    def plus(self, *others: "NodeAmount") -> "NodeAmount":
        gpus, cpus, memory_mb = self
        for each in others:
            gpus, cpus, memory_mb = gpus + each.gpus, cpus + each.cpus, memory_mb + each.memory_mb
        return NodeAmount(gpus, cpus, memory_mb)

    def minus(self, other: "NodeAmount") -> "NodeAmount":
        return NodeAmount(self.gpus - other.gpus, self.cpus - other.cpus, self.memory_mb - other.memory_mb)


_NOTHING = NodeAmount(0, 0, 0)


class _Ends(NamedTuple):
    """Ends of jobs on the nodes of one selection."""

    firsts: Sequence[tuple[Instant, NodeName, int]]
    """The first on each node, with 0 for its place among the releases there; a heap, not to be changed."""
    gpus: int
    """All that will come free with any end."""


def _amount_of(placement: TaskPlacement) -> NodeAmount:
    return NodeAmount(len(placement.gpus), placement.cpus, placement.memory_mb)


def _without(placement: TaskPlacement, part: TaskPlacement) -> TaskPlacement:
    """What a placement of whole GPUs holds beside a part of it."""
    return replace(
        placement,
        gpus=tuple(uuid for uuid in placement.gpus if uuid not in part.gpus),
        cpus=placement.cpus - part.cpus,
        memory_mb=placement.memory_mb - part.memory_mb,
    )


def free_for(draft: Draft, node: NodeName, demand: Demand) -> NodeAmount:
    """Return what is free on a node for tasks of a demand."""
    free = draft.free[node]
    return NodeAmount(len(suitable_gpus(free.gpus, demand)), free.cpus, free.memory_mb)


def ends_in_ms(spec: JobSpec, policy: Policy) -> int:
    """Return in how many milliseconds a job that starts now has ended at the latest: its limit, and the grace."""
    return spec.time_limit_ms + policy.stop_grace_ms


class ReservationBook:
    """The reservations of one pass."""

    def __init__(self, draft: Draft, view: View, now: Instant, policy: Policy) -> None:
        self._draft, self._view, self._now, self._policy = draft, view, now, policy
        self.made: list[Reservation] = []
        """In the order of the queue."""
        self.dropped: list[Reservation] = []
        """Those that this pass made and gave up: what was blocked by them comes up again in the next one."""
        self._withdrawn: list[list[TaskPlacement]] = []
        """What is free and kept for each."""
        self._claims: dict[JobId, list[TaskPlacement]] = {}
        """Jobs for whom others give way, and what is still to come free for each."""
        self.kept_anything = False
        """Whether anything that was free was kept for any of them."""
        self.gpus_kept = 0
        """The number of GPUs that were free and kept."""
        self._claimed: dict[NodeName, NodeAmount] = {}
        """Of what will come free, what earlier reservations take (R4)."""
        self._new: list[tuple[JobId, Sequence[TaskPlacement], JobSpec]] = []
        """Jobs that this pass started, and that nobody who reserves has asked about."""
        self._started: dict[NodeName, list[FutureRelease]] = {}
        """What jobs that this pass started will free."""
        self._releases: dict[NodeName, Sequence[FutureRelease]] = {}
        """What all jobs will free, of nodes that were asked about."""
        self._ends: dict[CandidateNodes, _Ends] = {}
        """Of selections that were asked about."""
        self._shared: dict[GpuUuid, None] = {}
        """GPUs of which this pass gave a share."""

    @property
    def is_full(self) -> bool:
        return len(self.made) - len(self._claims) >= self._policy.reservations_max

    def started(self, job: JobId, tasks: Sequence[TaskPlacement], spec: JobSpec) -> None:
        """Note that a job was placed. What was kept for its claim, elsewhere, is free again."""
        if job in self._claims:
            self._drop(job)
            for rest in self._claims.pop(job):  # nor does it take what comes free there, or give it back
                name = rest.node
                self._claimed[name] = self._claimed[name].minus(_amount_of(rest))
                self._started[name] = [each for each in self._started[name] if each.job != job]
                self._releases.pop(name, None)
            self._ends.clear()
        self._new.append((job, tasks, spec))

    def _note_started(self) -> None:
        """Count what this pass placed among what will come free."""
        for job, tasks, spec in self._new:
            ends_by = later(self._now, ends_in_ms(spec, self._policy))
            for task in tasks:
                known = self._view.nodes[task.node].gpus_by_uuid
                # A shared GPU isn't whole again with the end of one task: it counts as held for good (R4).
                gpus = [known[uuid] for uuid in task.gpus] if task.gpu_share == WHOLE_GPU else []
                if task.gpu_share != WHOLE_GPU:
                    self._shared.update(dict.fromkeys(task.gpus))
                self._will_free(task.node, FutureRelease(ends_by, job, gpus, task.cpus, task.memory_mb))
        self._new.clear()

    def _will_free(self, name: NodeName, release: FutureRelease) -> None:
        self._started.setdefault(name, []).append(release)
        self._releases.pop(name, None)
        self._ends.clear()

    def _releases_on(self, name: NodeName) -> Sequence[FutureRelease]:
        """What ends of jobs will free on a node, also of those that this pass placed, the earliest first."""
        found = self._releases.get(name)
        if found is None:
            found, started = self._view.releases(name, self._now), self._started.get(name)
            if self._shared:
                found = [
                    each._replace(gpus=[gpu for gpu in each.gpus if gpu.uuid not in self._shared]) for each in found
                ]
            if started:
                found = sorted([*found, *started], key=lambda each: each[:2])
            self._releases[name] = found
        return found

    def _ends_on(self, candidates: CandidateNodes) -> _Ends:
        """The first end on each candidate node, which is a heap."""
        found = self._ends.get(candidates)
        if found is None:
            free, gpus, firsts = self._draft.free, 0, list[tuple[Instant, NodeName, int]]()
            for name in (name for each in candidates.admitted.classes for name in each.names if name in free):
                releases = self._releases_on(name)
                if releases:
                    firsts.append((releases[0].ends_by, name, 0))
                    gpus += sum([len(each.gpus) for each in releases])
            heapify(firsts)
            found = self._ends[candidates] = _Ends(firsts, gpus)
        return found

    def reserve(self, job: JobId, demand: Demand, candidates: CandidateNodes) -> bool:
        """Make a reservation for a job that doesn't fit. False = no end of other jobs lets it fit (R5)."""
        self._note_started()
        found = self._earliest(candidates, demand) if self._may_ever(candidates, demand) else None
        if found is None:
            return False
        at, room = found
        free = self._draft.free
        chosen = sorted(room, key=lambda name: (-room[name], -len(suitable_gpus(free[name].gpus, demand)), name))
        left, nodes, kept = demand.tasks, list[NodeName](), list[TaskPlacement]()
        for name in chosen:
            tasks = min(room[name], left)
            kept += self._withdraw(name, demand, tasks, at)
            nodes.append(name)
            left -= tasks
            if not left:
                break
        self.made.append(Reservation(job=job, at=at, nodes=tuple(sorted(nodes))))
        self._withdrawn.append(kept)
        return True

    def _may_ever(self, candidates: CandidateNodes, demand: Demand) -> bool:
        """Whether enough GPUs of any kind are free or will come free: a cheap no for jobs that wait for nodes."""
        free = sum(count * nodes for counts in candidates.counts().values() for count, nodes in counts.items())
        claimed = sum([each.gpus for each in self._claimed.values()]) if candidates.admitted.everywhere else 0
        return demand.total_gpus <= free + self._ends_on(candidates).gpus - claimed

    def _earliest(self, candidates: CandidateNodes, demand: Demand) -> tuple[Instant, dict[NodeName, int]] | None:
        """The first time at which all tasks have room, and for how many tasks each node has by then.

        Naive: bring all ends on all nodes into order. But the first few are often enough, so a heap has the next end of
        each node that may let one more task in, and a node is looked at when its first end comes up. Those after which
        its GPUs are too few still are passed over at once. None = not even then, or already now.
        """
        room = self._room_now(candidates, demand)
        left, ends = demand.tasks - sum(room.values()), list(self._ends_on(candidates).firsts)
        any_gpu, per_task = not demand.gpu_memory_mb and not demand.gpu_model, demand.gpu_count
        amounts: dict[NodeName, NodeAmount] = {}
        while ends and left > 0:
            at, name, index = heappop(ends)
            gpus, cpus, memory_mb = amounts.get(name) or self._has(name, demand)
            tasks, gains = room.get(name, 0), list[int]()
            for each in islice(self._releases[name], index, None):
                if tasks == demand.tasks:
                    break
                more = gpus + (len(each.gpus) if any_gpu else sum([suits(gpu, demand) for gpu in each.gpus]))
                if not per_task or more >= per_task * (tasks + 1):
                    if each.ends_by != at:
                        heappush(ends, (each.ends_by, name, index))
                        break
                    fit = NodeAmount(more, cpus + each.cpus, memory_mb + each.memory_mb).tasks(demand)
                    if fit > tasks:
                        gains.append(fit - tasks)
                        tasks = fit
                gpus, cpus, memory_mb = more, cpus + each.cpus, memory_mb + each.memory_mb
                index += 1
            amounts[name] = NodeAmount(gpus, cpus, memory_mb)
            for more in sorted(gains):
                room[name] = room.get(name, 0) + more
                left -= more
                if left <= 0:
                    return at, room
        return None

    def _has(self, name: NodeName, demand: Demand) -> NodeAmount:
        """What a node has now for tasks of a demand, without what earlier reservations take of it (R4)."""
        free, claimed = free_for(self._draft, name, demand), self._claimed.get(name)
        return free if claimed is None else free.minus(claimed)

    def _room_now(self, candidates: CandidateNodes, demand: Demand) -> dict[NodeName, int]:
        """For how many tasks the nodes that have room for any have it now."""
        room: dict[NodeName, int] = {}
        for by_count in candidates.by_free().values():
            for name in (name for count, names in by_count.items() if count >= demand.gpu_count for name in names):
                tasks = self._has(name, demand).tasks(demand)
                if tasks:
                    room[name] = tasks
        return room

    def _timeline(self, name: NodeName, demand: Demand) -> Iterator[tuple[Instant, NodeAmount]]:
        """What a node has for a demand, now and after each end."""
        has = self._has(name, demand)
        yield NEVER, has
        gpus, cpus, memory_mb = has
        any_gpu = not demand.gpu_memory_mb and not demand.gpu_model
        for each in self._releases_on(name):
            gpus += len(each.gpus) if any_gpu else sum([suits(gpu, demand) for gpu in each.gpus])
            cpus, memory_mb = cpus + each.cpus, memory_mb + each.memory_mb
            yield each.ends_by, NodeAmount(gpus, cpus, memory_mb)

    def _withdraw(self, name: NodeName, demand: Demand, tasks: int, at: Instant) -> list[TaskPlacement]:
        """Keep on a node what so many tasks need at that time (R2)."""
        then = _NOTHING
        for when, amount in self._timeline(name, demand):
            if when > at:
                break
            then = amount
        needed = NodeAmount(demand.gpu_count * tasks, demand.cpus * tasks, demand.memory_mb * tasks)
        spare, now = then.minus(needed), free_for(self._draft, name, demand)
        keep = NodeAmount(*(max(0, min(has - left, want)) for has, left, want in zip(now, spare, needed, strict=True)))
        rest = needed.minus(keep)
        self._claimed[name] = self._claimed.get(name, _NOTHING).plus(NodeAmount(*(max(0, each) for each in rest)))
        if keep == _NOTHING:
            return self._keep_rests(name, demand, at)
        gpus = suitable_gpus(self._draft.free[name].gpus, demand)[: keep.gpus]
        uuids = tuple(gpu.uuid for gpu in gpus)
        placement = TaskPlacement(rank=0, node=name, gpus=uuids, cpus=keep.cpus, memory_mb=keep.memory_mb)
        self._draft.take(placement)
        self.kept_anything = True
        self.gpus_kept += keep.gpus
        return [placement, *self._keep_rests(name, demand, at)]

    def _keep_rests(self, name: NodeName, demand: Demand, at: Instant) -> list[TaskPlacement]:
        """Keep the rests of shared GPUs that are to come free whole by then: a new sharer would hold them on (R2)."""
        shared = self._rests(name)
        if not shared:
            return []
        ends = [each for each in self._releases_on(name) if each.ends_by <= at]
        # One that a claim waits for comes free twice: at the end of who holds it, and of who gets it then.
        coming = list(dict.fromkeys(gpu.uuid for each in ends for gpu in each.gpus if suits(gpu, demand)))
        wanted = coming[: self._claimed[name].gpus]
        return [self._keep_rest(name, uuid, shared[uuid]) for uuid in wanted if shared.get(uuid)]

    def _rests(self, name: NodeName) -> dict[GpuUuid, int]:
        """Thousandths left of each shared GPU of a node."""
        return {each.gpu.uuid: each.left for each in self._draft.free[name].shared}

    def _keep_rest(self, name: NodeName, uuid: GpuUuid, left: int) -> TaskPlacement:
        share = TaskPlacement(rank=0, node=name, gpus=(uuid,), cpus=0, memory_mb=0, gpu_share=left)
        self._draft.take(share)
        self.kept_anything = True
        self.gpus_kept += 1
        return share

    def claim(
        self,
        job: JobId,
        tasks: Sequence[TaskPlacement],
        ends_in_ms: int,
        gone_by: Mapping[JobId, Instant] = MappingProxyType({}),
    ) -> None:
        """Keep what is free of the places of a job for which others give way. Nobody passes it there (R6).

        `ends_in_ms` is how long it runs at most, with its grace; `gone_by` are those that are told to give way in this
        pass, and when they are gone at the latest.
        """
        self._drop(job)
        kept = [self._draft.take_free(task) for task in tasks]
        to_come = [_without(task, left) for task, left in zip(tasks, kept, strict=True)]
        for rest in to_come:  # what is still to come is nobody else's either (R4)
            self._claimed[rest.node] = self._claimed.get(rest.node, _NOTHING).plus(_amount_of(rest))
        self.gpus_kept += sum(len(left.gpus) for left in kept)
        self.kept_anything = True
        for task in tasks:  # one that is still shared is whole once its sharers have ended
            shared = self._rests(task.node)
            kept += [self._keep_rest(task.node, uuid, shared[uuid]) for uuid in task.gpus if shared.get(uuid)]
        self._claims[job] = to_come
        nodes = sorted({task.node for task in tasks})
        wanted = {uuid for task in tasks for uuid in task.gpus}
        ends = [
            gone_by.get(release.job, release.ends_by)
            for node in nodes
            for release in self._view.releases(node, self._now)
            if any(gpu.uuid in wanted for gpu in release.gpus)
        ]
        at = max(ends, default=self._now)
        for task in tasks:
            gpus = [gpu for gpu in self._view.nodes[task.node].inventory.gpus if gpu.uuid in task.gpus]
            self._will_free(task.node, FutureRelease(later(at, ends_in_ms), job, gpus, task.cpus, task.memory_mb))
        self.made.append(Reservation(job=job, at=at, nodes=tuple(nodes)))
        self._withdrawn.append(kept)

    def to_come(self, job: JobId) -> Sequence[TaskPlacement]:
        """Return what is still to come free for the claim of a job: its places without what is kept for it."""
        return [rest for rest in self._claims[job] if _amount_of(rest) != _NOTHING]

    def nodes_but_of(self, job: JobId) -> Set[NodeName]:
        """The nodes of reservations of other jobs, claims aside."""
        return {node for each in self.made if each.job != job and each.job not in self._claims for node in each.nodes}

    def _drop(self, job: JobId) -> None:
        """Forget the reservation of a job, if it has one, and free what is kept for it."""
        for at, each in enumerate(self.made):
            if each.job == job:
                self.lend(job)
                self.dropped.append(each)
                del self.made[at], self._withdrawn[at]
                return

    def lend(self, job: JobId) -> None:
        """Free what is kept for a job, until the draft is rolled back."""
        for each, kept in zip(self.made, self._withdrawn, strict=True):
            if each.job == job:
                self._put_back(kept)

    def _put_back(self, kept: Sequence[TaskPlacement]) -> None:
        for placement in reversed(kept):
            self._draft.put_back(placement)

    def lend_from(self, at: Instant) -> None:
        """Free what is kept for reservations at that time or later, claims aside, until the draft is rolled back."""
        for each in self.made:
            if each.at >= at and each.job not in self._claims:
                self.lend(each.job)

    def backfill_times(self) -> list[Instant]:
        """Return the times by which a job must have ended to use what is kept, the latest first."""
        made = zip(self.made, self._withdrawn, strict=True)
        return sorted({each.at for each, kept in made if kept and each.job not in self._claims}, reverse=True)

    def release(self, job: JobId) -> Sequence[NodeName]:
        """Free what is kept for a job, since it is held otherwise, and return the nodes of its reservation.

        Rests of shared GPUs are kept on: only whole ones are held.
        """
        at = next(at for at, each in enumerate(self.made) if each.job == job)
        self._put_back([each for each in self._withdrawn[at] if each.gpu_share == WHOLE_GPU])
        self._withdrawn[at] = [each for each in self._withdrawn[at] if each.gpu_share != WHOLE_GPU]
        return self.made[at].nodes

    def give_back(self, until: Instant = NEVER) -> None:
        """Free what is kept for reservations at that time or later. NEVER = all that is kept."""
        for each, kept in zip(self.made, self._withdrawn, strict=True):
            if until == NEVER or (each.at >= until and each.job not in self._claims):
                self._put_back(kept)
                kept.clear()
