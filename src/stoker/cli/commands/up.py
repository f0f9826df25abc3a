"""Command `stoker up`: a whole cluster on this machine, in the foreground."""

from pathlib import Path
from typing import Final

import click

from stoker.cli.options import OnceCommand

NODES: Final = 2
GPUS_PER_NODE: Final = 4
GPU_MODEL: Final = "NVIDIA H100 80GB HBM3"


@click.command(cls=OnceCommand)
@click.option("--nodes", type=click.IntRange(1, 64), help=f"Simulated nodes. [default: {NODES}]")
@click.option("--gpus-per-node", type=click.IntRange(1, 64), help=f"GPUs of each. [default: {GPUS_PER_NODE}]")
@click.option("--gpu-model", help=f'What they pretend to be. [default: "{GPU_MODEL}"]')
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep queue and output there over restarts. [default: a temporary folder, removed at the end]",
)
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on: loopback, unless --insecure."
)
@click.option("--insecure", is_flag=True, help="Serve whoever reaches --host, without a token.")
@click.option("--http-port", type=click.IntRange(1, 65_535), default=8080, show_default=True, help="Port of REST.")
@click.option("--grpc-port", type=click.IntRange(1, 65_535), default=9090, show_default=True, help="Port for agents.")
@click.option("--node-prefix", default="node", hidden=True)
@click.option("--stop-grace", type=click.IntRange(0, 3_600), default=10, hidden=True)
@click.option("--ends-with-parent", is_flag=True, hidden=True)
def up(
    nodes: int | None, gpus_per_node: int | None, gpu_model: str | None, ends_with_parent: bool, **where: object
) -> None:
    """Run a whole cluster on this machine, in the foreground.

    Nodes are processes; jobs are processes too and run as the account that starts this. GPUs are those that NVML
    or nvidia-smi finds, as one node; where there are none, or where --nodes, --gpus-per-node or --gpu-model is given,
    they are simulated.

    It serves the account that starts it, on this machine, and wants no token.

    Ctrl-C and SIGTERM end everything, jobs included; a second Ctrl-C kills at once. With --data-dir the queue is kept,
    and jobs that were running start anew with the next `stoker up` on that folder.

    \b
    Examples:
      stoker up
      stoker up --nodes 4 --gpus-per-node 8 --data-dir ./cluster
    """
    from stoker.cli.foreground import quiet_grpc

    quiet_grpc()
    from stoker.cli.wiring.up import run_up

    asked = nodes is not None or gpus_per_node is not None or gpu_model is not None
    simulated = {
        "nodes": nodes or NODES,
        "gpus_per_node": gpus_per_node or GPUS_PER_NODE,
        "gpu_model": gpu_model or GPU_MODEL,
    }
    run_up(simulated, where, must_simulate=asked, ends_with_parent=ends_with_parent)
