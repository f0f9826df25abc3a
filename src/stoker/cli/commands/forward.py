"""Command `stoker forward`: a port of a job as a port of this machine."""

import re
from typing import TYPE_CHECKING, Final

import click

from stoker.cli.completion import OPEN_JOB
from stoker.cli.options import OnceCommand
from stoker.cli.server import credentials_of, server_option, servers_of

if TYPE_CHECKING:
    import asyncio

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
    # What follows loads an event loop, and this module is loaded wherever all commands are listed.
    from stoker.cli.foreground import run_until_signal
    from stoker.cli.port_forward import PortForward, check_port
    from stoker.wire.client import AsyncClient, ForwardQuery

    shown = credentials_of(ctx)

    async def run(stop: "asyncio.Event") -> None:
        client = AsyncClient(servers_of(ctx), token=shown.token, ca_file=shown.ca_file, insecure=shown.insecure)
        async with client:
            await check_port(client, job, ForwardQuery(port=port, rank=rank, check=True))
            await PortForward(client, job, ForwardQuery(port=port, rank=rank)).serve(address, local, stop)

    run_until_signal(run)


def _ports_in(text: str) -> tuple[int, int]:
    """The port here and that of the job."""
    found = _PORTS.fullmatch(text)
    numbers = [int(each or found[2]) for each in found.groups()] if found else []
    if not numbers or not all(0 < number <= 65_535 for number in numbers):
        raise click.BadParameter(f"{text!r} is neither PORT nor LOCAL:PORT, with numbers from 1 to 65535")
    return numbers[0], numbers[1]
