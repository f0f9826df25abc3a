"""Commands `stoker tenant ...`: teams with their guarantees, limits and usage."""

from typing import TYPE_CHECKING, Any, Final

import click

from stoker.cli.completion import tenants
from stoker.cli.display.formatting import duration
from stoker.cli.display.output import show_lines, show_pairs, show_rows
from stoker.cli.display.safe_text import visible
from stoker.cli.display.table import Column, fields
from stoker.cli.options import AddOption, OnceGroup, with_options
from stoker.cli.server import answer_options, connect, table_answer_options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stoker.wire.rest.tenant import TenantView

NONE: Final = "none"
_DIGITS_MAX: Final = 15
_MIB: Final = 1024


class _Number(click.ParamType[int | str]):
    """Parameter type of a whole number, or `none`."""

    name = "number"

    def convert(self, value: int | str, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        text = str(value).strip().lower()
        if text == NONE:
            return NONE
        if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX):
            self.fail(f"{value!r} is not a whole number from 0 to {'9' * _DIGITS_MAX}; `none` takes it off", param, ctx)
        return int(text)


def _number(option: str, help_text: str) -> AddOption:
    return click.option(option, type=_Number(), metavar="N", help=help_text)


_SIZES: Final = {"max_gpu_memory": "max_gpu_memory_mb", "max_memory": "max_memory_mb"}
_OTHER_NAMES: Final = {
    "max_cpus": "max_cpu_cores",
    "max_jobs": "max_concurrent_jobs",
    "max_pending": "max_pending_jobs",
    "priority": "priority_tier",
}
"""Option -> field of the request, where they have different names."""
_LISTS: Final = frozenset({"nodes", "notify", "notify_to"})
_TEXTS: Final = frozenset({"email", "organization", "comment"})
_described: Final = with_options(
    _number("--max-gpus", "GPUs that its jobs may hold at once."),
    _number("--guaranteed-gpus", "GPUs kept for it while it has jobs that wait."),
    _number("--weight", "Its share among those beside it, 1 to 1000: 3 gets three times what 1 gets. [default: 1]"),
    click.option("--max-gpu-memory", metavar="SIZE", help="GPU memory that its jobs may ask for, such as 640GiB."),
    _number("--max-cpus", "CPUs that its jobs may hold at once."),
    click.option("--max-memory", metavar="SIZE", help="Host memory that its jobs may hold at once, such as 1TiB."),
    _number("--max-jobs", "Jobs and members of arrays that may run at once."),
    _number("--max-pending", "Jobs and members of arrays that may wait."),
    click.option("--max-time", metavar="T", help="The longest time limit of a job: 2d, 12h, 30 (minutes)."),
    click.option(
        "--priority",
        type=click.Choice(["low", "medium", "high", "critical", NONE]),
        help="Of its jobs by default, and at most: 100, 500, 1000, 2000.",
    ),
    click.option("--borrow/--no-borrow", default=None, help="Use more GPUs than its guarantee while they are idle."),
    click.option("--lend/--no-lend", default=None, help="Let others use what its guarantee leaves idle."),
    click.option(
        "--visibility",
        type=click.Choice(["owner", "tenant"]),
        help="Who sees its jobs in full and may change them: whose each is, or all its users.",
    ),
    click.option(
        "--nodes",
        metavar="GLOB[,GLOB]",
        help="Nodes that its jobs may run on, such as gpu-a*. [default: all that its parent may use]",
    ),
    click.option(
        "--notify", metavar="EVENTS", help="What is told of its jobs that say nothing: end,fail,start,wait>1h."
    ),
    click.option("--notify-to", metavar="TARGETS", help="Whom: mail:ada@example.org, webhook:NAME, https://..."),
    click.option("--email", metavar="TEXT", help="For people."),
    click.option("--organization", metavar="TEXT", help="For people."),
    click.option("--comment", metavar="TEXT", help="For people."),
)
"""Options that make up a tenant."""


def _columns() -> "list[Column[TenantView]]":
    return [
        Column("TENANT", lambda tenant: "  " * tenant.path.count("/") + tenant.name),
        Column("GPUS", lambda tenant: tenant.used.gpus, right=True),
        Column("GUARANTEED", lambda tenant: tenant.guaranteed_gpus, right=True),
        Column("BORROWED", lambda tenant: tenant.borrowed_gpus, right=True),
        Column("LIMIT", lambda tenant: tenant.limit_gpus, right=True),
        Column("RUNNING", lambda tenant: tenant.used.jobs, right=True),
        Column("PENDING", lambda tenant: tenant.pending_jobs, right=True),
        Column("PRIORITY", lambda tenant: tenant.priority_tier),
        Column("WEIGHT", lambda tenant: tenant.weight, right=True),
        Column("COMMENT", lambda tenant: tenant.comment, elastic=True),
        Column("CPUS", lambda each: _used(each.used.cpu_cores, each.max_cpu_cores), wide=True, right=True),
        Column("MEMORY", lambda each: _memory(each.used.memory_mb, each.max_memory_mb), wide=True, right=True),
        Column(
            "GPU MEMORY", lambda each: _memory(each.used.gpu_memory_mb, each.max_gpu_memory_mb), wide=True, right=True
        ),
        Column("JOBS MAX", lambda tenant: tenant.max_concurrent_jobs, wide=True, right=True),
        Column("PENDING MAX", lambda tenant: tenant.max_pending_jobs, wide=True, right=True),
        Column("TIME MAX", lambda tenant: duration(tenant.max_runtime_ms), wide=True, right=True),
        Column("BORROWS", lambda tenant: _yes(tenant.borrow), wide=True),
        Column("LENDS", lambda tenant: _yes(tenant.lend), wide=True),
        Column("NODES", lambda tenant: ", ".join(tenant.nodes), wide=True),
        *fields("VISIBILITY", "ORGANIZATION", "EMAIL", wide=True),
    ]


@click.group(cls=OnceGroup)
def tenant() -> None:
    """Show and define tenants: who shares the cluster, and how much of it each may use.

    Tenants form a tree: what a tenant may use holds for it and all tenants beneath it together. The tenant `default`
    is always there.

    \b
    Examples:
      stoker tenant create ml-team --max-gpus 10 --priority high
      stoker tenant list
      stoker submit --tenant ml-team --gpus 4 -- python train.py
    """


@tenant.command("list")
@table_answer_options
def list_tenants(form: str) -> None:
    """Show every tenant as a tree, with what it and those beneath it use.

    LIMIT is the lowest on the way up the tree.

    \b
    Examples:
      stoker tenant list
      stoker tenant list -o wide
    """
    found = connect().tenants()
    show_rows(form, _columns(), found, found)


@tenant.command()
@click.argument("name", shell_complete=tenants)
@answer_options
def show(name: str, form: str) -> None:
    """Show one tenant: what it is promised, may use at most, and uses.

    \b
    Examples:
      stoker tenant show ml-team
    """
    found = connect().tenant(name)
    show_pairs(form, _rows(found), found)
    _warn(found)


@tenant.command()
@click.argument("name")
@_described
@click.option("--parent", metavar="P", shell_complete=tenants, help="The tenant it is beneath. [default: at the top]")
@answer_options
def create(name: str, parent: str | None, form: str, **given: Any) -> None:  # noqa: ANN401  # click types each option
    """Make a tenant. A limit that isn't given is none.

    \b
    Examples:
      stoker tenant create ml-team --max-gpus 10 --priority high
      stoker tenant create vision --parent ml-team --guaranteed-gpus 4 --weight 3
    """
    from stoker.wire.rest.tenant import NewTenantBody

    described = _fields(given) | ({"parent": parent} if parent else {})
    found = connect().create_tenant(NewTenantBody(name=name, **described))
    _warn(found)
    show_lines(form, [f"tenant {found.name} {_short(found)}"], found)


@tenant.command("set")
@click.argument("name", shell_complete=tenants)
@_described
@answer_options
def change(name: str, form: str, **given: Any) -> None:  # noqa: ANN401  # click gives each option its own type
    """Change what is given, and leave the rest. `none` takes a limit off.

    What runs goes on, also beyond a new limit; nothing more starts until it is kept.

    \b
    Examples:
      stoker tenant set ml-team --max-gpus 16
      stoker tenant set ml-team --max-jobs none --no-lend
      stoker tenant set ml-team --nodes 'gpu-a*,gpu-b*'
      stoker tenant set ml-team --notify fail --notify-to webhook:ml-team
    """
    from stoker.wire.rest.tenant import TenantBody

    changes = _fields(given)
    if not changes:
        raise click.UsageError("nothing to change was given: see --help for what can be")
    found = connect().change_tenant(name, TenantBody(**changes))
    _warn(found)
    show_lines(form, [f"tenant {found.name} {_short(found)}"], found)


@tenant.command()
@click.argument("name", shell_complete=tenants)
@answer_options
def delete(name: str, form: str) -> None:
    """Delete a tenant that no waiting or running job, no token and no other tenant names.

    \b
    Examples:
      stoker tenant delete ml-team
    """
    found = connect().delete_tenant(name)
    show_lines(form, [f"tenant {found.name} is deleted"], found)


def _fields(given: dict[str, Any]) -> dict[str, Any]:
    """The options that were given, as the body of a request names them. Raises: StokerError `bad_size`, `bad_time`."""
    from stoker.wire.text import parse_duration, parse_memory_mb

    fields: dict[str, Any] = {}
    for option, value in given.items():
        is_none = option not in _TEXTS and str(value).lower() == NONE
        if option in _SIZES and value is not None:
            fields[_SIZES[option]] = None if is_none else parse_memory_mb(value)
        elif value is not None:
            if option == "max_time" and not is_none:
                parse_duration(value)
            if option in _LISTS and not is_none:
                value = tuple(filter(None, (each.strip() for each in value.split(","))))
            fields[_OTHER_NAMES.get(option, option)] = None if is_none else value
    return fields


def _warn(tenant: "TenantView") -> None:
    """Print what was promised and can't be kept as things are, on stderr whatever the form of the answer is."""
    for each in tenant.warnings:
        click.echo(f"warning: {visible(each)}", err=True)


def _short(tenant: "TenantView") -> str:
    from stoker.brain.domain.units import counted

    guaranteed = f"is guaranteed {counted(tenant.guaranteed_gpus, 'GPU')} and " if tenant.guaranteed_gpus else ""
    most = "as many GPUs as there are" if tenant.limit_gpus is None else f"at most {counted(tenant.limit_gpus, 'GPU')}"
    return f"{guaranteed}may use {most}"


def _used(used: int, most: int | None) -> str:
    return f"{used}" if most is None else f"{used}/{most}"


def _memory(used_mb: int, most_mb: int | None) -> str:
    return f"{_used(used_mb // _MIB, None if most_mb is None else most_mb // _MIB)} GiB"


def _yes(said: bool) -> str:  # one word for one word
    return "yes" if said else "no"


def _of_most(used: int | float, most: int | None, unit: str = "") -> str:
    return f"{used}{unit} used, {'no limit' if most is None else f'at most {most}{unit}'}"


def _rows(tenant: "TenantView") -> "Iterator[tuple[str, object]]":
    used, cap = tenant.used, tenant.priority_max
    yield "tenant", tenant.name
    yield "path", tenant.path
    yield "comment", tenant.comment
    yield "organization", tenant.organization
    yield "email", tenant.email
    tier = f"{tenant.priority_tier}: " if tenant.priority_tier else ""
    yield "priority", f"{tier}{tenant.priority_default} by default" + ("" if cap is None else f", at most {cap}")
    yield "gpus", _of_most(used.gpus, tenant.max_gpus)
    yield "  guaranteed", tenant.guaranteed_gpus
    yield "  borrowed", tenant.borrowed_gpus
    if tenant.limit_gpus != tenant.max_gpus:
        yield "  limit", f"{tenant.limit_gpus}, with those of the tenants above and whether it may borrow"
    yield "weight", tenant.weight
    yield "gpu memory", _of_most(used.gpu_memory_mb, tenant.max_gpu_memory_mb, " MiB")
    yield "cpus", _of_most(used.cpu_cores, tenant.max_cpu_cores)
    yield "memory", _of_most(used.memory_mb, tenant.max_memory_mb, " MiB")
    yield "running", _jobs(used.jobs, tenant.max_concurrent_jobs)
    yield "pending", _jobs(tenant.pending_jobs, tenant.max_pending_jobs)
    yield "time max", duration(tenant.max_runtime_ms) or "the cluster's"
    yield "borrows", _yes(tenant.borrow)
    yield "lends", _yes(tenant.lend)
    yield "visibility", tenant.visibility.value
    yield "nodes", ", ".join(tenant.nodes) or "all that its parent may use"
    if tenant.notify or tenant.notify_to:
        yield "notify", f"{', '.join(tenant.notify) or 'nothing'} to {', '.join(tenant.notify_to) or 'nobody'}"


def _jobs(count: int, most: int | None) -> str:
    return f"{count} job{'s' * (count != 1)}" + ("" if most is None else f", at most {most}")
