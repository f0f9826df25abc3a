"""One look at the cluster: jobs, nodes and GPUs, fetched together.

Rules: L1  what runs comes first, the newest on top; then what waits, in about the order in which it will be looked at;
           then, if wanted, what ended
       L2  a look costs four or five requests, however long the queue is: of what waits the first are shown, and how
           many aren't is said
"""

from dataclasses import dataclass
from typing import Final

from stoker.brain.domain.errors import StokerError
from stoker.cli.display.safe_text import visible
from stoker.wire.client import AsyncClient, JobListQuery, LogQuery
from stoker.wire.rest.cluster import ClusterView
from stoker.wire.rest.job import JobView, WhyView
from stoker.wire.rest.node import NodeView

SHOWN_MAX: Final = 200
"""Jobs of each kind."""
OFFSET_MAX: Final = 100_000
"""A server skips no more."""
LOG_LINES: Final = 200
_LIVE: Final = "running,starting,stopping"
_WAITING: Final = "pending,held"
_ENDED: Final = "succeeded,failed,cancelled,timeout,out_of_memory,node_failed"


@dataclass(frozen=True, slots=True)
class Look:
    cluster: ClusterView
    nodes: list[NodeView]
    jobs: list[JobView]
    left_out: int
    """Jobs that run or wait and aren't shown."""


@dataclass(frozen=True, slots=True)
class JobLook:
    """One job, close up."""

    job: JobView
    why: WhyView
    log: str
    """Its last lines, with line ends, or why there are none. Holds control characters."""


async def take_look(client: AsyncClient, *, ended: bool) -> Look:
    """Raises: StokerError."""
    live = await client.jobs(JobListQuery(state=_LIVE, limit=SHOWN_MAX))
    waiting = await client.jobs(JobListQuery(state=_WAITING, limit=SHOWN_MAX))
    if waiting.total > len(waiting.jobs):
        # A list is newest first, and those that wait longest are at its end.
        skipped = min(waiting.total - SHOWN_MAX, OFFSET_MAX)
        waiting = await client.jobs(JobListQuery(state=_WAITING, limit=SHOWN_MAX, offset=skipped))
    done = (await client.jobs(JobListQuery(state=_ENDED, limit=SHOWN_MAX))).jobs if ended else []
    in_line = sorted(waiting.jobs, key=lambda job: (job.state != "pending", -job.priority, int(job.id.split("_")[0])))
    # One that moved between two answers is in both.
    jobs = {job.id: job for job in (*done, *in_line, *live.jobs)}
    order = dict.fromkeys(job.id for job in (*live.jobs, *in_line, *done))
    shown = len(live.jobs) + len(waiting.jobs)
    return Look(
        cluster=await client.status(),
        nodes=await client.nodes(),
        jobs=[jobs[job_id] for job_id in order],
        left_out=max(0, live.total + waiting.total - shown),
    )


async def look_at_job(client: AsyncClient, job_id: str) -> JobLook:
    """Raises: StokerError."""
    return JobLook(job=await client.job(job_id), why=await client.why(job_id), log=await _log_of(client, job_id))


async def _log_of(client: AsyncClient, job_id: str) -> str:
    try:
        return (await client.logs(job_id, LogQuery(tail=LOG_LINES))).data.decode(errors="replace")
    except StokerError as fault:
        return f"({visible(fault.refusal.message)})\n"
