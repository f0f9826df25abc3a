"""REST routes into a running job: a program that is executed in one of its tasks, and a task's own terminal.

Each is a WebSocket; the node's runner holds the session, and here its messages pass in both directions.

Rules: W1  the job's owner, leads above it and admins are let in, nobody else; who was let in is in the audit trail,
           once in NOTED_S for each person, task and session
       W2  what is refused before the session is there is refused as any request, with a problem; what comes later is a
           message of type `refused`, or the close code
       W3  a connection ends when the session's side has ended, or the client is gone for PONG_S, and when the caller's
           token is revoked or expires; the session itself waits for its client on the node
       W4  bytes are neither kept nor looked into here, but for the channel; who takes nothing holds up nobody else
Limits: SESSIONS_MAX connections at once, an eighth of them of one principal; one more is refused.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from stoker.api.http.connections import UpgradedConnection, upgrade
from stoker.api.http.responses import StreamLimit, caller_of, lookup_job_at, query_of
from stoker.api.http.routing import LOOKUP, Routes
from stoker.brain.domain.array import JobRef
from stoker.brain.domain.errors import StokerError, refusal_error
from stoker.brain.domain.ids import JobId, NodeName, Principal
from stoker.brain.domain.instruction import TaskKey
from stoker.brain.domain.job import Job
from stoker.brain.domain.lifecycle import FINAL
from stoker.brain.domain.report import SessionOpening
from stoker.brain.domain.units import NEVER, Mono
from stoker.brain.state.commands import EnterTask
from stoker.brain.state.events.job import JobEntered
from stoker.control.access import check_enter
from stoker.control.control_plane import ControlPlane
from stoker.control.control_ports import LogPlace, TaskSessions
from stoker.control.feed import Entry
from stoker.wire import endpoints, websocket
from stoker.wire.exec_session import (
    CONTROL,
    MAIN,
    MESSAGE_MAX,
    STDIN,
    SUBPROTOCOL,
    MessageBroken,
    SessionFrames,
    SessionMessage,
    message_of,
)
from stoker.wire.rest.exec_session import AttachQuery, ExecQuery
from stoker.wire.tunnel import TunnelBroken, TunnelEnd

SESSIONS_MAX: Final = 512
NOTED_S: Final = 3_600.0
PING_S: Final = 20.0
PONG_S: Final = 60.0
"""A client from which nothing came for so long, not even the answer to a ping, is gone."""
OPEN_S: Final = 10.0
"""What a node's runner may take to say that the session is there: it starts a process meanwhile."""
GOODBYE_S: Final = 5.0
_LOOK_S: Final = 0.5
_NOTED_MAX: Final = 10_000
_PROGRAM_MAX: Final = 200
_WORDS_MAX: Final = 4_096
_WHY_MAX: Final = 500
_NODE_REFUSALS: Final = {
    "not_running": "`stoker status` tells when each rank started and ended",
    "exec_failed": "see what it says; the job itself goes on",
    "exec_unavailable": "see the output by `stoker logs`; the job itself goes on",
    "no_terminal": "`stoker exec -it` runs a shell beside it; `stoker submit -it` gives a job a terminal",
    "session_over": "begin another: `stoker exec`",
    "session_taken": "one client at a time has a session",
    "too_many_sessions": "end some, or wait: one whose client is gone ends within a minute",
    "bad_frame": "is the control plane of another version than the node?",
}
_REFUSALS: Final = (
    *(*LOOKUP, *_NODE_REFUSALS, "attempt_unknown", "node_unreachable", "too_many_forwards", "websocket_wanted"),
    *("too_many_streams", "not_supported_here", "not_allowed", "bad_text"),
)
_ABOUT: Final = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}


def routes(control: ControlPlane) -> Routes:
    router = Routes()
    doors = TaskDoors(control)

    @router.serve(endpoints.EXEC, *_REFUSALS, content=_ABOUT)
    async def execute(request: Request) -> Response:
        """Execute a program in a running job, with its account, environment, folder and GPUs, over a WebSocket."""
        query = query_of(request, ExecQuery)
        words = _words_in(query.command)
        name = query.session or control.entropy.uid()
        opening = SessionOpening(
            session=f"x{name}",  # never that of a terminal
            argv=words,
            tty=query.tty,
            columns=query.columns,
            rows=query.rows,
            term=query.term,
            at=query.at,
        )
        return await doors.answer(request, await lookup_job_at(request, control), query.rank, opening)

    @router.serve(endpoints.ATTACH, *_REFUSALS, content=_ABOUT)
    async def attach(request: Request) -> Response:
        """Have the terminal of a job that was submitted with one, over a WebSocket."""
        query = query_of(request, AttachQuery)
        job = await lookup_job_at(request, control)
        check_enter(control.committer.state, caller_of(request), job)
        if query.wait_ms:
            job = await doors.until_runs(request, job, query)
        opening = SessionOpening(session=MAIN, columns=query.columns, rows=query.rows, at=query.at)
        return await doors.answer(request, job, query.rank, opening)

    return router


class TaskDoors:
    """Ways into tasks, and who was let in."""

    def __init__(self, control: ControlPlane) -> None:
        self._control = control
        self._limit = StreamLimit(SESSIONS_MAX, "are in sessions of jobs", "end some, or try again later")
        self._noted: dict[tuple[Principal, TaskKey, str], Mono] = {}
        self._waiting: dict[JobId, asyncio.Event] = {}
        self._hears = False

    async def answer(self, request: Request, job: Job, rank: int, opening: SessionOpening) -> Response:
        """Raises: StokerError."""
        nodes = self._control.nodes
        if nodes is None:
            hint = "reach it by the means of the system that runs the jobs"
            raise refusal_error("not_supported_here", "this kind of cluster lets nobody into jobs", hint)
        caller = caller_of(request)
        check_enter(self._control.committer.state, caller, job)
        key = _key_of(request)
        self._limit.check(caller)
        attempt = job.live_attempt
        task = TaskKey(job.id, attempt.number if attempt is not None else 0, rank)
        known, now = (caller.principal, task, opening.session), self._control.clock.mono()
        if attempt is None or known not in self._noted or now - self._noted[known] > NOTED_S:  # W1
            program = " ".join(opening.argv)[:_PROGRAM_MAX]
            asked = EnterTask(by=caller.principal, target=JobRef(job.id), rank=rank, program=program)
            (event,) = await self._control.committer.ask(asked)
            assert isinstance(event, JobEntered), "one who is let in is noted"
            self._noted[known] = now
            while len(self._noted) > _NOTED_MAX:
                del self._noted[next(iter(self._noted))]
        assert attempt is not None, "a job that doesn't run is refused above"
        if rank >= len(attempt.tasks):
            raise refusal_error("attempt_unknown", f"job {job.label} has no rank {rank}", "ranks begin at 0")
        place = LogPlace(attempt.tasks[rank].placement.node, task)
        return _SessionAnswer(self._control, request, self._limit, _Door(nodes, place, opening, key))

    async def until_runs(self, request: Request, job: Job, query: AttachQuery) -> Job:
        """Wait until a rank of a job has started, the job has ended or the time is up; return it as it is then."""
        if not self._hears:
            self._hears = True
            self._control.committer.on_durable(self._committed)
        clock = self._control.clock
        until = clock.mono() + query.wait_ms / 1_000
        with self._limit.counted(caller_of(request)):
            while not _has_started(job, query.rank) and job.state not in FINAL and clock.mono() < until:
                news = self._waiting.setdefault(job.id, asyncio.Event())
                try:
                    async with asyncio.timeout(min(_LOOK_S, max(0.001, until - clock.mono()))):
                        await news.wait()
                except TimeoutError:
                    self._waiting.pop(job.id, None)
                    if await request.is_disconnected():
                        break
                job = await lookup_job_at(request, self._control)
        return job

    def _committed(self, entries: Sequence[Entry]) -> None:
        if self._waiting:
            for _, fact in entries:
                news = self._waiting.pop(getattr(fact.event, "job", JobId(0)), None)
                if news is not None:
                    news.set()


def _has_started(job: Job, rank: int) -> bool:
    attempt = job.live_attempt
    return attempt is not None and (rank >= len(attempt.tasks) or attempt.tasks[rank].started_at != NEVER)


def _words_in(text: str) -> tuple[str, ...]:
    """Raises: StokerError `bad_parameter` or `bad_text`."""
    hint = 'add `?command=["bash"]`, as JSON, escaped as a URL wants it'
    try:
        words = msgspec.json.decode(text or "[]", type=tuple[str, ...])
    except msgspec.MsgspecError:
        words = ()
    if not words or not words[0] or len(words) > _WORDS_MAX:
        message = f"no command is given, which is a JSON array of 1 to {_WORDS_MAX} texts"
        raise refusal_error("bad_parameter", message, hint, path="command")
    if any("\0" in word for word in words):
        raise refusal_error("bad_text", "a word of the command holds a NUL character", "leave it out")
    return words


def _key_of(request: Request) -> str:
    """Return the key of a WebSocket's handshake. Raises: StokerError `websocket_wanted`."""
    headers = request.headers
    upgrades = headers.get("upgrade", "").lower() == "websocket" and "upgrade" in headers.get("connection", "").lower()
    key = headers.get("sec-websocket-key", "")
    offered = [each.strip() for each in headers.get("sec-websocket-protocol", "").split(",")]
    if not upgrades or headers.get("sec-websocket-version") != websocket.VERSION or not websocket.is_key(key):
        hint = "open it as a WebSocket (RFC 6455, version 13); `stoker exec` does"
    elif SUBPROTOCOL not in offered:
        hint = f"offer the subprotocol `{SUBPROTOCOL}`"
    else:
        return key
    raise refusal_error("websocket_wanted", "this is the address of a WebSocket, and none was asked for", hint)


class _Door(msgspec.Struct, frozen=True):
    """Session that one client asks for, and its handshake."""

    nodes: TaskSessions
    place: LogPlace
    opening: SessionOpening
    key: str


class _SessionAnswer(Response):
    """One connection to a session, instead of an answer."""

    def __init__(self, control: ControlPlane, request: Request, limit: StreamLimit, door: _Door) -> None:
        super().__init__()
        self._control = control
        self._request = request
        self._limit = limit
        self._door = door
        self._frames = SessionFrames()
        self._heard = control.clock.mono()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        door, caller = self._door, caller_of(self._request)
        with self._limit.counted(caller):
            async with door.nodes.session(door.place, door.opening) as tunnel:
                first = await self._first(tunnel)
                lines = (
                    "HTTP/1.1 101 Switching Protocols",
                    "Upgrade: websocket",
                    "Connection: Upgrade",
                    f"Sec-WebSocket-Accept: {websocket.accept_of(door.key)}",
                    f"Sec-WebSocket-Protocol: {SUBPROTOCOL}",
                )
                connection = upgrade(scope, ("\r\n".join(lines) + "\r\n\r\n").encode())
                try:
                    await self._carry(tunnel, connection, first)
                finally:
                    connection.close()

    async def _first(self, tunnel: TunnelEnd) -> list[SessionMessage]:
        """Return the first messages of a session that is there. Raises: StokerError where it isn't."""
        node = self._door.place.node
        messages: list[SessionMessage] = []
        try:
            async with asyncio.timeout(OPEN_S):
                while not messages:
                    data = await tunnel.read()
                    if not data:
                        raise TunnelBroken("its runner hung up")
                    messages += self._frames.feed(data)
            fields = messages[0].control()
        except TimeoutError:
            raise _unavailable(node, f"its runner didn't answer within {OPEN_S:.0f} s") from None
        except (TunnelBroken, MessageBroken) as fault:
            raise _unavailable(node, str(fault)) from None
        if fields["type"] == "refused":
            code, words = str(fields.get("code")), str(fields.get("message"))[:_WHY_MAX]
            if code not in _NODE_REFUSALS:
                code = "exec_failed"
            raise refusal_error(code, words, _NODE_REFUSALS[code], node=node)
        return messages

    async def _carry(self, tunnel: TunnelEnd, connection: UpgradedConnection, first: list[SessionMessage]) -> None:
        """Carry messages both ways until either side ends it (W3), and say why to a client that is there."""
        caller = caller_of(self._request)
        down = asyncio.ensure_future(self._down(tunnel, connection, first))
        up = asyncio.ensure_future(self._up(tunnel, connection))
        watched = asyncio.ensure_future(self._control.access.watch(caller))
        alive = asyncio.ensure_future(self._until_gone(connection))
        duties: list[asyncio.Future[None]] = [down, up, watched, alive]
        try:
            await asyncio.wait(duties, return_when=asyncio.FIRST_COMPLETED)
            code, why = websocket.NORMAL, ""
            if watched.done():
                code, why = websocket.POLICY, "the token is not good any more"
            elif alive.done():
                code, why = websocket.GOING_AWAY, "nothing came from the client"
            else:
                ended = next(each for each in (up, down) if each.done())
                fault = ended.exception()
                if isinstance(fault, websocket.WebSocketFault):
                    code, why = fault.code, str(fault)
                elif isinstance(fault, MessageBroken):
                    code, why = websocket.PROTOCOL_ERROR, str(fault)
                elif fault is not None:
                    code, why = websocket.TRY_AGAIN, str(fault)
            await self._say_goodbye(connection, code, why)
        finally:
            for each in duties:
                each.cancel()
            await asyncio.gather(*duties, return_exceptions=True)

    async def _say_goodbye(self, connection: UpgradedConnection, code: int, why: str) -> None:
        try:
            async with asyncio.timeout(GOODBYE_S):
                await connection.write(websocket.close_frame(code, why))
        except (OSError, TimeoutError):
            return

    async def _up(self, tunnel: TunnelEnd, connection: UpgradedConnection) -> None:
        """Raises: WebSocketFault, MessageBroken, TunnelBroken, OSError."""
        decoder = websocket.WebSocketDecoder(MESSAGE_MAX, of_client=True)
        while data := await connection.read():
            self._heard = self._control.clock.mono()
            for frame in decoder.feed(data):
                if frame.opcode == websocket.CLOSE:
                    return
                if frame.opcode == websocket.PING:
                    await connection.write(websocket.encode(websocket.PONG, frame.data))
                elif frame.opcode == websocket.BINARY:
                    message = message_of(frame.data)
                    if message.channel not in (STDIN, CONTROL):
                        raise MessageBroken(f"channel {message.channel} is none of a client")
                    await tunnel.write(message.framed())
                elif frame.opcode == websocket.TEXT:
                    raise MessageBroken("messages of a session are binary")
        raise ConnectionResetError("the client hung up")

    async def _down(self, tunnel: TunnelEnd, connection: UpgradedConnection, messages: list[SessionMessage]) -> None:
        """Raises: MessageBroken, TunnelBroken, OSError."""
        while True:
            await connection.write(b"".join(websocket.encode(websocket.BINARY, each.encoded()) for each in messages))
            data = await tunnel.read()
            if not data:
                return
            messages = list(self._frames.feed(data))

    async def _until_gone(self, connection: UpgradedConnection) -> None:
        """Ask the client now and then whether it is there (W3)."""
        while self._control.clock.mono() - self._heard < PONG_S:
            await self._control.clock.sleep(PING_S)
            await connection.write(websocket.encode(websocket.PING, b""))


def _unavailable(node: NodeName, why: str) -> StokerError:
    hint = "see that agent and runner there are of this version; what runs there goes on"
    return refusal_error("exec_unavailable", f"node {node} lets nobody into its tasks: {why}", hint, node=node)
