"""REST for `why`: what keeps a job from running, or what ended it.

The place in the queue is counted as `engine.order` looks: higher effective priority first (aging counts), then who was
submitted first; members of arrays count one by one, as many as their array lets come up.
"""

from bisect import bisect_left

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from stoker.api.http.contract import LOOKUP, json_content, route
from stoker.api.http.responses import json_response, lookup_own_job_at
from stoker.brain.domain.array import Spans, contains, indexes_of, member_id
from stoker.brain.domain.ids import JobId
from stoker.brain.domain.job import Job
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.domain.units import Instant
from stoker.brain.engine.queue_order import aged
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.state_view import StateView
from stoker.brain.state.view import Bucket
from stoker.control.control_plane import ControlPlane
from stoker.control.queries.job_details import job_details
from stoker.control.queries.quota import lent_story
from stoker.wire.rest.job import QueuePlace, WhyView, why_view
from stoker.wire.versions import API_PREFIX


def routes(control: ControlPlane) -> APIRouter:
    router = APIRouter(prefix=API_PREFIX, tags=["jobs"])

    @router.get("/jobs/{job_id}/why", **route(json_content(WhyView), path="job_id", refusals=LOOKUP))
    async def why(request: Request) -> Response:
        """Say why a job waits, and where in the queue, or why it ended."""
        state = control.committer.state
        job = await lookup_own_job_at(request, control)
        now = job_details(control, job)
        place = queue_place(state, job, control.committer.now())
        return json_response(why_view(now, place, lent_story(state, job, now.reason)))

    return router


_Key = tuple[int, JobId]
"""Negated effective priority and id: whose is lower comes up first."""


def queue_place(state: ClusterState, job: Job, now: Instant) -> QueuePlace | None:
    """None for a job that isn't in the queue: it runs, has ended, is held, waits out a pause or for others, or as many
    members of its array run as may. An array stands where its next member does.

    Limits: costs a step per bucket and array, and a binary search where ages decide, never the queue's length. Jobs
    that were told to begin later are taken for as old as those that they stand among.
    """
    if job.state is not JobState.PENDING:
        return None
    place = _Place(state, job, now)
    for bucket in StateView(state).pending():
        place.look_at(bucket)
    return place.found()


class _Place:
    """How many come before one job."""

    def __init__(self, state: ClusterState, job: Job, now: Instant) -> None:
        self._state, self._job, self._now = state, job, now
        self._ahead = self._waiting = self._similar = 0
        self._queued = False
        self._id, self._index = job.id, job.array_index
        if job.members is not None:
            self._index = next(indexes_of(job.members.lazy), 0)
            self._id = JobId(0) if not job.members.lazy else member_id(job.id, job.as_array[0], self._index)
        self._array = job.id if job.members is not None else job.array_of
        self._key: _Key = -self._priority(job), self._id

    def look_at(self, bucket: Bucket) -> None:
        alike = (bucket.priority, bucket.shape) == (self._job.spec.priority, self._job.spec.shape)
        before = self._before(bucket)
        if alike and before < len(bucket.jobs) and bucket.jobs[before] == self._id:
            self._queued = True
        self._waiting += len(bucket.jobs)
        for array in bucket.arrays:
            offered, first = self._of_array(self._state.jobs[array], alike=alike)
            self._waiting += offered
            before += first
        self._ahead += before
        if alike:
            self._similar += before

    def _before(self, bucket: Bucket) -> int:
        """How many of its jobs come first. Whoever waits gains, so priority alone decides most buckets."""
        mine = -self._key[0]
        if bucket.priority > mine:
            return len(bucket.jobs)
        if bucket.priority + self._state.policy.aging_max < mine:
            return 0
        return bisect_left(bucket.jobs, self._key, key=self._key_of)

    def _of_array(self, array: Job, *, alike: bool) -> tuple[int, int]:
        """How many of its members may come up, and how many of those do so first."""
        _, members = array.as_array
        room = self._state.indexes.arrays.room(array)
        offered = members.waiting if room is None else min(members.waiting, room)
        if array.id != self._array:
            # The ids of its members follow its own, and mine isn't among them.
            return offered, offered if (-self._priority(array), array.id) < self._key else 0
        first = min(offered, _below(members.lazy, self._index))
        if alike and first < offered and contains(members.lazy, self._index):
            self._queued = True
        return offered, first

    def _key_of(self, job: JobId) -> _Key:
        return -self._priority(self._state.jobs[job]), job

    def _priority(self, job: Job) -> int:
        """As `engine.order` has it."""
        return job.spec.priority + aged(max(job.submitted_at, job.spec.begin), self._state.policy, self._now)

    def found(self) -> QueuePlace | None:
        if not self._queued:
            return None
        return QueuePlace(position=self._ahead + 1, waiting=self._waiting, similar_ahead=self._similar)


def _below(spans: Spans, index: int) -> int:
    """How many indexes of `spans` are lower."""
    return sum(min(last - first, index - 1 - first) // step + 1 for first, last, step in spans if first < index)
