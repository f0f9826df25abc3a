"""Answers of the API to draw and judge in tests: one job, one attempt, one task."""

from msgspec import structs

from stoker.brain.domain.demand import JobClass
from stoker.brain.domain.job import EndCause, Visible
from stoker.brain.domain.lifecycle import JobState, NodeState, Outcome
from stoker.wire.rest.cluster import ClusterView
from stoker.wire.rest.job import AttemptView, JobView, TaskRunView
from stoker.wire.rest.node import FreeView, GpuStatus, GpuView, NodeView
from stoker.wire.rest.why import WhyView


def at(seconds: float) -> str:
    return f"2026-11-28T00:00:{seconds:06.3f}Z"


def task(rank: int = 0, node: str = "demo-1", gpus: tuple[str, ...] = (), end: str | None = None) -> TaskRunView:
    cause = EndCause.EXITED if end else None
    return TaskRunView(
        rank=rank, node=node, gpus=gpus, cpus=1, memory_mb=0, started_at=at(1), ended_at=end, cause=cause
    )


def attempt(
    number: int = 1, outcome: Outcome | None = None, tasks: tuple[TaskRunView, ...] = (), placed: str = at(1)
) -> AttemptView:
    return AttemptView(
        number=number,
        epoch=1,
        outcome=outcome,
        exit_code=None,
        placed_at=placed,
        started_at=placed,
        ended_at=None,
        stopping=None,
        master_addr="127.0.0.1",
        master_port=20_000,
        tasks=list(tasks),
    )


def gpu(index: int = 0, node: str = "node-1", status: GpuStatus = "idle", holder: str | None = None) -> GpuView:
    return GpuView(
        id=f"{node}-gpu-{index}",
        uuid=f"GPU-{node}-{index}",
        node_id=node,
        node=node,
        device_index=index,
        model="H100",
        memory=80,
        memory_mb=80,
        status=status,
        current_task=holder,
        simulated=True,
        updated_at=at(0),
    )


def node(name: str = "node-1", statuses: tuple[GpuStatus, ...] = ("busy", "idle"), **changes: object) -> NodeView:
    plain = NodeView(
        name=name,
        state=NodeState.READY,
        online=True,
        schedulable=True,
        drain=None,
        silent_since=None,
        registered_at=at(0),
        address="127.0.0.1",
        cpus=16,
        memory_mb=131_072,
        free=FreeView(gpus=1, cpus=14, memory_mb=65_536),
        gpus=[gpu(index, name, status) for index, status in enumerate(statuses)],
        jobs=["7"],
        strays=[],
        labels={},
        executors=("process",),
        simulated=True,
        version="0",
        boot_id="b",
    )
    return structs.replace(plain, **changes)


def cluster(**changes: object) -> ClusterView:
    plain = ClusterView(
        total_gpus=4,
        available_gpus=2,
        busy_gpus=2,
        offline_gpus=0,
        total_nodes=2,
        online_nodes=2,
        total_jobs=3,
        pending_jobs=1,
        running_jobs=2,
        jobs={"running": 2, "pending": 1},
        nodes={"ready": 2},
        simulated=True,
        cluster_id="c",
        epoch=1,
        position=1,
        version="0",
        last_pass_age_s=0.1,
    )
    return structs.replace(plain, **changes)


def why(**changes: object) -> WhyView:
    waits = WhyView(
        id="7",
        state=JobState.PENDING,
        code=None,
        message="it waits",
        hint="wait",
        facts={},
        position=1,
        waiting=2,
        similar_ahead=0,
    )
    return structs.replace(waits, **changes)


def job(
    number: int = 1,
    name: str = "train",
    state: JobState = JobState.SUCCEEDED,
    attempts: tuple[AttemptView, ...] = (),
    **changes: object,
) -> JobView:
    plain = JobView(
        id=str(number),
        job_id=str(number),
        uid="u",
        name=name,
        tenant="default",
        tenant_id="default",
        user="",
        submitted_by="user:local",
        state=state,
        reason=None,
        exit_code=0,
        priority=500,
        job_class=JobClass.BATCH,
        gpu_count=1,
        gpu_memory_mb=0,
        gpu_model="",
        cpus=1,
        cpu_cores=1,
        memory_mb=0,
        tasks=1,
        total_gpus=1,
        command=("true",),
        image="",
        env={},
        workdir="",
        time_limit_ms=60_000,
        retries=0,
        requeue=True,
        visible=Visible.UUID,
        retries_used=0,
        requeues_used=0,
        submitted_at=at(0),
        started_at=at(1),
        ended_at=at(2),
        attempts=list(attempts),
    )
    return structs.replace(plain, **changes)
