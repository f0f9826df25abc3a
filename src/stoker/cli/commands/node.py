"""Commands `stoker node ...`: the machines of the cluster, their drains, labels and taints.

Labels and taints are written as for kubectl: `KEY=VALUE` sets, `KEY-` takes off.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from stoker.cli.completion import NODE, nodes
from stoker.cli.display.node_details import labels_line, node_columns, node_pairs, taints_line
from stoker.cli.display.output import show_lines, show_pairs, show_rows
from stoker.cli.display.safe_text import visible
from stoker.cli.options import OnceGroup
from stoker.cli.server import answer_options, connect, table_answer_options

if TYPE_CHECKING:
    from stoker.wire.rest.node import NodeView


@click.group(cls=OnceGroup)
def node() -> None:
    """Show nodes, label, taint, drain and resume them.

    \b
    Examples:
      stoker node list
      stoker node drain gpu-07 --reason "replace fan"
      stoker node label gpu-07 zone=a
    """


@node.command("list")
@table_answer_options
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
@answer_options
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
@answer_options
def drain(name: str, reason: str, form: str) -> None:
    """Give a node no new work. What runs there runs on.

    \b
    Examples:
      stoker node drain gpu-07 --reason "replace fan"
    """
    _show(form, connect().drain(name, reason))


@node.command()
@click.argument("name", type=NODE)
@answer_options
def resume(name: str, form: str) -> None:
    """Give a node work again that was drained, or that pauses because starts failed there.

    \b
    Examples:
      stoker node resume gpu-07
    """
    _show(form, connect().resume(name))


@node.command()
@click.argument("name", type=NODE)
@click.option("--force", is_flag=True, help="Also end what it holds, without proof that its processes are gone.")
@answer_options
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


@node.command()
@click.argument("name", type=NODE)
@answer_options
def reset(name: str, form: str) -> None:
    """Forget the key by which a node is known, at once: its machine was set up anew, or its key has leaked.

    What runs there runs on, and is known again once the node has joined again with a new join token.

    \b
    Examples:
      stoker node reset gpu-07
    """
    client = connect()
    keys = [each for each in client.tokens().tokens if each.role == "agent" and each.node == name]
    for key in keys:
        client.revoke_token(key.id)
    said = "is known by no key any more" if keys else "hasn't joined with a key: there was nothing to forget"
    show_lines(form, [f"node {visible(name)} {said}"], {"node": name, "keys": [key.id for key in keys]})


@node.command()
@click.argument("name", shell_complete=nodes)
@click.argument("changes", metavar="KEY=VALUE|KEY-...", nargs=-1, required=True)
@answer_options
def label(name: str, changes: tuple[str, ...], form: str) -> None:
    """Set labels on a node, or take some off.

    What is set here wins over the labels that the node's agent names in its agent.yaml, and stays when the agent or
    the control plane restarts. Jobs ask for labels with --where.

    \b
    Examples:
      stoker node label gpu-07 zone=a disk=ssd
      stoker node label gpu-07 disk-
    """
    from stoker.brain.domain.label import parse_label_changes

    labels, remove = parse_label_changes(changes)
    client = connect()
    if remove:
        _say_missing(name, "label", remove, tuple(client.node(name).labels))
    found = client.label(name, labels, remove)
    show_lines(form, [f"node {found.name} has the labels: {labels_line(found)}"], found)


@node.command()
@click.argument("name", shell_complete=nodes)
@click.argument("changes", metavar="KEY[=VALUE]:NoSchedule|KEY-...", nargs=-1, required=True)
@answer_options
def taint(name: str, changes: tuple[str, ...], form: str) -> None:
    """Put taints on a node, or take some off.

    A taint keeps new jobs away unless they tolerate it (--tolerate KEY, --tolerate KEY=VALUE). What runs there goes
    on.

    \b
    Examples:
      stoker node taint gpu-07 gpu=suspect:NoSchedule
      stoker node taint gpu-07 gpu-
    """
    from stoker.brain.domain.label import parse_taint_changes, taint_text

    taints, remove = parse_taint_changes(changes)
    client = connect()
    if remove:
        _say_missing(name, "taint", remove, tuple(client.node(name).taints_by))
    found = client.taint(name, list(map(taint_text, taints)), remove)
    show_lines(form, [f"node {found.name} has the taints: {taints_line(found) or 'none'}"], found)


def _say_missing(name: str, what: str, remove: Sequence[str], there: Sequence[str]) -> None:
    """Taking off what isn't there is no fault, but may be a typing error."""
    for key in remove:
        if key not in there:
            click.echo(f"note: node {visible(name)} has no {what} {key}", err=True)


def _show(form: str, found: "NodeView") -> None:
    show_lines(form, [f"node {found.name} is {found.state.value}"], found)
