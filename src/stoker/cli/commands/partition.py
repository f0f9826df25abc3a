"""Commands `stoker partition ...`: named selections of nodes with time limits of their own."""

from typing import TYPE_CHECKING, Any, Final

import click

from stoker.cli.completion import partitions
from stoker.cli.display.formatting import duration
from stoker.cli.display.output import show_lines, show_pairs, show_rows
from stoker.cli.display.table import Column, fields
from stoker.cli.options import OnceGroup, adding, with_options
from stoker.cli.server import answer_options, connect, table_answer_options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stoker.wire.rest.partition import PartitionView

NONE: Final = "none"
_described: Final = with_options(
    adding("--where", "SEL", "Nodes by their labels, such as 'zone=a,disk!=hdd'."),
    adding("--exclude", "NODES", "Names of nodes to leave out, with commas between them."),
    click.option("--tolerate", metavar="T", multiple=True, help="A taint that doesn't repel its jobs: KEY, KEY=VALUE."),
    click.option("--time", "time_default", metavar="T", help="Limit of jobs that name none: 30 (minutes), 2h."),
    click.option("--time-max", metavar="T", help="The longest limit that a job may ask for."),
    click.option("--comment", metavar="TEXT", help="For people."),
)
"""Options that make up a partition."""


def _columns() -> "list[Column[PartitionView]]":
    return [
        Column("NAME", lambda partition: partition.name),
        Column("NODES", lambda partition: f"{partition.ready_nodes}/{partition.nodes} ready", right=True),
        Column("GPUS", lambda partition: f"{partition.free_gpus}/{partition.total_gpus} free", right=True),
        Column("PENDING", lambda partition: partition.pending_jobs, right=True),
        Column("RUNNING", lambda partition: partition.running_jobs, right=True),
        Column("TIME", lambda partition: duration(partition.time_default_ms or None), right=True),
        Column("TIME MAX", lambda partition: duration(partition.time_max_ms or None), right=True),
        *fields("WHERE", "COMMENT", elastic=True),
        Column("EXCLUDE", lambda partition: ", ".join(partition.exclude), wide=True),
        Column("TOLERATES", lambda partition: ", ".join(partition.tolerate), wide=True),
    ]


@click.group(cls=OnceGroup)
def partition() -> None:
    """Show and define partitions: named selections of nodes.

    A partition may have times of its own, and tolerate taints for its jobs.

    \b
    Examples:
      stoker partition create big --where zone=a --time 1h --time-max 2d
      stoker partition list
      stoker submit --partition big --gpus 8 -- python train.py
    """


@partition.command("list")
@table_answer_options
def list_partitions(form: str) -> None:
    """Show every partition, with its nodes, GPUs and jobs.

    \b
    Examples:
      stoker partition list
      stoker partition list -o wide
    """
    found = connect().partitions()
    show_rows(form, _columns(), found, found)


@partition.command()
@click.argument("name", shell_complete=partitions)
@answer_options
def show(name: str, form: str) -> None:
    """Show one partition.

    \b
    Examples:
      stoker partition show big
    """
    found = connect().partition(name)
    show_pairs(form, _rows(found), found)


@partition.command()
@click.argument("name")
@_described
@answer_options
def create(name: str, form: str, **given: Any) -> None:  # noqa: ANN401  # click gives each option its own type
    """Make a partition. Without --where and --exclude it has every node.

    \b
    Examples:
      stoker partition create big --where 'zone in (a,b),!slow' --exclude gpu-7
      stoker partition create lab --where team=vision --tolerate team=vision
    """
    from stoker.wire.rest.partition import NewPartitionBody

    found = connect().create_partition(NewPartitionBody(name=name, **_fields(given)))
    show_lines(form, [f"partition {found.name} has {_size(found)}"], found)


@partition.command("set")
@click.argument("name", shell_complete=partitions)
@_described
@answer_options
def change(name: str, form: str, **given: Any) -> None:  # noqa: ANN401  # click gives each option its own type
    """Change what is given, and leave the rest.

    An empty text takes something away: --where '', --tolerate ''. --time none and --time-max none go back to the
    cluster's. Jobs that are in keep the limits that they have.

    \b
    Examples:
      stoker partition set big --time-max 3d
      stoker partition set big --exclude gpu-07,gpu-08
    """
    from stoker.wire.rest.partition import PartitionBody

    changes = _fields(given)
    if not changes:
        raise click.UsageError("nothing to change was given: see --help for what can be")
    client = connect()
    old = client.partition(name)
    before: dict[str, Any] = {each: getattr(old, each) for each in ("where", "exclude", "tolerate", "comment")}
    before |= {each: _seconds(getattr(old, f"{each}_ms")) for each in ("time_default", "time_max")}
    found = client.put_partition(name, PartitionBody(**(before | changes)))
    show_lines(form, [f"partition {found.name} has {_size(found)}"], found)


@partition.command()
@click.argument("name", shell_complete=partitions)
@answer_options
def delete(name: str, form: str) -> None:
    """Delete a partition that no waiting or running job names. Nodes stay as they are.

    \b
    Examples:
      stoker partition delete big
    """
    found = connect().delete_partition(name)
    show_lines(form, [f"partition {found.name} is deleted"], found)


def _fields(given: dict[str, Any]) -> dict[str, Any]:
    """The options that were given, as the body of a request names them."""
    fields: dict[str, Any] = {
        name: given[name] for name in ("where", "exclude", "comment") if given.get(name) is not None
    }
    if given["tolerate"]:
        fields["tolerate"] = [text for each in given["tolerate"] for text in each.split(",") if text]
    for name in ("time_default", "time_max"):
        if given.get(name) is not None:
            fields[name] = None if given[name].lower() == NONE else given[name]
    return fields


def _seconds(ms: int) -> str | None:
    """A time limit in milliseconds as the text of a request."""
    return f"{ms // 1_000}s" if ms else None


def _size(partition: "PartitionView") -> str:
    from stoker.brain.domain.units import counted

    return f"{counted(partition.nodes, 'node')} with {counted(partition.total_gpus, 'GPU')}"


def _rows(partition: "PartitionView") -> "Iterator[tuple[str, object]]":
    yield "partition", partition.name
    yield "comment", partition.comment
    yield "where", partition.where
    yield "exclude", ", ".join(partition.exclude)
    yield "tolerates", ", ".join(partition.tolerate)
    yield "time", duration(partition.time_default_ms or None) or "the cluster's"
    yield "time max", duration(partition.time_max_ms or None) or "the cluster's"
    yield "nodes", f"{partition.ready_nodes} of {partition.nodes} ready"
    yield "gpus", f"{partition.free_gpus} of {partition.total_gpus} free"
    yield "jobs", f"{partition.pending_jobs} pending, {partition.running_jobs} running"
