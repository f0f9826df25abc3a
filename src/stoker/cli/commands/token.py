"""Commands `stoker token ...`: the tokens by which people, agents and programs are known."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from stoker.cli.completion import tenants
from stoker.cli.display.output import show_lines, show_rows
from stoker.cli.display.table import Column, fields
from stoker.cli.options import OnceGroup
from stoker.cli.server import answer_options, connect, table_answer_options
from stoker.cli.setting_options import asked_there_option

if TYPE_CHECKING:
    from stoker.cli.wiring.token_store import FolderTokens
    from stoker.wire.client import Client
    from stoker.wire.rest.token import TokenView

ROLES: Final = ("metrics", "viewer", "user", "lead", "admin", "join", "agent")


def _tokens(data_dir: Path | None) -> "Client | FolderTokens":
    if data_dir is None:
        return connect()
    from stoker.cli.wiring.token_store import FolderTokens, act_as_owner

    act_as_owner(data_dir)
    return FolderTokens(data_dir)


def _columns() -> "list[Column[TokenView]]":
    return [
        *fields("ID", "ROLE", "TENANT", "USER", "NODE"),
        Column("CREATED", lambda token: token.created_at, instant=True),
        Column("EXPIRES", lambda token: token.expires_at, instant=True, missing="never"),
        Column("COMMENT", lambda token: token.comment, elastic=True),
        *fields("PRINCIPAL", "CREATED BY", wide=True),
    ]


@click.group(cls=OnceGroup)
def token() -> None:
    """Make, list and revoke tokens.

    A token says who asks: its role, its tenant and the Unix account of its jobs. The control plane keeps a digest of
    it and can't show it again.

    \b
    Examples:
      stoker token create --role admin --data-dir /var/lib/stoker
      stoker token create --role user --tenant vision --user ada --expires 90d
      stoker token list
    """


@token.command()
@click.option("--role", type=click.Choice(ROLES), required=True, help="What it allows.")
@click.option(
    "--tenant",
    metavar="T",
    shell_complete=tenants,
    help="Tenant of its jobs; a user's or a lead's token has one, a viewer's may.",
)
@click.option("--user", metavar="U", help="Unix account that its jobs run as.")
@click.option("--nodes", metavar="GLOB", help="Of role join: name of the node that may join with it, or a glob: gpu-*.")
@click.option("--comment", metavar="TEXT", help="For people: who has it, and what for.")
@click.option("--expires", metavar="T", help="After how long it ends: 30d, 12h. [default: never; join: 1d]")
@asked_there_option
@answer_options
def create(data_dir: Path | None, form: str, **given: str | None) -> None:
    """Make a token and print its text, and nothing else.

    The text is shown this once. Keep it in a file that nobody else can read.

    \b
    Examples:
      stoker token create --role admin --data-dir /var/lib/stoker > admin.token
      stoker token create --role join --nodes 'gpu-*' --expires 2h
      stoker token create --role user --tenant vision --user ada --expires 90d
    """
    from stoker.brain.domain.access import Role
    from stoker.wire.rest.token import NewTokenBody

    role = Role(str(given.pop("role")))
    made = _tokens(data_dir).create_token(NewTokenBody(role=role, **given))
    show_lines(form, [made.token], made)


@token.command("list")
@asked_there_option
@table_answer_options
def list_tokens(data_dir: Path | None, form: str) -> None:
    """Show every token that holds, without its text.

    \b
    Examples:
      stoker token list
      stoker token list -o wide
      stoker token list --data-dir /var/lib/stoker
    """
    found = _tokens(data_dir).tokens()
    show_rows(form, _columns(), found.tokens, found)


@token.command()
@click.argument("token_id", metavar="ID")
@asked_there_option
@answer_options
def revoke(token_id: str, data_dir: Path | None, form: str) -> None:
    """End a token at once, also on streams that are open. ID is as `stoker token list` shows it.

    Jobs that were submitted with it go on.

    \b
    Examples:
      stoker token revoke k3j5m2qa
    """
    gone = _tokens(data_dir).revoke_token(id_in(token_id))
    show_lines(form, [f"token {gone.id} is revoked"], gone)


def id_in(typed: str) -> str:
    """Return the id in what was typed: a whole token must not be sent in a path, which proxies log."""
    from stoker.wire.token import id_of, is_token

    return str(id_of(typed)) if is_token(typed) else typed
