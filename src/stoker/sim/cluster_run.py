"""Run of a trace on a whole cluster: the brain's own state, commands, `propose` and `settle`, in simulated time.

Rules: C1  nodes and jobs come in by the commands that live ones come in by; a job that is refused ends the run with
           the line that it is from
       C2  a job with more GPUs than a node has, of a trace that doesn't know tasks, becomes the fewest equal tasks
           that fit on nodes
       C3  there are no class pools; each tenant that the trace names is made, without a limit
       C4  a node fails after exponentially distributed times, by itself: nothing is heard of it, its tasks are gone,
           and it is back, under another boot id, after its repair. What becomes of its jobs is the brain's to say: they
           wait for the node, or for the end of their lease, and are requeued
       C5  what is started anew begins from the start
       C6  a job's time limit is its duration, rounded up to a full hour: what a person who knows the job would ask for
"""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from stoker.brain.domain.demand import Demand
from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.gpu import Gpu
from stoker.brain.domain.ids import (
    CONTROL,
    DEFAULT_TENANT,
    Epoch,
    GpuUuid,
    JobId,
    NodeName,
    Principal,
    TenantName,
)
from stoker.brain.domain.job import JobSpec
from stoker.brain.domain.lifecycle import JobState, Outcome
from stoker.brain.domain.node import CPUS_PER_GPU, MEMORY_MB_PER_GPU, Inventory
from stoker.brain.domain.policy import Policy, surely_over_ms
from stoker.brain.domain.quota import Pools
from stoker.brain.domain.tenant import Tenant
from stoker.brain.domain.units import DAY_MS, HOUR_MS, SECOND_MS, Instant, counted
from stoker.brain.state import commands
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.events.job import JobFinished
from stoker.sim.draws import exponentials
from stoker.sim.outcome import Progress, SimOutcome
from stoker.sim.trace import Trace, TraceJob
from stoker.sim.virtual_cluster import ORDERS, REPORTS, Run, VirtualCluster

BEGINS: Final = Instant(1_000 * HOUR_MS)
"""The wall clock at a trace's first submission: any but 0, which means never."""
GPU_MEMORY_MB: Final = 80 * 1024
PRIORITY: Final = 500
"""Of a job whose trace has none: `normal`."""
_PERSON: Final = Principal("user:trace")
_LIMIT_MS: Final = 3_650 * DAY_MS
_UNREACHABLE_MS: Final = 15 * SECOND_MS
"""As `agents.unreachable_after_s` has it by default."""
_LOST: Final = (Outcome.LOST, Outcome.NODE_FAILED)
PREEMPTED: Final = "preempted"
"""Outcome of an attempt that had to give way."""
_ENDED_JOBS_MAX: Final = 1_000
"""Nobody asks for them; more would only take memory."""


class NodeSet(msgspec.Struct, frozen=True):
    """So many equal nodes."""

    nodes: int
    gpus_per_node: int

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node


class NodeFailures(msgspec.Struct, frozen=True, kw_only=True):
    """Failures of nodes, each by itself (C4)."""

    mtbf_ms: int
    """Mean time from a repair to the next failure of one node."""
    mttr_ms: int
    """Mean time to repair."""
    lease_ms: int = 0
    """Attempt lease; 0 = none, so that jobs of a failed node wait for its repair."""


class ClusterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a run on nodes, beside its trace and its nodes."""

    policy: Policy = Policy()
    seed: int = 0
    """Of the engine's decisions, and of the failures."""
    failures: NodeFailures | None = None


def run_on_nodes(trace: Trace, nodes: NodeSet, settings: ClusterSettings, progress: Progress) -> SimOutcome:
    """Run all jobs of a trace on a cluster that the engine decides for.

    Raises: StokerError `bad_trace` for a job that fits on no node, or what a command was refused with (C1).
    """
    specs = [_spec(trace, job, nodes) for job in trace.jobs]
    return _ClusterRun(trace, specs, nodes, settings).run(progress)


_BESIDE_GPUS: Final = {"cpus": "CPUs", "memory_mb": "MiB memory"}


def _spec(trace: Trace, job: TraceJob, nodes: NodeSet) -> JobSpec:
    tasks, gpus = job.tasks, job.gpus
    if tasks == 1 and gpus > nodes.gpus_per_node and not job.knows_tasks:
        tasks = next(each for each in range(2, gpus + 1) if gpus % each == 0 and gpus // each <= nodes.gpus_per_node)
        gpus //= tasks
    cpus, memory_mb = nodes.gpus_per_node * CPUS_PER_GPU, nodes.gpus_per_node * MEMORY_MB_PER_GPU
    # Told before the run: its last job may be years and minutes away.
    fitting = {"gpus": nodes.gpus_per_node // gpus}
    fitting |= {"cpus": cpus // job.cpus} if job.cpus else {}
    fitting |= {"memory_mb": memory_mb // job.memory_mb} if job.memory_mb else {}
    field = min(fitting, key=lambda each: fitting[each])
    if tasks > fitting[field] * nodes.nodes:
        asked = counted(gpus, "GPU") if field == "gpus" else f"{getattr(job, field)} {_BESIDE_GPUS[field]}"
        on = counted(nodes.nodes, "node")
        has = f"{counted(nodes.gpus_per_node, 'GPU')}, {cpus} CPUs and {memory_mb} MiB memory"
        message = f"job {job.id}: {counted(tasks, 'task')} of {asked} never fit on {on} with {has} each"
        raise trace.fault(job, field, message, "name more or larger nodes with --nodes")
    return JobSpec(
        name=job.id,
        demand=Demand(gpu_count=gpus, tasks=tasks, cpus=job.cpus, memory_mb=job.memory_mb),
        command=("true",),
        priority=PRIORITY if job.priority is None else job.priority,
        time_limit_ms=(job.duration_ms // HOUR_MS + 1) * HOUR_MS,
        tenant=TenantName(job.tenant) if job.tenant else DEFAULT_TENANT,
    )


class _ClusterRun:
    """Trace, cluster, and what became of each job so far."""

    def __init__(self, trace: Trace, specs: Sequence[JobSpec], nodes: NodeSet, settings: ClusterSettings) -> None:
        self._trace = trace
        self._jobs = jobs = trace.jobs
        self._specs = specs
        self._settings = settings
        self._number: dict[JobId, int] = {}
        """The place in the trace of each job that was submitted."""
        self._outcome = SimOutcome(ended_ms=[0] * len(jobs), held_ms=[0] * len(jobs), preemptions=[0] * len(jobs))
        self._ended = self._failed = self._requeues = self._node_failures = 0
        self._progress: Progress = lambda _: None
        self._cluster = cluster = VirtualCluster(ClusterState(), BEGINS, settings.seed, self._run_of, self._finished)
        self._policy = policy = replace(
            settings.policy,
            time_limit_max_ms=_LIMIT_MS,
            ended_jobs_max=_ENDED_JOBS_MAX,
            tenant_pending_jobs_max=max(settings.policy.tenant_pending_jobs_max, len(jobs)),
            attempt_lease_ms=settings.failures.lease_ms if settings.failures else 0,
        )
        pools = Pools(online=0, batch=0)
        cluster.give(commands.BeginEpoch(by=CONTROL, epoch=Epoch(1), policy=policy, pools=pools))
        for number in range(nodes.nodes):
            name = NodeName(f"node-{number:05}")
            cluster.join(name, _inventory(number, nodes.gpus_per_node, boot=0))
            if settings.failures is not None:
                self._let_fail(name, number, nodes.gpus_per_node, settings.failures)
        for number, spec in enumerate(specs):
            if spec.tenant not in cluster.state.tenants:
                self._make_tenant(number, spec.tenant)

    def run(self, progress: Progress) -> SimOutcome:
        self._progress = progress
        self._follow(0)
        self._cluster.run(lambda: self._ended == len(self._jobs))
        assert self._ended == len(self._jobs), f"{len(self._number)} jobs wait on an idle cluster"
        return replace(self._outcome, failed=self._failed, requeues=self._requeues, node_failures=self._node_failures)

    def _follow(self, number: int) -> None:
        """Submit this job and those that follow in their time."""
        if number < len(self._jobs):
            at = Instant(BEGINS + self._jobs[number].submit_ms)
            self._cluster.at(at, lambda: self._submit(number), ORDERS)

    def _submit(self, number: int) -> None:
        self._follow(number + 1)
        self._number[self._cluster.state.next_job_id] = number
        try:
            self._cluster.give(commands.Submit(by=_PERSON, specs=(self._specs[number],)))
        except StokerError as fault:
            raise self._told(number, fault) from fault

    def _make_tenant(self, number: int, name: TenantName) -> None:
        """Make the tenant that a job is the first to name."""
        try:
            self._cluster.give(commands.PutTenant(by=_PERSON, tenant=Tenant(name=name), create=True))
        except StokerError as fault:
            raise self._told(number, fault, "tenant") from fault

    def _told(self, number: int, fault: StokerError, field: str = "") -> StokerError:
        """Return a refusal as the fault of the line that it is about (C1)."""
        refusal = fault.refusal
        field = field or str(refusal.facts.get("field", ""))
        return self._trace.fault(self._jobs[number], field, f"{refusal.message} ({refusal.code})", refusal.hint)

    def _run_of(self, job: JobId, _: int) -> Run:
        return Run(duration_ms=self._jobs[self._number[job]].duration_ms)

    def _finished(self, event: JobFinished, at: Instant) -> None:
        number = self._number.pop(event.job)
        attempts = self._cluster.state.jobs[event.job].attempts
        self._outcome.ended_ms[number] = at - BEGINS
        self._outcome.held_ms[number] = sum(attempt.ended_at - attempt.placed_at for attempt in attempts)
        self._outcome.preemptions[number] = sum(1 for attempt in attempts if attempt.outcome == PREEMPTED)
        self._requeues += sum(1 for attempt in attempts if attempt.outcome in _LOST) - (event.outcome in _LOST)
        self._failed += event.state is not JobState.SUCCEEDED
        self._ended += 1
        self._progress(1)

    def _let_fail(self, name: NodeName, number: int, gpus: int, failures: NodeFailures) -> None:
        """Let a node fail and be repaired again and again (C4)."""
        cluster, seed = self._cluster, self._settings.seed
        lives = exponentials(failures.mtbf_ms, seed, "mtbf", number)
        repairs = exponentials(failures.mttr_ms, seed, "mttr", number)
        boots = 0

        def fail() -> None:
            self._node_failures += 1
            failed_at, back_at = cluster.now, Instant(cluster.now + next(repairs))
            cluster.silence(name, dies=True)
            for after_ms, step in _steps_of_silence(failures, name):
                if failed_at + after_ms < back_at:
                    cluster.at(Instant(failed_at + after_ms), lambda step=step: cluster.give(step), REPORTS)  # type: ignore[misc]  # its own step
            cluster.at(back_at, come_back, REPORTS)

        def come_back() -> None:
            nonlocal boots
            boots += 1
            cluster.join(name, _inventory(number, gpus, boot=boots))
            cluster.at(Instant(cluster.now + next(lives)), fail, REPORTS)

        cluster.at(Instant(BEGINS + next(lives)), fail, REPORTS)


def _steps_of_silence(failures: NodeFailures, name: NodeName) -> Iterator[tuple[int, commands.Command]]:
    """Yield what the live control plane does about a silent node, and after how many milliseconds."""
    yield _UNREACHABLE_MS, commands.NodeSilent(by=CONTROL, node=name, silent_ms=_UNREACHABLE_MS)
    if failures.lease_ms:
        over_ms = surely_over_ms(failures.lease_ms)
        yield max(over_ms, _UNREACHABLE_MS), commands.LoseSilent(by=CONTROL, node=name, silent_ms=over_ms)


def _inventory(number: int, gpus: int, *, boot: int) -> Inventory:
    return Inventory(
        boot_id=f"simulated-{boot}",
        address=f"node-{number:05}",
        gpus=tuple(
            Gpu(uuid=GpuUuid(f"GPU-{number}-{at}"), index=at, model="simulated", memory_mb=GPU_MEMORY_MB)
            for at in range(gpus)
        ),
        cpus=gpus * CPUS_PER_GPU,
        memory_mb=gpus * MEMORY_MB_PER_GPU,
        simulated=True,
        keeps_leases=True,
    )
