"""`stoker gpu`: GPUs, and the jobs that hold them."""

from typing import TYPE_CHECKING

import click

from stoker.cli.display.gpu_figures import memory_used, power, remark, temperature, utilization
from stoker.cli.display.node_details import health_text, holder_text
from stoker.cli.display.output import show_rows
from stoker.cli.display.table import Column, fields
from stoker.cli.options import OnceGroup
from stoker.cli.server import connect, table_answer_options

if TYPE_CHECKING:
    from stoker.wire.rest.node import GpuView


def _columns() -> "list[Column[GpuView]]":
    from stoker.brain.domain.gpu import index_text

    return [
        Column("NODE", lambda gpu: gpu.node),
        Column("GPU", lambda gpu: index_text(gpu.device_index), right=True),
        Column("MODEL", lambda gpu: gpu.model + (" (simulated)" if gpu.simulated else ""), elastic=True),
        Column("MEMORY", lambda gpu: f"{gpu.memory_mb} MiB", right=True),
        Column("STATUS", lambda gpu: gpu.status, coloured=True),
        Column("JOB", holder_text, right=True),
        Column("USE", lambda gpu: utilization(gpu.figures), right=True),
        Column("USED", lambda gpu: memory_used(gpu.figures), right=True),
        Column("TEMP", lambda gpu: temperature(gpu.figures), right=True),
        Column("POWER", lambda gpu: power(gpu.figures), right=True),
        Column("REMARK", _remark, elastic=True),
        Column("UUID", lambda gpu: gpu.uuid, elastic=True),
        *fields("NOTE", "ID", wide=True),
        Column("UPDATED", lambda gpu: gpu.updated_at, wide=True, instant=True),
    ]


def _remark(gpu: "GpuView") -> str:
    shared = "temperature and power are the whole GPU's" if gpu.figures and gpu.figures.of_whole_gpu else ""
    return "; ".join(filter(None, (health_text(gpu), remark(gpu.figures), shared)))


@click.group(cls=OnceGroup)
def gpu() -> None:
    """Show GPUs.

    \b
    Examples:
      stoker gpu list
    """


@gpu.command("list")
@table_answer_options
def list_gpus(form: str) -> None:
    """Show every GPU and the job that holds it.

    \b
    Examples:
      stoker gpu list
      stoker gpu list --json
    """
    found = connect().gpus()
    show_rows(form, _columns(), found.gpus, found)
