"""Commands `stoker control ...`: a control plane in the foreground, its state among several, and its promotion.

The daemon ends on SIGTERM and on Ctrl-C and leaves jobs running; what it prints are its log lines.
"""

import os
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from stoker.cli.display.messages import refused
from stoker.cli.display.output import for_people, show_pairs, show_value
from stoker.cli.options import OnceGroup
from stoker.cli.server import answer_options, credentials_of, servers_of, transport
from stoker.cli.setting_options import config_option, data_dir_option, set_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stoker.wire.rest.cluster import ControlView


@click.group(invoke_without_command=True, cls=OnceGroup)
@click.option("--insecure", is_flag=True, help="With `tls.mode: off`, listen also where other machines reach it.")
@config_option
@set_option
@click.pass_context
def control(ctx: click.Context, insecure: bool, path: Path | None, flags: dict[str, object]) -> None:
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
    from stoker.cli.foreground import quiet_grpc, run_until_signal

    quiet_grpc()
    from stoker.agent.settings import AgentSettings
    from stoker.cli.wiring.settings import load
    from stoker.live.main import run_control
    from stoker.live.settings.control import ControlSettings

    settings = load(ControlSettings, path, os.environ, flags, others=(AgentSettings,)).value
    run_until_signal(lambda stop: run_control(settings, stop=stop, on_ready=lambda: None, insecure=insecure))


_data_dir_option: Final = data_dir_option(
    "Data folder of a control plane that runs on this machine: it is asked there, and wants no token."
)
_NO_FORCE: Final = "no force was needed. Nothing is lost in mode sync; in mode async no more than at any take-over"


@control.command()
@_data_dir_option
@answer_options
def status(data_dir: Path | None, form: str) -> None:
    """Show which of several control planes this one is, and who is active; of several that are named, each.

    \b
    Examples:
      stoker control status --server http://a:8080,http://b:8080
      stoker control status --data-dir /var/lib/stoker
    """
    addresses = _addresses(data_dir)
    if len(addresses) > 1:
        _show_each(form, addresses)
    else:
        _show(form, _ask(data_dir, "GET", "/control"))


@control.command()
@click.option("--force", is_flag=True, help="Take over although acknowledged work may be lost.")
@_data_dir_option
@answer_options
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
    """The servers that were named; empty where a data folder is. Raises: StokerError `bad_server`."""
    from stoker.wire.client.servers import each_alone

    return [] if data_dir else each_alone(servers_of(click.get_current_context()))


def _ask(where: Path | str | None, method: str, path: str, *, repeatable: bool = False) -> "ControlView":
    """Ask one control plane, by its data folder or its address, and no other in its place; None = the one named."""
    from stoker.wire.client.calls import decode
    from stoker.wire.client.http_message import Request
    from stoker.wire.client.transport import SocketTransport, Transport
    from stoker.wire.endpoints import API_PREFIX
    from stoker.wire.local_socket import SOCKET_NAME
    from stoker.wire.rest.cluster import ControlView

    if where is None:
        server = transport()
    elif isinstance(where, Path):
        server = SocketTransport(where.absolute() / SOCKET_NAME)
    else:
        server = Transport(where, credentials=credentials_of(click.get_current_context()))
    with closing(server):
        return decode(server.send(Request(method, API_PREFIX + path, repeatable=repeatable)), ControlView)


def _show_each(form: str, addresses: "Sequence[str]") -> None:
    """Show each control plane; those that don't answer are named on stderr. Raises: StokerError where none answers."""
    import msgspec

    found: dict[str, ControlView] = {}
    for address in addresses:
        try:
            found[address] = _ask(address, "GET", "/control", repeatable=True)
        except refused() as fault:
            if address == addresses[-1] and not found:
                raise
            click.echo(f"{address}: {fault.refusal.message}", err=True)
    if not for_people(form):
        show_value(form, [{"server": address, **msgspec.to_builtins(view)} for address, view in found.items()])
        return
    for number, (address, view) in enumerate(found.items()):
        click.echo("\n" * bool(number), nl=False)
        show_pairs(form, (("server", address), *_pairs(view)), view)


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
    """Return which control plane is active by the marker, and whether that may be out of date."""
    named = " at ".join(filter(None, (view.active, view.active_http)))
    if not view.name:
        return "this one"
    if not view.marker_reached:
        return f"unknown; last known: {named}" if named else "unknown"
    if view.silent:
        return f"nobody, by the marker: {named} hasn't renewed its lease for at least {view.unchanged_ms // 1_000} s"
    return named or "nobody"


def epoch_text(view: "ControlView") -> str:
    """Return the epoch; a control plane that has not read the marker yet knows only what its log says."""
    if view.epoch == 0 and view.name:
        return f"unknown; the newest record of its log has {view.log_epoch}"
    return str(view.epoch) if view.marker_reached else f"unknown; last known: {view.epoch}"


def lease_record_text(view: "ControlView") -> str:
    """Return what is wrong with the marker; empty while it can be read."""
    if view.marker_reached:
        return ""
    if view.epoch == 0:
        return "out of reach; never read since this life of the control plane began"
    return f"out of reach; its newest known version was first seen {view.unchanged_ms // 1_000} s ago"
