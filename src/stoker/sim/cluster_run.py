"""Run of a trace on a whole cluster: the brain's own state, commands, `propose` and `settle`, in simulated time.

Rules: C1  nodes and jobs come in by the commands that live ones come in by; a job that is refused ends the run with
           the line that it is from
       C2  at each instant first ends are reported, then what is submitted comes in, then deadlines are run, then passes
           are made until one has nothing more to place
       C3  a job with more GPUs than a node has, of a trace that doesn't know tasks, becomes the fewest equal tasks
           that fit on nodes
       C4  there are no class pools; each tenant that the trace names is made, without a limit
Limits: a task starts in the instant in which it is placed and runs exactly as long as the trace says.
"""

from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Final

import msgspec

from stoker.brain import cycle
from stoker.brain.domain.demand import Demand
from stoker.brain.domain.errors import Refusal, StokerError
from stoker.brain.domain.gpu import Gpu
from stoker.brain.domain.ids import (
    CONTROL,
    DEFAULT_TENANT,
    Epoch,
    GpuUuid,
    JobId,
    NodeName,
    Position,
    Principal,
    TenantName,
    node_principal,
)
from stoker.brain.domain.instruction import TaskKey
from stoker.brain.domain.job import EndCause, JobSpec, TaskEnd
from stoker.brain.domain.node import CPUS_PER_GPU, MEMORY_MB_PER_GPU, Inventory
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.quota import Pools
from stoker.brain.domain.report import Registration, Started, TaskFinished, TaskInventory
from stoker.brain.domain.tenant import Tenant
from stoker.brain.domain.units import DAY_MS, HOUR_MS, Instant
from stoker.brain.state import commands
from stoker.brain.state.admit.dispatch import admit
from stoker.brain.state.apply.dispatch import apply
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.codec import Fact
from stoker.brain.state.events.job import JobPlaced
from stoker.brain.state.events.union import Event
from stoker.brain.state.state_view import StateView
from stoker.sim.outcome import Progress, SimOutcome
from stoker.sim.trace import Trace, TraceJob

BEGINS: Final = Instant(1_000 * HOUR_MS)
"""The wall clock at a trace's first submission: any but 0, which means never."""
GPU_MEMORY_MB: Final = 80 * 1024
PRIORITY: Final = 500
"""Of a job whose trace has none: `normal`."""
_PERSON: Final = Principal("user:trace")
_LIMIT_MS: Final = 3_650 * DAY_MS


class NodeSet(msgspec.Struct, frozen=True):
    """So many equal nodes."""

    nodes: int
    gpus_per_node: int

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node


def run_on_nodes(trace: Trace, nodes: NodeSet, seed: int, progress: Progress) -> SimOutcome:
    """Run all jobs of a trace on a cluster that the engine decides for.

    Raises: StokerError `bad_trace` for a job that fits on no node, or what a command was refused with (C1).
    """
    specs = [_spec(trace, job, nodes) for job in trace.jobs]
    return _ClusterRun(trace, specs, nodes, seed).run(progress)


def _spec(trace: Trace, job: TraceJob, nodes: NodeSet) -> JobSpec:
    tasks, gpus = job.tasks, job.gpus
    if tasks == 1 and gpus > nodes.gpus_per_node:
        tasks = next(each for each in range(2, gpus + 1) if gpus % each == 0 and gpus // each <= nodes.gpus_per_node)
        gpus //= tasks
    per_node = nodes.gpus_per_node // gpus
    if tasks > per_node * nodes.nodes:
        message = f"{tasks} x {gpus} GPUs never fit on {nodes.nodes} nodes with {nodes.gpus_per_node} GPUs each"
        raise trace.fault(job, "gpus", message, "name more or larger nodes with --nodes")
    return JobSpec(
        name=job.id,
        demand=Demand(gpu_count=gpus, tasks=tasks, cpus=job.cpus, memory_mb=job.memory_mb),
        command=("true",),
        priority=PRIORITY if job.priority is None else job.priority,
        time_limit_ms=_LIMIT_MS,
        tenant=TenantName(job.tenant) if job.tenant else DEFAULT_TENANT,
    )


class _ClusterRun:
    """One cluster, its clock, and the ends that are to come."""

    def __init__(self, trace: Trace, specs: Sequence[JobSpec], nodes: NodeSet, seed: int) -> None:
        self._trace = trace
        self._jobs = jobs = trace.jobs
        self._specs = specs
        self._seed = seed
        self._state = ClusterState()
        self._now = BEGINS
        self._uids = (f"{number:032x}" for number in count(1))
        self._number: dict[JobId, int] = {}
        """The place in the trace of each job that hasn't ended."""
        self._ends: list[tuple[int, JobId]] = []
        self._ended = [0] * len(jobs)
        self._held = [0] * len(jobs)
        self._preemptions = [0] * len(jobs)
        policy = Policy(time_limit_max_ms=_LIMIT_MS, ended_jobs_max=1, tenant_pending_jobs_max=1_000_000)
        pools = Pools(online=0, batch=0)
        self._give(commands.BeginEpoch(by=CONTROL, epoch=Epoch(1), policy=policy, pools=pools))
        for number in range(nodes.nodes):
            self._add_node(number, nodes.gpus_per_node)
        for tenant in sorted({spec.tenant for spec in specs} - {DEFAULT_TENANT}):
            self._give(commands.PutTenant(by=_PERSON, tenant=Tenant(name=tenant), create=True))

    def run(self, progress: Progress) -> SimOutcome:
        following = 0
        while following < len(self._jobs) or self._ends:
            coming = [BEGINS + self._jobs[following].submit_ms] if following < len(self._jobs) else []
            self._now = Instant(min([*coming, *(end for end, _ in self._ends[:1])]))
            while self._ends and self._ends[0][0] == self._now:
                self._end(heappop(self._ends)[1])
                progress(1)
            while following < len(self._jobs) and BEGINS + self._jobs[following].submit_ms == self._now:
                self._submit(following)
                following += 1
            self._run_deadlines()
            self._decide()
            assert self._ends or following < len(self._jobs) or not self._number, "jobs wait on an idle cluster"
        return SimOutcome(ended_ms=self._ended, held_ms=self._held, preemptions=self._preemptions)

    def _give(self, command: commands.Command) -> None:
        answer = admit(self._state, command, self._now, self._uids.__next__)
        if isinstance(answer, Refusal):
            raise StokerError(answer)
        self._apply(answer, command.by)

    def _apply(self, events: Sequence[Event], by: Principal) -> None:
        for event in events:
            apply(self._state, Fact(at=self._now, by=by, event=event), Position(self._state.position + 1))

    def _add_node(self, number: int, gpus: int) -> None:
        name = NodeName(f"node-{number:05}")
        inventory = Inventory(
            boot_id="simulated",
            address=name,
            gpus=tuple(
                Gpu(uuid=GpuUuid(f"GPU-{number}-{at}"), index=at, model="simulated", memory_mb=GPU_MEMORY_MB)
                for at in range(gpus)
            ),
            cpus=gpus * CPUS_PER_GPU,
            memory_mb=gpus * MEMORY_MB_PER_GPU,
            simulated=True,
        )
        by = node_principal(name)
        self._give(commands.Register(by=by, registration=Registration(node=name, inventory=inventory)))
        nothing = TaskInventory(boot_id="simulated", tasks=())
        self._give(commands.CompareInventory(by=by, node=name, inventory=nothing))

    def _submit(self, number: int) -> None:
        self._number[self._state.next_job_id] = number
        try:
            self._give(commands.Submit(by=_PERSON, specs=(self._specs[number],)))
        except StokerError as fault:
            refusal = fault.refusal
            raise self._trace.fault(self._jobs[number], refusal.code, refusal.message, refusal.hint) from fault

    def _run_deadlines(self) -> None:
        due = self._state.indexes.next_deadline(self._state.clock_moved_ms)
        if due is not None and due <= self._now:
            self._give(commands.RunDeadlines(by=CONTROL))

    def _decide(self) -> None:
        """Make passes as the live loop does."""
        state, more = self._state, True
        while more:
            position, budget = state.position, state.policy.placements_per_pass_max
            plan = cycle.propose(StateView(state), state.policy, self._now, self._seed, budget)
            placed: list[JobPlaced] = []
            for events in cycle.settle(state, plan, decided_at=position, seed=self._seed):
                self._apply(events, CONTROL)
                placed += [event for event in events if isinstance(event, JobPlaced)]
            assert len(placed) == len(plan.actions), "a plan went stale though nothing happened meanwhile"
            for event in placed:
                self._start(event)
            more = plan.more

    def _start(self, placed: JobPlaced) -> None:
        for rank, task in enumerate(placed.tasks):
            started = Started(key=TaskKey(placed.job, placed.attempt, rank), at=self._now, pid=1)
            self._give(commands.ReportStarted(by=node_principal(task.node), node=task.node, started=started))
        heappush(self._ends, (self._now + self._jobs[self._number[placed.job]].duration_ms, placed.job))

    def _end(self, job: JobId) -> None:
        attempt = self._state.jobs[job].attempts[-1]
        for rank, task in enumerate(attempt.tasks):
            node = task.placement.node
            end = TaskEnd(cause=EndCause.EXITED, at=self._now, exit_code=0)
            finished = TaskFinished(node=node, key=TaskKey(job, attempt.number, rank), end=end)
            self._give(commands.ReportFinished(by=node_principal(node), finished=finished))
        number = self._number.pop(job)
        self._held[number] += self._now - attempt.placed_at
        self._ended[number] = self._now - BEGINS
