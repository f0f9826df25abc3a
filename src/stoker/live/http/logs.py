"""REST for a task's output: bytes from a place, or the last lines."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from stoker.brain.domain.errors import StokerError, refuse
from stoker.brain.domain.ids import NodeName
from stoker.brain.domain.instruction import TaskKey
from stoker.brain.domain.job import Job
from stoker.brain.domain.report import LogChunk
from stoker.live.control import ControlPlane
from stoker.live.http.answers import job_at, query_of
from stoker.live.http.contract import JOB, route
from stoker.wire.rest.log import (
    ENDED_HEADER,
    LOG_LIMIT_MAX,
    OFFSET_HEADER,
    SIZE_HEADER,
    TAIL_FIRST_BYTES,
    LogQuery,
    last_lines,
)
from stoker.wire.versions import API_PREFIX

_REFUSALS = (*JOB, "not_started", "attempt_unknown", "node_unreachable", "log_unavailable")
_TEXT = {"text/plain": {"schema": {"type": "string", "format": "binary"}}}


def routes(control: ControlPlane) -> APIRouter:
    router = APIRouter(prefix=API_PREFIX, tags=["jobs"])

    @router.get("/jobs/{job_id}/logs", **route(_TEXT, path="job_id", query=LogQuery, refusals=_REFUSALS))
    async def logs(request: Request) -> Response:
        """Read a task's output. Where the bytes lie is in the headers."""
        query = query_of(request, LogQuery)
        node, key = _task_of(job_at(request, control.committer.state), query)
        if query.tail:
            chunk = await _tail(control, node, key, query.tail)
        else:
            limit = min(query.limit, LOG_LIMIT_MAX)
            chunk = await control.sessions.read_log(node, key, query.offset, limit)
        return _answer(chunk)

    return router


def _task_of(job: Job, query: LogQuery) -> tuple[NodeName, TaskKey]:
    """Raises: StokerError `not_started` or `attempt_unknown`."""
    if not job.attempts:
        raise StokerError(
            refuse(
                "not_started",
                f"job {job.id} is {job.state} and has written nothing",
                f"`stoker why {job.id}` says what it waits for or what ended it",
                job_id=job.id,
                state=job.state.value,
            )
        )
    number = query.attempt or job.attempts[-1].number
    attempt = next((each for each in job.attempts if each.number == number), None)
    if attempt is None or query.rank >= len(attempt.tasks):
        newest = job.attempts[-1]
        raise StokerError(
            refuse(
                "attempt_unknown",
                f"job {job.id} has no rank {query.rank} of attempt {number}",
                f"attempts are {job.attempts[0].number} to {newest.number}, ranks 0 to {len(newest.tasks) - 1}",
                job_id=job.id,
                attempt=number,
                rank=query.rank,
            )
        )
    return attempt.tasks[query.rank].placement.node, TaskKey(job.id, number, query.rank)


async def _tail(control: ControlPlane, node: NodeName, key: TaskKey, lines: int) -> LogChunk:
    """The last lines. Most tails are short, so little is fetched first and the whole bound only if it must be."""
    chunk = await control.sessions.read_log(node, key, -TAIL_FIRST_BYTES, TAIL_FIRST_BYTES)
    tail = last_lines(chunk.data, lines)
    if len(tail) == len(chunk.data) and chunk.offset > 0:
        chunk = await control.sessions.read_log(node, key, -LOG_LIMIT_MAX, LOG_LIMIT_MAX)
        tail = last_lines(chunk.data, lines)
    cut = len(chunk.data) - len(tail)
    return LogChunk(request=chunk.request, offset=chunk.offset + cut, data=tail, size=chunk.size, ended=chunk.ended)


def _answer(chunk: LogChunk) -> Response:
    headers = {
        OFFSET_HEADER: str(chunk.offset),
        SIZE_HEADER: str(chunk.size),
        ENDED_HEADER: "true" if chunk.ended else "false",
        # A browser mustn't guess that somebody's output is a page of ours.
        "X-Content-Type-Options": "nosniff",
    }
    return Response(chunk.data, media_type="text/plain; charset=utf-8", headers=headers)
