"""REST route for a connection to a port of a job: a notebook, a dashboard, a debugger.

One request is one connection: its body goes to the port, the answer's body comes from it, both at once.

Rules: F1  only the job's owner and admins are let through, and only to a port on which that very task listens
       F2  a connection ends when the port's side has ended, as it does with the task, or the client hangs up, when the
           caller's token is revoked or expires, and when nothing has come from either side for IDLE_S
       F3  what ends otherwise than the port's side wanted is broken off, so that no reader takes it for whole
       F4  who was let through is in the audit trail, once in NOTED_S for each person, task and port
       F5  of each direction `WINDOW_BYTES` are under way at most; who takes nothing holds up nobody else
Limits: FORWARDS_MAX connections at once, an eighth of them of one principal; one more is refused.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from stoker.api.http.connections import begin_duplex, break_off
from stoker.api.http.responses import StreamLimit, caller_of, lookup_job_at, query_of
from stoker.api.http.routing import LOOKUP, Routes
from stoker.brain.domain.array import JobRef
from stoker.brain.domain.errors import refusal_error
from stoker.brain.domain.ids import Principal
from stoker.brain.domain.instruction import TaskKey
from stoker.brain.domain.units import Mono
from stoker.brain.state.commands import ForwardPort
from stoker.brain.state.events.job import JobForwarded
from stoker.control.access import check_owner
from stoker.control.control_plane import ControlPlane
from stoker.control.control_ports import LogPlace, TaskTunnels
from stoker.wire import endpoints
from stoker.wire.rest.forward import MEDIA_TYPE, ForwardQuery
from stoker.wire.tunnel import TunnelBroken, TunnelEnd

FORWARDS_MAX: Final = 512
IDLE_S: Final = 3_600.0
"""A notebook that is left open over lunch stays connected."""
NOTED_S: Final = 3_600.0
_NOTED_MAX: Final = 10_000
_REFUSALS = (
    *(*LOOKUP, "not_running", "attempt_unknown", "node_unreachable", "port_not_listening", "forward_unavailable"),
    *("too_many_forwards", "too_many_streams", "not_supported_here", "not_allowed"),
)
_BYTES = {MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}}


def routes(control: ControlPlane) -> Routes:
    router = Routes()
    limit = StreamLimit(FORWARDS_MAX, "have a connection to a job", "close some, or try again later")
    noted: dict[tuple[Principal, TaskKey, int], Mono] = {}

    @router.serve(endpoints.FORWARD, *_REFUSALS, content=_BYTES)
    async def forward(request: Request) -> Response:
        """Connect to a port of a running job, both ways at once, until either side ends it."""
        query = query_of(request, ForwardQuery)
        if not query.port:
            hint = "add `?port=8888`, the port on which the job listens"
            raise refusal_error("bad_parameter", "no port is given, which is from 1 to 65535", hint, path="port")
        nodes = control.nodes
        if nodes is None:
            hint = "reach it by the means of the system that runs the jobs"
            raise refusal_error("not_supported_here", "this kind of cluster lets nobody through to jobs", hint)
        job = await lookup_job_at(request, control)
        caller = caller_of(request)
        check_owner(control.committer.state, caller, job)
        limit.check(caller)
        attempt = job.live_attempt
        number = attempt.number if attempt is not None else 0
        key = TaskKey(job.id, number, query.rank)
        command = ForwardPort(by=caller.principal, target=JobRef(job.id), rank=query.rank, port=query.port)
        now = control.clock.mono()
        known = (caller.principal, key, query.port)
        fresh = known in noted and now - noted[known] <= NOTED_S
        if attempt is None or not (query.check or fresh):  # F4
            (event,) = await control.committer.ask(command)
            assert isinstance(event, JobForwarded), "one who is let through is noted"
            noted[known] = now
            while len(noted) > _NOTED_MAX:
                del noted[next(iter(noted))]
        assert attempt is not None, "a job that doesn't run is refused above"
        if query.rank >= len(attempt.tasks):
            raise refusal_error("attempt_unknown", f"job {job.label} has no rank {query.rank}", "ranks begin at 0")
        if query.check:
            return Response(media_type=MEDIA_TYPE)
        place = LogPlace(attempt.tasks[query.rank].placement.node, key)
        return _PortAnswer(control, request, nodes, place, limit)

    return router


class _PortAnswer(Response):
    """One connection, as an answer that takes the body of its request."""

    def __init__(
        self, control: ControlPlane, request: Request, nodes: TaskTunnels, place: LogPlace, limit: StreamLimit
    ) -> None:
        super().__init__(media_type=MEDIA_TYPE)
        self._control = control
        self._request = request
        self._nodes = nodes
        self._place = place
        self._limit = limit
        self._port = query_of(request, ForwardQuery).port
        self._moved = control.clock.mono()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller = caller_of(self._request)
        with self._limit.counted(caller):
            async with self._nodes.tunnel(self._place, self._port) as tunnel:
                begin_duplex(scope)
                headers = [(b"content-type", MEDIA_TYPE.encode()), (b"cache-control", b"no-store")]
                await send({"type": "http.response.start", "status": 200, "headers": headers})
                await send({"type": "http.response.body", "body": b"", "more_body": True})
                if await self._carried(tunnel, self._request.stream(), send):
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
                else:
                    break_off(scope)  # F3

    async def _carried(self, tunnel: TunnelEnd, sent: AsyncIterator[bytes], send: Send) -> bool:
        """Carry bytes both ways until the port's side has ended; return whether it did so by itself (F2)."""
        back = asyncio.ensure_future(self._from_port(tunnel, send))
        there = asyncio.ensure_future(self._to_port(tunnel, sent))
        watched = asyncio.ensure_future(self._control.access.watch(caller_of(self._request)))
        idle = asyncio.ensure_future(self._until_idle())
        ends: list[asyncio.Future[None]] = [back, there, watched, idle]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if there.done() and there.exception() is None:
                await asyncio.wait((back, watched, idle), return_when=asyncio.FIRST_COMPLETED)
            return back.done() and back.exception() is None
        finally:
            for each in ends:
                each.cancel()
            await asyncio.gather(*ends, return_exceptions=True)

    async def _to_port(self, tunnel: TunnelEnd, sent: AsyncIterator[bytes]) -> None:
        try:
            async for data in sent:
                if data:
                    self._moved = self._control.clock.mono()
                    await tunnel.write(data)
        except ClientDisconnect:
            raise TunnelBroken("the client hung up") from None
        tunnel.end()

    async def _from_port(self, tunnel: TunnelEnd, send: Send) -> None:
        while data := await tunnel.read():
            self._moved = self._control.clock.mono()
            await send({"type": "http.response.body", "body": data, "more_body": True})

    async def _until_idle(self) -> None:
        while (left_s := self._moved + IDLE_S - self._control.clock.mono()) > 0:
            await self._control.clock.sleep(left_s)
