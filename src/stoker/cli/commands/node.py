"""`stoker node`: which machines are there, and what may be said to one?"""

from typing import TYPE_CHECKING

import click

from stoker.cli.commands.label import label, taint
from stoker.cli.display.node_details import node_columns, node_pairs
from stoker.cli.display.output import output_options, show_lines, show_pairs, show_rows
from stoker.cli.id_types import NODE
from stoker.cli.server import connect, server_option

if TYPE_CHECKING:
    from stoker.wire.rest.node import NodeView


@click.group()
def node() -> None:
    """Show nodes, label, taint, drain and resume them.

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
    show_rows(form, node_columns(), found, found)


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
    show_pairs(form, node_pairs(found), found)


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
