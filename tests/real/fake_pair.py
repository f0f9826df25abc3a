"""Two control planes that a test plays: they share one small cluster, switch roles, die and lose answers on demand.

They speak REST over real sockets, as much of it as the rules about clients need. What they were asked is kept.
"""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, Final, NamedTuple
from urllib.parse import parse_qs, urlsplit

import msgspec

from stoker.brain.domain.access import Role
from stoker.brain.domain.errors import Refusal, refuse
from stoker.brain.domain.lifecycle import JobState
from stoker.wire.rest.cluster import HealthView
from stoker.wire.rest.job import JobListView, JobView
from stoker.wire.rest.problem import MEDIA_TYPE, problem_of
from stoker.wire.rest.token import NewTokenView
from stoker.wire.status import status_of
from tests.cli.views import attempt, job

API: Final = "/api/v1"
WRITTEN: Final = b"".join(b"line %d\n" % number for number in range(1, 101))


class RecordedRequest(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]
    """Names in lower case."""


class Cluster:
    """What both have on disk."""

    def __init__(self) -> None:
        self.jobs: dict[str, JobView] = {}
        self.keys: dict[str, str] = {}
        self.orders: list[str] = []
        """Every order that was carried out."""
        self.log = WRITTEN[:40]
        self.log_ended = False
        self.grew = threading.Condition()

    def submit(self, key: str) -> JobView:
        with self.grew:  # each request has a thread of its own
            if key not in self.keys:
                self.keys[key] = str(len(self.jobs) + 1)
                made = job(int(self.keys[key]), state=JobState.RUNNING, attempts=(attempt(1),), ended_at=None)
                self.jobs[made.id] = made
                self.orders.append("submit")
            return self.jobs[self.keys[key]]

    def end(self, job_id: str) -> None:
        self.jobs[job_id] = job(int(job_id), state=JobState.SUCCEEDED, attempts=(attempt(1),), exit_code=0)

    def write(self, data: bytes, *, ended: bool = False) -> None:
        with self.grew:
            self.log, self.log_ended = self.log + data, ended
            self.grew.notify_all()


class Plane:
    """One of the two. `role` is `active` or `standby`; a test sets it."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.role = "standby"
        self.says_active = ""
        """Whom it names as the active while it is a standby."""
        self.lag_ms = 250
        self.loses = 0
        """So many answers are not sent, though what was asked is done."""
        self.halves = 0
        """So many answers break off in their middle."""
        self._goes_on = threading.Event()
        self._goes_on.set()
        self.heard: list[RecordedRequest] = []
        self._live: set[socket.socket] = set()
        self._server: ThreadingHTTPServer | None = None
        self.port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def targets(self) -> list[str]:
        """What was asked of it, but for looks at its health."""
        return [f"{each.method} {each.path}" for each in self.heard if not each.path.endswith("/health")]

    def start(self) -> None:
        self._server = _Server(("127.0.0.1", self.port), _handler_of(self, self._live))
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def kill(self) -> None:
        """kill -9: every connection is reset, and whoever comes is refused."""
        if self._server is None:
            return
        self._server.shutdown()
        self._server.server_close()
        self._server = None
        live = list(self._live)
        self._live.clear()
        for connection in live:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self.go_on()
        with self.cluster.grew:
            self.cluster.grew.notify_all()

    def stop(self) -> None:
        """SIGSTOP: it takes connections and requests, and does nothing about them."""
        self._goes_on.clear()

    def go_on(self) -> None:
        """SIGCONT."""
        self._goes_on.set()

    def hears(self, connection: socket.socket, asked: RecordedRequest) -> bool:
        """False = it died before it could do anything about that."""
        self.heard.append(asked)
        self._goes_on.wait(60)
        return connection in self._live


class Pair(NamedTuple):
    a: Plane
    b: Plane
    cluster: Cluster

    @property
    def servers(self) -> str:
        return f"{self.a.url},{self.b.url}"

    def take_over(self) -> None:
        """`b` is the active one from now on."""
        self.a.role, self.b.role = "standby", "active"


@contextmanager
def fake_pair() -> Iterator[Pair]:
    """`a` is active."""
    cluster = Cluster()
    pair = Pair(Plane(cluster, "a"), Plane(cluster, "b"), cluster)
    pair.a.role = "active"
    try:
        yield pair
    finally:
        pair.a.kill()
        pair.b.kill()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401  # as the library has it
        """A connection that a test has cut is nothing to tell."""


def _handler_of(plane: Plane, live: set[socket.socket]) -> type[BaseHTTPRequestHandler]:
    return type("Handler", (_Handler,), {"plane": plane, "live": live})


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    plane: ClassVar[Plane]
    live: ClassVar[set[socket.socket]]

    def setup(self) -> None:
        super().setup()
        self.live.add(self.connection)

    def finish(self) -> None:
        self.live.discard(self.connection)
        with suppress(OSError):
            super().finish()

    def log_message(self, format: str, *args: object) -> None:
        """Standard error is the command's."""

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def do_DELETE(self) -> None:
        self._serve()

    def _serve(self) -> None:
        plane = self.plane
        self.rfile.read(int(self.headers.get("content-length", "0")))
        headers = {name.lower(): value for name, value in self.headers.items()}
        if not plane.hears(self.connection, RecordedRequest(self.command, self.path, headers)):
            self.close_connection = True
            return
        refusal = self._standbys_refusal(headers)
        if refusal is not None:
            self._answer(status_of(refusal.code).http, MEDIA_TYPE, msgspec.json.encode(problem_of(refusal)), {})
            return
        status, kind, body, more = self._answer_of(headers)
        self._answer(status, kind, body, more)

    def _standbys_refusal(self, headers: dict[str, str]) -> Refusal | None:
        plane, path = self.plane, urlsplit(self.path).path
        if plane.role == "active":
            return None
        reads = self.command == "GET" and not path.endswith(("/logs", "/why"))
        if reads and headers.get("stoker-stale") != "no":
            return None
        hint = "ask again soon"
        return refuse("not_active", f"control plane {plane.name} is a standby", hint, active=plane.says_active)

    def _answer_of(self, headers: dict[str, str]) -> tuple[int, str, bytes, dict[str, str]]:
        cluster, path = self.plane.cluster, urlsplit(self.path).path.removeprefix(API)
        json_of = msgspec.json.encode
        if path == "/health":
            return 200, "application/json", json_of(HealthView(version="0", cluster_id="c", epoch=1)), {}
        if path == "/jobs" and self.command == "POST":
            return 201, "application/json", json_of(cluster.submit(headers["idempotency-key"])), {}
        if path == "/jobs":
            jobs = list(cluster.jobs.values())
            page = JobListView(jobs=jobs, total=len(jobs), limit=50, next=None)
            return 200, "application/json", json_of(page), {}
        if path == "/tokens":
            cluster.orders.append("token")
            return 201, "application/json", json_of(_token()), {}
        if path.endswith("/logs"):
            return self._log_part()
        _, _, job_id, *verb = path.split("/")
        if self.command != "GET":
            cluster.orders.append(verb[0] if verb else "cancel")
        return 200, "application/json", json_of(cluster.jobs[job_id]), {}

    def _log_part(self) -> tuple[int, str, bytes, dict[str, str]]:
        cluster, plane = self.plane.cluster, self.plane
        asked = {name: int(values[0]) for name, values in parse_qs(urlsplit(self.path).query).items()}
        offset = asked.get("offset", 0)
        with cluster.grew:
            cluster.grew.wait_for(
                lambda: len(cluster.log) > offset or cluster.log_ended or plane.role != "active",
                asked.get("wait_s", 0),
            )
        data = cluster.log[offset:]
        about = {"Offset": str(offset), "Size": str(len(cluster.log)), "Ended": str(cluster.log_ended).lower()}
        more = {f"X-Stoker-Log-{name}": value for name, value in {**about, "Attempt": "1"}.items()}
        return 200, "application/octet-stream", data, more

    def _answer(self, status: int, kind: str, body: bytes, more: dict[str, str]) -> None:
        plane = self.plane
        if plane.loses and self.command != "GET":
            plane.loses -= 1
            self._hang_up()
            return
        self.send_response(status)
        role = {"Stoker-Role": plane.role, **({"Stoker-Lag-Ms": str(plane.lag_ms)} if plane.role == "standby" else {})}
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **role, **more}.items():
            self.send_header(name, value)
        self.end_headers()
        if plane.halves:
            plane.halves -= 1
            self.wfile.write(body[: len(body) // 2])
            self._hang_up()
            return
        self.wfile.write(body)

    def _hang_up(self) -> None:
        self.close_connection = True
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)


def _token() -> NewTokenView:
    return NewTokenView(
        id="abcdefgh",
        role=Role.VIEWER,
        tenant=None,
        user=None,
        comment="",
        node=None,
        principal="token:abcdefgh",
        created_at="2026-11-28T00:00:00Z",
        created_by="user:local",
        expires_at=None,
        token="stoker_abcdefgh_" + "x" * 43,
    )
