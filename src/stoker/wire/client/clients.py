"""Clients of the REST interface for Python programs: one that blocks, such as the command line, one for event loops.

    with Client("http://127.0.0.1:8080") as client:
        job = client.submit(JobBody(command=["python", "train.py"], gpu_count=4))
        job = client.wait(job.id)

    async with AsyncClient("http://127.0.0.1:8080") as client:
        job = await client.submit(JobBody(command=["python", "train.py"], gpu_count=4))

Both have the same methods, declared in `methods`. Every method raises StokerError: with the server's code, message and
hint, or `no_server` where none answers, `server_not_proved` where what answers may be somebody else's, `not_active`
where only standbys do, or `no_answer` where the answer got lost and the request may have been carried out. What is safe
to repeat is repeated: see `retry`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from stoker.wire import endpoints
from stoker.wire.client import follow
from stoker.wire.client.backoff import sleep_blocking
from stoker.wire.client.calls import LogPart, Steps, Stream, request_to, until_yield
from stoker.wire.client.methods import ClientMethods
from stoker.wire.client.retry import PATIENCE_S
from stoker.wire.client.servers import DEFAULT_SERVER
from stoker.wire.client.staleness import Notice, ignore_notice
from stoker.wire.client.transport import SocketTransport, Transport
from stoker.wire.client.trust import Credentials

if TYPE_CHECKING:
    from pathlib import Path

    from stoker.wire.client.async_transport import AsyncTransport, PortConnection
    from stoker.wire.client.exec_session import SessionConnection
    from stoker.wire.client.http_message import Request
    from stoker.wire.rest.exec_session import AttachQuery, ExecQuery
    from stoker.wire.rest.forward import ForwardQuery
    from stoker.wire.rest.job import JobListQuery, JobView
    from stoker.wire.rest.log import LogQuery

Answer = TypeVar("Answer")


class Client(ClientMethods):
    """One user's way to one cluster. Not for use by several threads at once."""

    _transport: Transport

    def __init__(  # noqa: PLR0913  # options of the public client: each has a default and is given by its name
        self,
        servers: str = DEFAULT_SERVER,
        *,
        token: str = "",
        ca_file: str = "",
        insecure: bool = False,
        private: bool = False,
        patience_s: float = PATIENCE_S,
        pause: Callable[[float], object] = sleep_blocking,
        notify: Callable[[Notice], object] = ignore_notice,
    ) -> None:
        """`servers` has commas between several: an active one and its standbys, in any order. The `token` is sent with
        each request, and to no other server; empty = none is.

        It is sent once a server has proved who it is. `ca_file` has the authorities, as PEM, that https servers are
        verified against; empty = the one whose fingerprint the token carries, or else this system's. Over plain http
        a token goes to a server of this account, of root or of the account `stoker` on this machine alone, unless
        `insecure`. With `private` nothing at all goes to any other, as befits the values of secrets.

        For up to `patience_s` seconds a request is repeated that may be, while no server answers, none is active or
        each says that it can't now; 0 = say so at once. `pause` blocks for seconds. `notify` is told when an answer
        comes from a standby, and may be old, and when a request is being repeated.

        Raises: StokerError `bad_server` or `bad_token`.
        """
        shown = Credentials(token, ca_file, insecure, private)
        self._transport = Transport(servers, credentials=shown, patience_s=patience_s, pause=pause, notify=notify)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Hang up. Jobs aren't touched."""
        self._transport.close()

    def each_job(self, query: JobListQuery | None = None) -> Iterator[JobView]:
        """List every job that matches, newest first, page by page; `query.limit` and `query.after` are ours to set."""
        return self._each(follow.each_job(query))

    def follow_logs(self, job_id: str, query: LogQuery | None = None) -> Iterator[LogPart]:
        """Follow a rank's output as it is written, every byte once, over all attempts, until the job ends.

        `query` says which `rank`, at which `attempt` only, and with how many lines of `tail` to begin.

        Raises: StokerError as `logs`, but what time may lift is waited out.
        """
        return self._each(follow.follow(job_id, query))

    def _run(self, steps: Steps[Answer]) -> Answer:
        return self._transport.run(steps)

    def _each(self, stream: Stream[Answer]) -> Iterator[Answer]:
        while (found := self._run(until_yield(stream))) is not None:
            yield found.value


class SocketClient(Client):
    """Client of the control plane on this machine that listens on a Unix socket. It asks no other."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._transport = SocketTransport(path)


class AsyncClient(ClientMethods):
    """As `Client`, for any number of tasks of one event loop at once."""

    _transport: AsyncTransport

    def __init__(
        self,
        servers: str = DEFAULT_SERVER,
        *,
        token: str = "",
        ca_file: str = "",
        insecure: bool = False,
        patience_s: float = PATIENCE_S,
        notify: Callable[[Notice], object] = ignore_notice,
    ) -> None:
        """As `Client`. Raises: StokerError `bad_server` or `bad_token`."""
        from stoker.wire.client.async_transport import AsyncTransport  # commands that block need no event loop

        shown = Credentials(token, ca_file, insecure)
        self._transport = AsyncTransport(servers, credentials=shown, patience_s=patience_s, notify=notify)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Hang up. Jobs aren't touched."""
        await self._transport.close()

    def each_job(self, query: JobListQuery | None = None) -> AsyncIterator[JobView]:
        """List every job that matches, newest first, as `Client.each_job`."""
        return self._each(follow.each_job(query))

    def follow_logs(self, job_id: str, query: LogQuery | None = None) -> AsyncIterator[LogPart]:
        """Follow a rank's output as it is written, as `Client.follow_logs`."""
        return self._each(follow.follow(job_id, query))

    async def _run(self, steps: Steps[Answer]) -> Answer:
        return await self._transport.run(steps)

    async def _each(self, stream: Stream[Answer]) -> AsyncIterator[Answer]:
        while (found := await self._run(until_yield(stream))) is not None:
            yield found.value

    async def _connect_session(self, request: Request) -> SessionConnection:
        return await self._transport.connect_session(request)

    async def _connect(self, job_id: str, query: ForwardQuery) -> PortConnection:
        return await self._transport.connect(request_to(endpoints.FORWARD, job_id, query=query))


async def connect_to_session(client: AsyncClient, job_id: str, query: ExecQuery | AttachQuery) -> SessionConnection:
    """Connect to a program that is executed in a running job, or to the job's own terminal, as `stoker exec` does.

    Raises: StokerError `not_running`, `not_allowed`, `no_terminal`, `session_over`, `node_unreachable`, `exec_failed`
    or another refusal.
    """
    from stoker.wire.rest.exec_session import ExecQuery

    row = endpoints.EXEC if isinstance(query, ExecQuery) else endpoints.ATTACH
    return await client._connect_session(request_to(row, job_id, query=query))


async def connect_to_port(client: AsyncClient, job_id: str, query: ForwardQuery) -> PortConnection:
    """Connect to a port of a running job, as `stoker forward` does for each connection that it takes.

    Raises: StokerError `not_running`, `not_allowed`, `port_not_listening`, `node_unreachable`, `forward_unavailable` or
    `too_many_forwards`.
    """
    return await client._connect(job_id, query)
