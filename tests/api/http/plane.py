"""A control plane without sockets: the real application over the real parts and a real store in a folder.

Agents are played through `Sessions`, the seam that their gRPC streams use too.
"""

import asyncio
import io
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from starlette.types import ASGIApp

from stoker.adapters.clock import SystemClock
from stoker.adapters.entropy import SystemEntropy
from stoker.adapters.logs import StructuredTelemetry
from stoker.adapters.metrics import Metrics
from stoker.adapters.secret_keys import SecretKeys
from stoker.adapters.sqlite.event_log import SqliteLog
from stoker.adapters.sqlite.history import SqliteHistory
from stoker.api.http.app import create_app
from stoker.brain.domain.gpu import Gpu
from stoker.brain.domain.ids import GpuUuid, NodeName
from stoker.brain.domain.instruction import Signal, Start, Stop
from stoker.brain.domain.job import EndCause, TaskEnd
from stoker.brain.domain.node import Inventory
from stoker.brain.domain.report import LogChunk, Registration, Started, TaskFinished, TaskInventory
from stoker.control.control_plane import active
from stoker.control.control_ports import ControlPorts
from stoker.live.control_plane import LiveControlPlane, recover_control
from stoker.live.settings.control import ControlSettings

PEEK_S: Final = 0.02
"""How long who peeks reads on after the head."""


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:  # noqa: ANN401  # the tests look into whatever came
        return json.loads(self.body)


class Plane:
    """One control plane and a way to ask it."""

    def __init__(self, control: LiveControlPlane, log: io.BytesIO | None = None) -> None:
        self.control = control
        self._log = log or io.BytesIO()
        self.app: ASGIApp = create_app(control)

    def with_pages(self) -> None:
        """Serve the web pages too, from now on."""
        from stoker.web.app import WebPages  # few tests need templates

        self.app = create_app(self.control, WebPages(self.control))

    async def ask(self, method: str, target: str, body: object = None, headers: dict[str, str] | None = None) -> Reply:
        """One request. `body` is sent as it is when it is bytes, else as JSON."""
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        return await asgi_ask(self.app, method, target, data, {"host": "127.0.0.1:8080", **(headers or {})})

    async def peek(self, method: str, target: str, body: bytes, headers: dict[str, str]) -> Reply:
        """As `ask`, of a reader who hangs up once a first part of an answer without end has come."""
        return await asgi_peek(self.app, method, target, body, {"host": "127.0.0.1:8080", **headers})

    async def get(self, target: str) -> Reply:
        return await self.ask("GET", target)

    async def document(self) -> Any:  # noqa: ANN401  # as `Reply.json`
        """The OpenAPI document, as it is served."""
        return (await self.get("/openapi.json")).json

    def log_text(self) -> str:
        """All that it has logged."""
        return self._log.getvalue().decode()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Let the loop run until something holds; half a minute at most."""
        async with asyncio.timeout(30):
            while not holds():
                await self.control.clock.sleep(0.002)

    async def join(
        self,
        name: str,
        gpus: int = 4,
        model: str = "Tesla V100-SXM2-32GB",
        *,
        leases: bool = False,
        private: bool = True,
    ) -> "Agent":
        inventory = Inventory(
            boot_id="boot",
            address="127.0.0.1",
            gpus=tuple(
                Gpu(uuid=GpuUuid(f"GPU-{name}-{i}"), index=i, model=model, memory_mb=32_768) for i in range(gpus)
            ),
            cpus=16,
            memory_mb=64_000,
            keeps_leases=leases,
        )
        node = NodeName(name)
        welcome = await self.control.sessions.register(Registration(node=node, inventory=inventory))
        agent = Agent(self, node, welcome.session, private=private)
        await agent.stream.receive(TaskInventory(boot_id="boot", tasks=()))
        return agent


class Agent:
    """A node whose tasks do what the test says."""

    def __init__(self, plane: Plane, node: NodeName, session: str, *, private: bool = True) -> None:
        self.node = node
        self._plane, self._session = plane, session
        self.stream = plane.control.sessions.attach(session, private=private)
        self._outgoing = self.stream.outgoing()

    async def next_start(self) -> Start:
        async with asyncio.timeout(30):
            while True:
                message = await anext(self._outgoing)
                if isinstance(message, Start):
                    return message

    async def next_stop(self) -> Stop:
        async with asyncio.timeout(30):
            while True:
                message = await anext(self._outgoing)
                if isinstance(message, Stop):
                    return message

    async def next_signal(self) -> Signal:
        async with asyncio.timeout(30):
            while True:
                message = await anext(self._outgoing)
                if isinstance(message, Signal):
                    return message

    async def run(self) -> Start:
        """Take the next start and say that its process runs."""
        start = await self.next_start()
        now = self._plane.control.clock.now()
        await self.stream.receive(Started(key=start.key, at=now, pid=7))
        return start

    async def end(self, start: Start | Stop, exit_code: int = 0, cause: EndCause = EndCause.EXITED) -> None:
        end = TaskEnd(cause=cause, at=self._plane.control.clock.now(), exit_code=exit_code)
        await self._plane.control.sessions.finished(TaskFinished(node=self.node, key=start.key, end=end))

    async def serve_log(self, written: bytes, *, ended: bool = True) -> None:
        """Answer every read of output with a part of `written`, for as long as the test lets it."""
        sessions = self._plane.control.sessions
        async for request in sessions.opened(self._session).log.requests():
            begin = request.offset if request.offset >= 0 else max(0, len(written) + request.offset)
            data = written[begin : begin + request.limit]
            chunk = LogChunk(request=request.request, offset=begin, data=data, size=len(written), ended=ended)
            sessions.opened(self._session).log.answer(chunk)


@asynccontextmanager
async def plane_in(
    folder: Path, settings: ControlSettings | None = None, *, open_to_owner: bool = True
) -> AsyncIterator[Plane]:
    clock, written = SystemClock(), io.BytesIO()
    telemetry = StructuredTelemetry(clock, metrics=Metrics(), stream=written)
    vault = SecretKeys(folder / "keys" / "secrets.key")
    world = ControlPorts(clock=clock, entropy=SystemEntropy(), telemetry=telemetry, vault=vault)
    log, history = SqliteLog(folder, telemetry=telemetry), SqliteHistory(folder)
    await log.open()
    try:
        control = await recover_control(settings or ControlSettings(), log, history, world, open_to_owner=open_to_owner)
        async with active(control):
            yield Plane(control, written)
    finally:
        await history.close()
        await log.close()


async def asgi_ask(app: ASGIApp, method: str, target: str, body: bytes, headers: dict[str, str]) -> Reply:
    return await asgi_ask_in(app, scope_of(method, target, body, headers), body)


async def asgi_ask_in(app: ASGIApp, scope: dict[str, Any], body: bytes = b"") -> Reply:
    """What a server would hand to the application, and what it would get back."""
    return await _answered(app, scope, body, asyncio.Event(), hangs_up=False)


async def asgi_peek(app: ASGIApp, method: str, target: str, body: bytes, headers: dict[str, str]) -> Reply:
    """The beginning of an answer, for a reader who hangs up then."""
    gone = asyncio.Event()
    scope = scope_of(method, target, body, headers)
    scope["asgi"] = {"version": "3.0", "spec_version": "2.3"}  # as uvicorn says it: hanging up is heard, not raised
    scope["extensions"] = {"stoker.break": gone.set}
    async with asyncio.timeout(20):
        return await _answered(app, scope, body, gone, hangs_up=True)


async def _answered(app: ASGIApp, scope: dict[str, Any], body: bytes, gone: asyncio.Event, *, hangs_up: bool) -> Reply:
    sent: list[dict[str, Any]] = []
    incoming = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive() -> dict[str, Any]:
        for message in incoming:
            return message
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:  # noqa: ANN401  # an ASGI message
        sent.append(message)
        if hangs_up and message["type"] == "http.response.start":
            asyncio.get_running_loop().call_later(PEEK_S, gone.set)

    await app(scope, receive, send)
    first = sent[0]
    answered = {name.decode().lower(): value.decode("latin-1") for name, value in first["headers"]}
    return Reply(first["status"], answered, b"".join(message.get("body", b"") for message in sent[1:]))


def scope_of(method: str, target: str, body: bytes, headers: dict[str, str]) -> dict[str, Any]:
    """The head of a request, as a server hands it to an application."""
    path, _, query = target.partition("?")
    raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
    if body and "content-length" not in headers:
        raw.append((b"content-length", str(len(body)).encode()))
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode("latin-1"),
        "root_path": "",
        "headers": raw,
        "client": ("127.0.0.1", 50_000),
        "server": ("127.0.0.1", 8080),
        "state": {},
    }
