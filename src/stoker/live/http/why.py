"""REST for `why`: what keeps a job from running, or what ended it.

The place in the queue is counted as `engine.order` looks: higher priority first, then who was submitted first.
"""

from bisect import bisect_left

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from stoker.brain.domain.job import Job
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.facade import ClusterView
from stoker.live.control import ControlPlane
from stoker.live.http.answers import json_answer
from stoker.live.http.contract import RECALLED, json_content, route
from stoker.live.http.recall import job_recalled
from stoker.live.http.shown import shown
from stoker.wire.rest.job import QueuePlace, WhyView, why_view
from stoker.wire.versions import API_PREFIX


def routes(control: ControlPlane) -> APIRouter:
    router = APIRouter(prefix=API_PREFIX, tags=["jobs"])

    @router.get("/jobs/{job_id}/why", **route(json_content(WhyView), path="job_id", refusals=RECALLED))
    async def why(request: Request) -> Response:
        """Say why a job waits, and where in the queue, or why it ended."""
        state = control.committer.state
        job = await job_recalled(request, control)
        return json_answer(why_view(shown(control, job), queue_place(state, job)))

    return router


def queue_place(state: ClusterState, job: Job) -> QueuePlace | None:
    """None for a job that isn't in the queue: it runs, has ended, is held or waits out a pause.

    Limits: costs one step per bucket and a binary search in those of its priority, never the queue's length.
    """
    if job.state is not JobState.PENDING:
        return None
    ahead = waiting = similar = 0
    queued = False
    for bucket in ClusterView(state).pending():
        waiting += len(bucket.jobs)
        if bucket.priority > job.spec.priority:
            ahead += len(bucket.jobs)
        elif bucket.priority == job.spec.priority:
            before = bisect_left(bucket.jobs, job.id)
            ahead += before
            if bucket.shape == job.spec.shape:
                similar = before
                queued = before < len(bucket.jobs) and bucket.jobs[before] == job.id
    return QueuePlace(position=ahead + 1, waiting=waiting, similar_ahead=similar) if queued else None
