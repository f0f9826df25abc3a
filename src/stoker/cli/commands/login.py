"""Commands `stoker login` and `stoker logout`: a server, a token and a trusted authority, kept for later commands."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stoker.cli.contexts import DEFAULT, chosen_context, config_folder, present_context, settings_path, unknown
from stoker.cli.credentials import VARIABLE, given_token, is_insecure
from stoker.cli.display.output import output_options, show_lines
from stoker.cli.options import OnceCommand
from stoker.cli.server import ca_option, context_option, token_options

if TYPE_CHECKING:
    from stoker.wire.rest.token import CallerView


@click.command(cls=OnceCommand)
@click.argument("servers", metavar="URL[,URL]")
@ca_option
@click.option(
    "--browser", is_flag=True, help="Open the web page, and get a token of 12 hours for who is signed in there."
)
@context_option
@token_options
@output_options
@click.pass_context
def login(ctx: click.Context, servers: str, ca_file: str | None, form: str, *, browser: bool) -> None:
    """Keep a server and a token for later commands, once the server has proved who it is.

    A token from `stoker token create` names the authority of its cluster, which is looked up in the server's
    certificates and trusted from then on: nothing else has to be copied. Without --token it is asked for.
    They are kept in the present context, or in that of --context, which is made where there is none of that name.

    \b
    Examples:
      stoker login https://head.example.org:8080
      stoker login https://head.example.org:8080 --token-file token
      stoker login https://a.example.org:8080,https://b.example.org:8080 --token T
      stoker login https://stoker.example.org --token T --ca ca.pem
      stoker login https://stoker.example.org --browser
      stoker login https://paris.example.org --token T --context paris
    """
    from msgspec.structs import replace

    from stoker.cli.wiring.settings import UserSettings, read_user_settings, settings_lock, write_user_settings
    from stoker.wire.client import Client

    if browser:
        from stoker.cli.wiring.browser_login import token_by_browser

        token = token_by_browser(servers.split(",")[0], ca_file or "")
    else:
        token = given_token(ctx) or _asked_for(ctx)
    context = chosen_context(ctx)
    path = Path(settings_path(context))
    kept = read_user_settings(str(path)) if path.exists() else UserSettings()
    with Client(servers, token=token, ca_file=ca_file or "", insecure=is_insecure(kept)) as client:
        caller = client.whoami()
        ca = Path(ca_file).read_bytes() if ca_file else _as_pem(client.root)
    with settings_lock(Path(config_folder())):
        write_user_settings(path, replace(kept, server=servers, token=token, ca=""), ca)
    named = "" if context == DEFAULT else f"context {context}: "
    show_lines(form, [f"{named}logged in to {servers} as {caller.principal} ({_rights(caller)})"], caller)
    if context != present_context():
        click.echo(f"`stoker context use {context}` makes it the present one", err=True)
    for name in ("STOKER_SERVER", VARIABLE):
        if os.environ.get(name):
            click.echo(f"{name} is set, and is nearer to commands than what was kept now", err=True)


@click.command(cls=OnceCommand)
@context_option
@output_options
@click.pass_context
def logout(ctx: click.Context, form: str) -> None:
    """Forget the token and the authority that `stoker login` has kept. The token stays valid.

    Those of the present context are forgotten, or of that of --context, which keeps its server; the context `default`
    forgets its server too.

    \b
    Examples:
      stoker logout
      stoker logout --context paris
    """
    from msgspec.structs import replace

    from stoker.cli.wiring.settings import forget_authority, read_user_settings, settings_lock, write_user_settings

    context = chosen_context(ctx)
    path = Path(settings_path(context))
    kept = path.exists()
    if not kept and context != DEFAULT:
        raise unknown(context)
    if kept:
        with settings_lock(Path(config_folder())):
            settings = read_user_settings(str(path))
            server = "" if context == DEFAULT else settings.server
            write_user_settings(path, replace(settings, server=server, token="", ca=""))
            forget_authority(path)
    done = "logged out; an admin ends the token itself with `stoker token revoke ID`" if kept else "nothing was kept"
    show_lines(form, [done], {"logged_out": kept})


def _asked_for(ctx: click.Context) -> str:
    if not sys.stdin.isatty():
        raise click.UsageError("no token: give --token, --token-file or STOKER_TOKEN", ctx)
    typed: str = click.prompt("Token", hide_input=True, err=True)
    return typed


def _as_pem(root: bytes) -> bytes:
    if not root:
        return b""
    import ssl

    return ssl.DER_cert_to_PEM_cert(root).encode()


def _rights(caller: "CallerView") -> str:
    words = [f"role {caller.role}"]
    words += [f"{name} {value}" for name, value in (("tenant", caller.tenant), ("account", caller.user)) if value]
    return ", ".join(words)
