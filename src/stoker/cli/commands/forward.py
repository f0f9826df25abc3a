"""Command `stoker forward`: a port of a job as a port of this machine.

Rules: L1  it listens on 127.0.0.1 alone, unless --address names another: who reaches it reaches the job
       L2  each connection to it is one to the job, through the control plane; many may be open at once
       L3  a connection that can't be made is told in one line, and it goes on listening
       L4  it ends with Ctrl-C, or once the job doesn't run any more, whether or not anybody connects
       L5  who wouldn't be let through is refused before anything listens
"""

import asyncio
import os
import re
from typing import TYPE_CHECKING, Final

import click

from stoker.brain.domain.errors import StokerError, refusal_error
from stoker.cli.completion import OPEN_JOB
from stoker.cli.foreground import run_until_signal
from stoker.cli.options import OnceCommand
from stoker.cli.server import credentials_of, server_option, servers_of

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
_RANKED: Final = re.compile(r"(.+)\.([0-9]{1,6})")
_PORTS: Final = re.compile(r"(?:([0-9]{1,5}):)?([0-9]{1,5})")


@click.command(cls=OnceCommand)
@click.argument("job_id", metavar="ID[.RANK]", type=OPEN_JOB)
@click.argument("ports", metavar="[LOCAL:]PORT")
@click.option(
    "--address",
    default="127.0.0.1",
    show_default=True,
    metavar="A",
    help="Where to listen. Whoever reaches another address than this machine's own reaches the job.",
)
@server_option
@click.pass_context
def forward(ctx: click.Context, job_id: str, ports: str, address: str) -> None:
    """Reach a port of a running job, such as that of a notebook, on this machine.

    The connections go through the control plane to the node, with your rights: only the job's owner and admins are let
    through, and only to what the job itself serves. It goes on until Ctrl-C, or until the job ends.

    \b
    Examples:
      stoker forward 7 8888
      stoker forward 7.1 9000:8888
    """
    found = _RANKED.fullmatch(job_id)
    job, rank = (found[1], int(found[2])) if found else (job_id, 0)
    local, port = _ports_in(ports)
    from stoker.wire.client import AsyncClient, ForwardQuery

    shown = credentials_of(ctx)

    async def run(stop: asyncio.Event) -> None:
        client = AsyncClient(servers_of(ctx), token=shown.token, ca_file=shown.ca_file, insecure=shown.insecure)
        async with client:
            await _check(client, job, ForwardQuery(port=port, rank=rank, check=True))
            await _Forwarding(client, job, ForwardQuery(port=port, rank=rank)).serve(address, local, stop)

    run_until_signal(run)


def _ports_in(text: str) -> tuple[int, int]:
    """The port here and that of the job."""
    found = _PORTS.fullmatch(text)
    numbers = [int(each or found[2]) for each in found.groups()] if found else []
    if not numbers or not all(0 < number <= 65_535 for number in numbers):
        raise click.BadParameter(f"{text!r} is neither PORT nor LOCAL:PORT, with numbers from 1 to 65535")
    return numbers[0], numbers[1]


async def _check(client: "AsyncClient", job: str, query: "ForwardQuery") -> None:
    """Raises: StokerError, as a connection would be refused (L5)."""
    from stoker.wire.client.clients import connect_to_port

    await (await connect_to_port(client, job, query)).close()


class _Forwarding:
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
