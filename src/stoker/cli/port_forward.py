"""A port of this machine that leads to one of a job, through the control plane.

Rules: L1  it listens on 127.0.0.1 alone, unless --address names another: who reaches it reaches the job
       L2  each connection to it is one to the job, through the control plane; many may be open at once
       L3  a connection that can't be made is told in one line, and it goes on listening
       L4  it ends with Ctrl-C, or once the job doesn't run any more, whether or not anybody connects
       L5  who wouldn't be let through is refused before anything listens
"""

import asyncio
import os
from typing import TYPE_CHECKING, Final

import click

from stoker.brain.domain.errors import StokerError, refusal_error

if TYPE_CHECKING:
    from stoker.wire.client import AsyncClient, ForwardQuery
    from stoker.wire.client.async_transport import PortConnection

CONNECTIONS_MAX: Final = 64
"""As many as the control plane gives one person; more wait in the queue of the listener."""
LOOK_S: Final = 3.0
"""Between looks at whether the job still runs."""
_LIVE: Final = frozenset({"starting", "running", "stopping"})
_PIECE_BYTES: Final = 32 << 10
_ENDS: Final = frozenset(
    {"not_running", "attempt_unknown", "job_unknown", "job_forgotten", "not_allowed", "token_unknown"}
)
"""Refusals that no further connection gets round."""


async def check_port(client: "AsyncClient", job: str, query: "ForwardQuery") -> None:
    """Make a connection and end it. Raises: StokerError, as a connection would be refused (L5)."""
    from stoker.wire.client.clients import connect_to_port

    await (await connect_to_port(client, job, query)).close()


class PortForward:
    """One port of this machine that leads to one port of a job."""

    def __init__(self, client: "AsyncClient", job: str, query: "ForwardQuery") -> None:
        self._client = client
        self._job = job
        self._query = query
        self._open: set[asyncio.Task[None]] = set()
        self._over: asyncio.Future[None]

    async def serve(self, address: str, local: int, stop: asyncio.Event) -> None:
        """Listen until `stop` is set. Raises: StokerError."""
        self._over = asyncio.get_running_loop().create_future()
        try:
            server = await asyncio.start_server(self._take, address, local)
        except OSError as fault:
            raise _port_in_use(address, local, self._query.port, fault) from fault
        shown = f"[{address}]" if ":" in address else address
        task = f"rank {self._query.rank} of job {self._job}" if self._query.rank else f"job {self._job}"
        click.echo(f"http://{shown}:{local} is port {self._query.port} of {task}; Ctrl-C ends it")
        stopping = asyncio.ensure_future(stop.wait())
        try:
            while not (stopping.done() or self._over.done()):
                await asyncio.wait((stopping, self._over), timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
                await self._look()
        finally:
            stopping.cancel()
            server.close()
            for each in self._open:
                each.cancel()
            await asyncio.gather(*self._open, return_exceptions=True)
        if self._over.done():
            self._over.result()

    async def _look(self) -> None:
        """See whether the job still runs (L4). A control plane that doesn't answer is no reason to end."""
        try:
            job = await self._client.job(self._job)
        except StokerError as fault:
            if fault.refusal.code in _ENDS and not self._over.done():
                self._over.set_exception(fault)
            return
        if job.state not in _LIVE and not self._over.done():
            click.echo(f"job {self._job} runs no more: it is {job.state}", err=True)
            self._over.set_result(None)

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "a connection is served by a task"
        self._open.add(task)
        try:
            if len(self._open) <= CONNECTIONS_MAX:
                await self._carry(reader, writer)
        finally:
            self._open.discard(task)
            writer.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from stoker.wire.client.clients import connect_to_port

        try:
            port = await connect_to_port(self._client, self._job, self._query)
        except StokerError as fault:  # L3
            if fault.refusal.code in _ENDS and not self._over.done():
                self._over.set_exception(fault)
            elif not self._over.done():
                click.echo(f"{fault.refusal.message}; {fault.refusal.hint}", err=True)
            return
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(_there(reader, port))
                both.create_task(_back(port, writer))
        except* OSError:
            writer.transport.abort()
        finally:
            await port.close()


async def _there(reader: asyncio.StreamReader, port: "PortConnection") -> None:
    while data := await reader.read(_PIECE_BYTES):
        await port.write(data)
    await port.end()


async def _back(port: "PortConnection", writer: asyncio.StreamWriter) -> None:
    while data := await port.read():
        writer.write(data)
        await writer.drain()
    writer.write_eof()


def _port_in_use(address: str, local: int, port: int, fault: OSError) -> StokerError:
    free = local + 10_000 if local < 50_000 else local - 10_000
    return refusal_error(
        "port_in_use",
        f"nothing can listen on {address}:{local} here: {os.strerror(fault.errno or 0)}",
        f"another `stoker forward` or program may have it; choose another one: `{free}:{port}`",
        port=local,
    )
