"""`stoker control`: run a control plane in the foreground, or look after one that runs among several.

The daemon ends on SIGTERM and on Ctrl-C and leaves jobs running; what it prints are its log lines.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from stoker.cli.commands.daemon import CONFIG_OPTION
from stoker.cli.display.output import for_people, output_options, show_pairs, show_value
from stoker.cli.server import server_option, servers_of, token_of, transport
from stoker.cli.setting_flags import set_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stoker.wire.rest.control import ControlView


@click.group(invoke_without_command=True)
@CONFIG_OPTION
@set_option
@click.pass_context
def control(ctx: click.Context, path: Path | None, flags: dict[str, object]) -> None:
    """Run a control plane.

    It wants a token from people and from agents. `stoker token create --data-dir D` makes the first one. Of several
    (`failover.enabled`) one is active; `stoker control status` shows which.

    \b
    Examples:
      stoker control -c control.yaml
      STOKER__HTTP__PORT=18080 stoker control -c control.yaml
      stoker control --set data_dir=/tmp/stoker --set http.port=18080
    """
    if ctx.invoked_subcommand is not None:
        return
    from stoker.agent.settings import AgentSettings
    from stoker.cli.quiet_grpc import quiet_grpc
    from stoker.cli.until_signal import run_until_signal
    from stoker.cli.wiring.settings import load
    from stoker.live.settings.control import ControlSettings

    quiet_grpc()
    from stoker.live.main import run_control

    settings = load(ControlSettings, path, os.environ, flags, others=(AgentSettings,)).value
    run_until_signal(lambda stop: run_control(settings, stop=stop, on_ready=lambda: None))


_DATA_DIR = click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Data folder of a control plane that runs on this machine: it is asked there, and wants no token.",
)


@control.command()
@_DATA_DIR
@output_options
@server_option
def status(data_dir: Path | None, form: str) -> None:
    """Show which of several control planes this one is, and who is active; of several that are named, each.

    \b
    Examples:
      stoker control status --server http://a.example.org:8080,http://b.example.org:8080
      stoker control status --data-dir /var/lib/stoker
    """
    addresses = _addresses(data_dir)
    if len(addresses) > 1:
        _show_each(form, addresses)
    else:
        _show(form, _ask(data_dir, "GET", "/control"))


@control.command()
@click.option("--force", is_flag=True, help="Take over although acknowledged work may be lost.")
@_DATA_DIR
@output_options
@server_option
def promote(force: bool, data_dir: Path | None, form: str) -> None:
    """Make this control plane the active one by force, when the one that was active is gone for good.

    A standby that is in sync takes over by itself and needs no command. One that isn't may lack the newest commands
    that were acknowledged: they are lost by this, what runs of them is stopped when its nodes come back, and 1,000,000
    job ids are left out so that none is given away twice. It is refused while the active one is heard.

    \b
    Examples:
      stoker control promote --force --data-dir /var/lib/stoker
    """
    if not force:
        raise click.UsageError("this may lose acknowledged work: say --force to mean it (see --help)")
    if len(_addresses(data_dir)) > 1:
        raise click.UsageError("several servers are named: name the one that is to become active, or its --data-dir")
    before = _ask(data_dir, "GET", "/control")
    if before.role == "active" and before.name:
        click.echo(f"{before.name} is active already: nothing was done, and nothing is lost", err=True)
        _show(form, before)
        return
    after = _ask(data_dir, "POST", "/control/promote")
    if before.name in before.in_sync and after.epoch == before.epoch + 1:
        click.echo(f"{before.name} was in sync and has taken over by itself: {_NO_FORCE}", err=True)
    _show(form, after)


def _addresses(data_dir: Path | None) -> list[str]:
    """Those that were named; empty where a folder is. Raises: StokerError `bad_server`."""
    from stoker.wire.client.servers import each_alone

    return [] if data_dir else each_alone(servers_of(click.get_current_context()))


_NO_FORCE: Final = "no force was needed. Nothing is lost in mode sync; in mode async no more than at any take-over"


def _ask(data_dir: Path | None, method: str, path: str) -> "ControlView":
    """Of that very one: nobody else is asked in its place."""
    import msgspec

    from stoker.wire.client.http_message import Request
    from stoker.wire.client.transport import SocketTransport
    from stoker.wire.local_socket import SOCKET_NAME
    from stoker.wire.rest.control import ControlView
    from stoker.wire.versions import API_PREFIX

    request = Request(method, API_PREFIX + path)
    if data_dir is None:
        with transport() as server:
            reply = server.send(request)
    else:
        local = SocketTransport(data_dir.absolute() / SOCKET_NAME)
        try:
            reply = local.send(request)
        finally:
            local.close()
    return msgspec.json.decode(reply.body, type=ControlView)


def _show_each(form: str, addresses: "Sequence[str]") -> None:
    """Those that don't answer are told on stderr. Raises: StokerError where none does."""
    import msgspec

    from stoker.brain.domain.errors import StokerError

    found: dict[str, ControlView] = {}
    for address in addresses:
        try:
            found[address] = _ask_at(address)
        except StokerError as fault:
            if address == addresses[-1] and not found:
                raise
            click.echo(f"{address}: {fault.refusal.message}", err=True)
    if not for_people(form):
        show_value(form, [{"server": address, **msgspec.to_builtins(view)} for address, view in found.items()])
        return
    for number, (address, view) in enumerate(found.items()):
        click.echo("\n" * bool(number), nl=False)
        show_pairs(form, (("server", address), *_pairs(view)), view)


def _ask_at(address: str) -> "ControlView":
    """One of several, and no other in its place."""
    import msgspec

    from stoker.wire.client.transport import Transport
    from stoker.wire.rest.control import ControlView
    from stoker.wire.versions import API_PREFIX

    server = Transport(address, token=token_of(click.get_current_context()))
    try:
        return msgspec.json.decode(server.ask("GET", f"{API_PREFIX}/control").body, type=ControlView)
    finally:
        server.close()


def _show(form: str, view: "ControlView") -> None:
    show_pairs(form, _pairs(view), view)


def _pairs(view: "ControlView") -> list[tuple[str, object]]:
    pairs = (
        ("name", view.name or "(the only one)"),
        ("role", view.role),
        ("active", active_text(view)),
        ("in sync", ", ".join(view.in_sync)),
        ("epoch", epoch_text(view)),
        ("marker", lease_record_text(view)),
        ("position", view.position),
        ("lag", f"{view.lag_ms / 1_000:.1f} s" if view.role == "standby" else ""),
        ("why not active", view.why),
        ("secret", view.secret),
        ("settings", view.unlike),
    )
    return [(key, shown) for key, shown in pairs if shown != ""]


def active_text(view: "ControlView") -> str:
    """Who is active, by the marker; and that it may be so no more."""
    named = " at ".join(filter(None, (view.active, view.active_http)))
    if not view.name:
        return "this one"
    if not view.marker_reached:
        return f"unknown; last known: {named}" if named else "unknown"
    if view.silent:
        return f"nobody, by the marker: {named} hasn't renewed its lease for at least {view.unchanged_ms // 1_000} s"
    return named or "nobody"


def epoch_text(view: "ControlView") -> str:
    """One that hasn't read the marker yet knows what its log says."""
    if view.epoch == 0 and view.name:
        return f"unknown; the newest record of its log has {view.log_epoch}"
    return str(view.epoch) if view.marker_reached else f"unknown; last known: {view.epoch}"


def lease_record_text(view: "ControlView") -> str:
    """Empty while it is read."""
    if view.marker_reached:
        return ""
    if view.epoch == 0:
        return "out of reach; never read since this life of the control plane began"
    return f"out of reach; its newest known version was first seen {view.unchanged_ms // 1_000} s ago"
