"""Client of the REST interface for Python programs with an event loop.

    async with AsyncClient("http://127.0.0.1:8080") as client:
        job = await client.submit(JobBody(command=["python", "train.py"], gpu_count=4))
        job = await client.wait(job.id)

The methods, their answers and what they raise are those of `Client`, and many tasks may call them at once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from stoker.wire.client import follow
from stoker.wire.client.async_transport import AsyncTransport, drive
from stoker.wire.client.calls import LogPart, Steps, Stream, until_yield
from stoker.wire.client.methods import ClientMethods
from stoker.wire.client.retry import PATIENCE_S
from stoker.wire.client.servers import DEFAULT_SERVER
from stoker.wire.client.staleness import Notice, ignore_notice
from stoker.wire.rest.log import LogQuery

if TYPE_CHECKING:
    from stoker.wire.rest.job import JobListQuery, JobView

Answer = TypeVar("Answer")


class AsyncClient(ClientMethods):
    """One user's way to one cluster, for any number of tasks of one event loop."""

    _transport: AsyncTransport

    def __init__(
        self,
        servers: str = DEFAULT_SERVER,
        *,
        token: str = "",
        patience_s: float = PATIENCE_S,
        notify: Callable[[Notice], object] = ignore_notice,
    ) -> None:
        """As `Client`. Raises: StokerError `bad_server` or `bad_token`."""
        self._transport = AsyncTransport(servers, token=token, patience_s=patience_s, notify=notify)

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
        return self._each(follow.follow(job_id, query or LogQuery()))

    async def _run(self, steps: Steps[Answer]) -> Answer:
        return await drive(steps, self._transport.perform)

    async def _each(self, stream: Stream[Answer]) -> AsyncIterator[Answer]:
        while (found := await self._run(until_yield(stream))) is not None:
            yield found.value
