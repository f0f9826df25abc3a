"""The page of one job: its story, why it waits or ended, its output, a terminal in it, and what may be done with it.

What its GPUs do is asked apart from the rest (`/jobs/ID/gpus`), every second. So is why it waits (`/jobs/ID/why`): a
search for alternatives takes longer than all the others, and a standby refuses it, which then is what that part says.
"""

from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.routing import Route

from stoker.api.http.responses import caller_of
from stoker.brain.domain.access import Role
from stoker.brain.domain.errors import StokerError, refusal_error
from stoker.brain.domain.job import TextEncoding, Visible
from stoker.brain.domain.lifecycle import FINAL, JobState
from stoker.web.formatting import command_line, ms_between, owner, percent
from stoker.web.site import FIGURES_STILL_S, Context, Site
from stoker.wire import endpoints
from stoker.wire.rest.audit import JobEventsView
from stoker.wire.rest.job import AttemptView, JobsView, JobView

_WAITING: Final = (JobState.PENDING, JobState.HELD)
RANKS_MAX: Final = 64
"""Shown of each attempt; the rest is counted."""
MEMBERS_MAX: Final = 200
SCRIPT_SHOWN: Final = 20_000
"""Characters."""


def routes(site: Site) -> list[Route]:
    """Return the routes of the page of a job."""

    async def show(request: Request) -> Context:
        job_id, caller = request.path_params["job_id"], caller_of(request)
        job = await site.ask(request, endpoints.JOB, job_id=job_id)
        if isinstance(job, JobsView):  # several members were named
            return {"job": None, "jobs": job}
        members = None
        if job.members is not None:
            query = {"array": job.id, "limit": str(MEMBERS_MAX)}
            members = await site.ask(request, endpoints.JOBS, query)
        return {
            "job": job,
            "final": job.state in FINAL,
            "bars": attempt_bars(job, site.now),
            "command": command_line(job.command),
            "script": await _script(site, request, job),
            "members": members,
            "may_enter": caller.role in (Role.ADMIN, Role.LEAD) or caller.account == owner(job),
            "changeable": changeable(job),
            "waits": job.state in _WAITING,
            "story": await _story(site, request, job),
            "ranks_max": RANKS_MAX,
        }

    async def gpus(request: Request) -> Context:
        job = await site.ask(request, endpoints.JOB, job_id=request.path_params["job_id"])
        if isinstance(job, JobsView):
            raise refusal_error("several_jobs", "the GPUs of one job are shown", "name one member")
        return {"job": job, "ranks_max": RANKS_MAX}

    async def why(request: Request) -> Context:
        job_id = request.path_params["job_id"]
        try:
            return {"why": await site.ask(request, endpoints.WHY, job_id=job_id), "refusal": None, "job_id": job_id}
        except StokerError as fault:
            return {"why": None, "refusal": fault.refusal, "job_id": job_id}

    return [
        site.page("/jobs/{job_id}", "job.html", "queue", show),
        site.page("/jobs/{job_id}/gpus", "job_gpus.html", "queue", gpus, still_s=FIGURES_STILL_S),
        site.page("/jobs/{job_id}/why", "why.html", "queue", why),
    ]


async def _script(site: Site, request: Request, job: JobView) -> str:
    """Return the script of a job, as much as is shown; empty where it has none or its reader may not see it."""
    if not job.script_bytes:
        return ""
    try:
        script = (await site.ask(request, endpoints.SCRIPT, job_id=job.id)).script
    except StokerError:
        return ""
    return script if len(script) <= SCRIPT_SHOWN else f"{script[:SCRIPT_SHOWN]}\n[...]"


async def _story(site: Site, request: Request, job: JobView) -> JobEventsView | None:
    """Return what happened to a job; None where its reader isn't told or the history can't be read."""
    try:
        return await site.ask(request, endpoints.JOB_EVENTS, job_id=job.id)
    except StokerError:
        return None


def attempt_bars(job: JobView, now: str) -> list[dict[str, Any]]:
    """Return the bars of a timeline: waiting, then each attempt, in percent of the time from submit to end."""
    end = job.ended_at or now
    whole = ms_between(job.submitted_at, end) or 1
    bars, free = [], job.submitted_at
    for attempt in job.attempts:
        until = attempt.ended_at or end
        bars.append(_bar("wait", job.submitted_at, whole, free, attempt.placed_at))
        bars.append(_bar(_kind(attempt), job.submitted_at, whole, attempt.placed_at, until) | {"attempt": attempt})
        free = until
    if not job.ended_at or not job.attempts:
        bars.append(_bar("wait", job.submitted_at, whole, free, end))
    return [bar for bar in bars if bar["width"] > 0]


def _kind(attempt: AttemptView) -> str:
    if attempt.outcome is None:
        return "attempt"
    return "good" if attempt.outcome == "succeeded" else "fail"


def _bar(kind: str, begin: str, whole: float, start: str, end: str) -> dict[str, Any]:
    at, until = ms_between(begin, start) or 0.0, ms_between(begin, end) or 0.0
    width = max(0.0, percent(until - at, whole))
    return {"attempt": None, "kind": kind, "x": percent(at, whole), "width": width, "ms": until - at}


def again_body(job: JobView, *, names_users: bool = False) -> str:
    """Return the body that submits the same job again, as JSON, for the form; without what its reader may not see.

    Its script isn't in it, nor what it waited for. With `names_users` it names the account that the job ran as.
    """
    if job.reduced or job.outline:
        return ""
    body = {
        "name": job.name,
        "tenant": job.tenant,
        "user": job.user if names_users else "",
        "gpu_count": job.gpu_count if job.gpu_share == 1 else 0,
        "gpu_share": job.gpu_share if job.gpu_share < 1 else None,
        "gpu_model": job.gpu_model,
        "gpu_memory_mb": job.gpu_memory_mb,
        "tasks": job.tasks if job.tasks > 1 else None,
        "cpus": job.cpus,
        "memory_mb": job.memory_mb,
        "command": job.command,
        "image": job.image,
        "workdir": job.workdir,
        "time_limit": _span_option(job.time_limit_ms),
        "class": job.job_class,
        "priority": job.priority,
        "retries": job.retries,
        "env": job.env,
        "where": job.where,
        "partition": job.partition,
        "array": job.array,
        "comment": job.comment,
        "labels": job.labels,
        "secrets": job.secrets,
        "exclude": list(job.exclude),
        "tolerate": job.tolerate,
        "tasks_per_node": job.tasks_per_node,
        "mounts": job.mounts,
        "shm_mb": job.shm_mb,
        "network": job.network,
        "preemptible": job.preemptible,
        "checkpoint": _span_option(job.checkpoint_ms),
        "signal": job.signal,
        "tty": job.tty,
        "detached": job.detached,
        "output": job.output,
        "error": job.error,
        "notify": job.notify,
        "notify_to": job.notify_to,
        "visible": job.visible if job.visible is not Visible.UUID else None,
        "encoding": job.encoding if job.encoding is not TextEncoding.UTF_8 else None,
    }
    kept = {name: value for name, value in body.items() if value}
    if not job.requeue:
        kept["requeue"] = False
    if job.entrypoint is not None:
        kept["entrypoint"] = job.entrypoint
    if job.lost_after_ms is not None:
        kept["lost_after"] = _span_option(job.lost_after_ms) or "never"
    return msgspec.json.encode(kept).decode()


def changeable(job: JobView) -> str:
    """Return the fields of a job that its page has a form to change, as JSON; of what runs only some may be."""
    body: dict[str, object] = {
        "name": job.name,
        "priority": job.priority,
        "time_limit": _span_option(job.time_limit_ms),
        "comment": job.comment,
    }
    if job.state in _WAITING:
        body |= {
            "gpu_count": job.gpu_count,
            "tasks": job.tasks,
            "cpus": job.cpus,
            "memory_mb": job.memory_mb,
            "gpu_model": job.gpu_model,
            "partition": job.partition,
            "where": job.where,
        }
    return msgspec.json.encode({name: "" if value is None else str(value) for name, value in body.items()}).decode()


def _span_option(ms: int) -> str | None:
    """Return a span of time as options of a submit have it; None for none."""
    if not ms:
        return None
    minutes, rest_ms = divmod(ms, 60_000)
    return f"{ms // 1_000}s" if rest_ms else f"{minutes}m"
