"""`stoker node label` and `stoker node taint`: what do selectors see of a node, and whom does it repel?

Words are those of kubectl: `KEY=VALUE` sets, `KEY-` takes off.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from stoker.cli.completion import nodes
from stoker.cli.display.output import output_options, show_lines
from stoker.cli.display.safe_text import visible
from stoker.cli.server import connect, server_option

if TYPE_CHECKING:
    from stoker.wire.rest.node import NodeView


@click.command()
@click.argument("name", shell_complete=nodes)
@click.argument("changes", metavar="KEY=VALUE|KEY-...", nargs=-1, required=True)
@output_options
@server_option
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


@click.command()
@click.argument("name", shell_complete=nodes)
@click.argument("changes", metavar="KEY[=VALUE]:NoSchedule|KEY-...", nargs=-1, required=True)
@output_options
@server_option
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


def labels_line(node: "NodeView") -> str:
    """Its labels, those that Stoker made last."""
    own = {key for key, by in node.labels_by.items() if by == "stoker"}
    ordered = sorted(node.labels.items(), key=lambda label: (label[0] in own, label[0]))
    return ", ".join(f"{key}={value}" for key, value in ordered)


def taints_line(node: "NodeView") -> str:
    return ", ".join(node.taints)
