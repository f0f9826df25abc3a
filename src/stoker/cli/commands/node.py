"""`stoker node`: which machines are there, and what may be said to one?"""

from typing import TYPE_CHECKING

import click

from stoker.cli.commands.label import label, labels_line, taint, taints_line
from stoker.cli.id_types import NODE
from stoker.cli.output import output_options, show_lines, show_pairs, show_rows
from stoker.cli.server import connect, server_option
from stoker.cli.table import Column

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from stoker.wire.rest.node import NodeView


def _columns() -> "list[Column[NodeView]]":
    return [
        Column("NAME", lambda node: node.name),
        Column("STATE", lambda node: node.state.value, coloured=True),
        Column("GPUS", lambda node: f"{node.free.gpus}/{len(node.gpus)} free", right=True),
        Column("MODEL", _models, elastic=True),
        Column("CPUS", lambda node: f"{node.free.cpus}/{node.cpus} free", right=True),
        Column("MEMORY", lambda node: f"{node.free.memory_mb >> 10}/{node.memory_mb >> 10} GiB free", right=True),
        Column("JOBS", lambda node: len(node.jobs), right=True),
        Column("NOTE", _note, elastic=True),
        Column("LABELS", labels_line, wide=True),
        Column("TAINTS", taints_line, wide=True),
        Column("ADDRESS", lambda node: node.address, wide=True),
        Column("VERSION", lambda node: node.version, wide=True),
        Column("REGISTERED", lambda node: node.registered_at, wide=True),
        Column("JOB IDS", lambda node: ",".join(node.jobs), wide=True),
        Column("GPU UUIDS", lambda node: ",".join(gpu.uuid for gpu in node.gpus), wide=True),
    ]


def _models(node: "NodeView") -> str:
    return ", ".join(dict.fromkeys(gpu.model for gpu in node.gpus)) + (" (simulated)" if node.simulated else "")


def _note(node: "NodeView") -> str:
    parts = [f"drained: {node.drain}" if node.drain else "drained" if node.drain is not None else ""]
    parts.append(f"silent since {node.silent_since}" if node.silent_since else "")
    parts.append(f"{len(node.strays)} tasks to clear away" if node.strays else "")
    return "; ".join(filter(None, parts))


@click.group()
def node() -> None:
    """Show nodes, label and taint them, and take them out of service or back.

    \b
    Examples:
      stoker node list
      stoker node drain gpu-07 --reason "replace fan"
      stoker node label gpu-07 zone=a
    """


@node.command("list")
@output_options
@server_option
def list_nodes(form: str) -> None:
    """Show every node.

    \b
    Examples:
      stoker node list
      stoker node list -o wide
    """
    found = connect().nodes()
    show_rows(form, _columns(), found, found)


@node.command()
@click.argument("name", type=NODE)
@output_options
@server_option
def show(name: str, form: str) -> None:
    """Show one node with its GPUs and jobs.

    \b
    Examples:
      stoker node show gpu-07
    """
    found = connect().node(name)
    show_pairs(form, _rows(found), found)


@node.command()
@click.argument("name", type=NODE)
@click.option("--reason", default="", help="Why, for people.")
@output_options
@server_option
def drain(name: str, reason: str, form: str) -> None:
    """Give a node no new work. What runs there runs on.

    \b
    Examples:
      stoker node drain gpu-07 --reason "replace fan"
    """
    _show(form, connect().drain(name, reason))


@node.command()
@click.argument("name", type=NODE)
@output_options
@server_option
def resume(name: str, form: str) -> None:
    """Give a drained node work again.

    \b
    Examples:
      stoker node resume gpu-07
    """
    _show(form, connect().resume(name))


@node.command()
@click.argument("name", type=NODE)
@click.option("--force", is_flag=True, help="Also end what it holds, without proof that its processes are gone.")
@output_options
@server_option
def forget(name: str, force: bool, form: str) -> None:
    """Drop a node that won't come back.

    Without --force it must hold nothing. With --force its jobs are requeued or end `node_failed`: say it only when
    the machine is off, or a job could run twice.

    \b
    Examples:
      stoker node forget gpu-07
      stoker node forget gpu-07 --force
    """
    _show(form, connect().forget(name, force=force))


node.add_command(label)
node.add_command(taint)


def _show(form: str, found: "NodeView") -> None:
    show_lines(form, [f"node {found.name} is {found.state.value}"], found)


def _marks(node: "NodeView") -> "Iterator[tuple[str, object]]":
    """Labels and taints, and which of them people have a hand in."""
    yield "labels", labels_line(node)
    yield from _hands(node.labels_by, node.labels_off)
    yield "taints", taints_line(node)
    yield from _hands(node.taints_by, node.taints_off)


def _hands(by: "Mapping[str, str]", off: "Sequence[str]") -> "Iterator[tuple[str, object]]":
    if "people" in by.values():
        yield "  set by people", ", ".join(sorted(key for key, who in by.items() if who == "people"))
    if off:
        yield "  taken off", ", ".join(off)


def _rows(node: "NodeView") -> "Iterator[tuple[str, object]]":
    yield "node", node.name
    yield "state", node.state.value
    yield "note", _note(node)
    yield "address", node.address
    yield "cpus", f"{node.free.cpus} of {node.cpus} free"
    yield "memory", f"{node.free.memory_mb} of {node.memory_mb} MiB free"
    yield from _marks(node)
    yield "runs", ", ".join(node.executors)
    yield "version", node.version
    yield "registered", node.registered_at
    yield "boot id", node.boot_id
    yield "jobs", ", ".join(node.jobs)
    for gpu in node.gpus:
        holder = f", job {gpu.current_task}" if gpu.current_task else ""
        simulated = ", simulated" if gpu.simulated else ""
        yield f"gpu {gpu.device_index}", f"{gpu.uuid} {gpu.model}, {gpu.memory_mb} MiB{simulated}: {gpu.status}{holder}"
    for stray in node.strays:
        yield "to clear away", f"job {stray.job} attempt {stray.attempt} rank {stray.rank} on {len(stray.gpus)} GPUs"
