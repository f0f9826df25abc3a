"""Commands `stoker context ...`: named clusters, and which of them commands ask."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from stoker.cli.contexts import DEFAULT, NAME, VARIABLE, chosen_context
from stoker.cli.credentials import typed_token
from stoker.cli.display.output import output_options, show_lines, show_pairs, show_rows, table_options
from stoker.cli.display.table import Column, fields
from stoker.cli.options import OnceGroup
from stoker.cli.server import ca_option, complete_context, context_option, token_options

if TYPE_CHECKING:
    from stoker.cli.context_views import ContextStatusView
    from stoker.wire.rest.cluster import ClusterView

_name: Final = click.argument("name", shell_complete=complete_context)


@click.group(cls=OnceGroup)
def context() -> None:
    """Name several clusters, and choose the one that commands ask.

    A context has the servers of a cluster, the token for them, and whom to trust. `default` is always there: it is what
    `stoker login` keeps where no other one is chosen. --context or STOKER_CONTEXT chooses for one command or shell;
    --server and STOKER_SERVER do without.

    \b
    Examples:
      stoker context add paris https://a.example.org,https://b.example.org
      stoker login https://a.example.org:8080 --context paris --browser
      stoker context use paris
      stoker list --context default
    """


@context.command()
@click.argument("name")
@click.argument("servers", metavar="URL[,URL]")
@ca_option
@click.option("--use", is_flag=True, help="Make it the present one, too.")
@token_options
@output_options
@click.pass_context
def add(ctx: click.Context, name: str, servers: str, ca_file: str | None, form: str, *, use: bool) -> None:
    """Add a context. Nothing is asked of its servers, which may be away: `stoker login` asks them.

    A token is kept only where --token or --token-file gives one.

    \b
    Examples:
      stoker context add paris https://a.example.org,https://b.example.org
      stoker context add lab http://127.0.0.1:8080 --use
      stoker context add rome https://rome.example.org --token-file T --ca ca.pem
    """
    if not NAME.fullmatch(name):
        wanted = "1 to 63 letters, digits, `.`, `_` and `-`, of which the first is a letter or a digit"
        raise click.UsageError(f"{name[:80]!r} can't be a context's name: {wanted}", ctx)
    from stoker.cli.context_views import context_view
    from stoker.cli.wiring.contexts import add_context

    add_context(name, servers, typed_token(ctx), Path(ca_file).read_bytes() if ca_file else b"", use=use)
    view = context_view(name)
    used = ", and is the present one" if view.present else f"; `stoker context use {name}` makes it the present one"
    show_lines(form, [f"context {name} is added{used}"], view)


@context.command()
@_name
@output_options
def use(name: str, form: str) -> None:
    """Make a context the present one: commands ask its cluster from now on.

    \b
    Examples:
      stoker context use paris
      stoker context use default
    """
    from stoker.cli.context_views import context_view
    from stoker.cli.wiring.contexts import use_context

    use_context(name)
    view = context_view(name)
    show_lines(form, [f"commands ask context {name} now: {view.server or 'the server of this machine'}"], view)
    for variable in (VARIABLE, "STOKER_SERVER"):
        if os.environ.get(variable):
            click.echo(f"{variable} is set, and is nearer to commands than the present context", err=True)


@context.command()
@_name
@output_options
def remove(name: str, form: str) -> None:
    """Remove a context with its token, which stays valid. Of the present one `default` takes the place.

    \b
    Examples:
      stoker context remove paris
    """
    if name == DEFAULT:
        raise click.UsageError("the context 'default' is always there; `stoker logout --context default` empties it")
    from stoker.cli.wiring.contexts import remove_context

    was_present = remove_context(name)
    then = "; commands ask context default now" if was_present else ""
    show_lines(form, [f"context {name} is removed{then}"], {"removed": name, "was_present": was_present})


@context.command("list")
@click.option("--status", is_flag=True, help="Ask each cluster how it is: its nodes, free GPUs and jobs that wait.")
@table_options
def list_contexts(form: str, *, status: bool) -> None:
    """Show every context, the present one with a `*`, without their tokens.

    \b
    Examples:
      stoker context list
      stoker context list --status
      stoker context list -o json
    """
    from stoker.cli.context_views import context_statuses, every_context

    views = every_context()
    if status:
        asked = context_statuses(views)
        show_rows(form, _status_columns(), asked, asked)
        return
    show_rows(form, _columns(token=True), views, views)


def _columns(*, token: bool = False) -> "list[Column[Any]]":
    columns: list[Column[Any]] = [
        Column("PRESENT", lambda view: "*" if view.present else "", missing=" "),
        *fields("NAME"),
        Column("SERVERS", lambda view: view.fault or view.server or "-"),
    ]
    return (
        [*columns, Column("TOKEN", lambda view: view.token_id or "-"), *fields("CA", wide=True)] if token else columns
    )


def _status_columns() -> "list[Column[Any]]":
    def told(title: str, cell: "Callable[[ClusterView], object]") -> "Column[ContextStatusView]":
        return Column(title, lambda view: view.cluster and cell(view.cluster))

    return [
        *_columns(),
        told("VERSION", lambda cluster: cluster.version),
        told("NODES", lambda cluster: f"{cluster.online_nodes}/{cluster.total_nodes}"),
        told("FREE GPUS", lambda cluster: f"{cluster.available_gpus}/{cluster.total_gpus}"),
        told("RUN", lambda cluster: cluster.running_jobs),
        told("WAIT", lambda cluster: cluster.pending_jobs),
        Column("STATUS", lambda view: view.unanswered or "answers", elastic=True),
    ]


@context.command()
@click.argument("name", required=False, shell_complete=complete_context)
@context_option
@output_options
@click.pass_context
def show(ctx: click.Context, name: str | None, form: str) -> None:
    """Show a context, or the one that commands ask here and now, without its token.

    \b
    Examples:
      stoker context show
      stoker context show paris -o json
    """
    from stoker.cli.context_views import context_view

    view = context_view(name or chosen_context(ctx))
    pairs = {
        "context": view.name,
        "present": "yes" if view.present else "no",
        "servers": view.server,
        "token": view.token_id and f"kept, with the id {view.token_id}",
        "ca": view.ca,
        "fault": view.fault,
    }
    show_pairs(form, [(key, value or "-") for key, value in pairs.items() if value or key != "fault"], view)
