"""Commands `stoker ca ...`: the certificate authority by which control planes prove themselves and nodes are known."""

from pathlib import Path
from typing import Final

import click

from stoker.cli.display.output import output_options, show_pairs
from stoker.cli.options import AddOption, OnceGroup
from stoker.cli.setting_options import data_dir_option

_config_option: Final[AddOption] = click.option(
    "-c",
    "--config",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Settings of the control plane.",
)
_data_dir_option: Final = data_dir_option("Its data folder, where it has no settings file. [default: /var/lib/stoker]")


@click.group(cls=OnceGroup)
def ca() -> None:
    """Show, export and rotate the certificate authority of a control plane on this machine.

    The control plane makes it at its first start, and makes its own certificate and those of nodes with it. Nobody has
    to copy anything: a token says which authority is meant.

    \b
    Examples:
      stoker ca show
      stoker ca export > ca.crt
      stoker ca rotate -c /etc/stoker/control.yaml
    """


@ca.command()
@_config_option
@_data_dir_option
@output_options
def show(config: Path | None, data_dir: Path | None, form: str) -> None:
    """Show where the authority is, its fingerprint, and until when it is good.

    \b
    Examples:
      stoker ca show --data-dir /var/lib/stoker
    """
    from stoker.cli.wiring.authority import authority_dir, authority_in
    from stoker.wire.rest.view import iso

    folder = authority_dir(config, data_dir)
    with authority_in(folder) as authority:
        trusted = authority.roots.count(b"BEGIN CERTIFICATE")
        pairs = (
            ("folder", str(folder)),
            ("fingerprint", authority.fingerprint),
            ("expires", iso(authority.expires_at)),
            ("trusted", trusted),
        )
    show_pairs(form, pairs, dict(pairs))


@ca.command()
@_config_option
@_data_dir_option
def export(config: Path | None, data_dir: Path | None) -> None:
    """Print the certificates that are trusted, without a key, as PEM: for curl, browsers and Prometheus.

    \b
    Examples:
      stoker ca export > ca.crt; curl --cacert ca.crt https://a:8080/health
    """
    from stoker.cli.wiring.authority import authority_dir, authority_in

    with authority_in(authority_dir(config, data_dir)) as authority:
        click.echo(authority.roots, nl=False)


@ca.command()
@_config_option
@_data_dir_option
@output_options
def rotate(config: Path | None, data_dir: Path | None, form: str) -> None:
    """Make another key for the authority, which signs from now on.

    Nobody is cut off: the old one stays trusted until it expires, and vouches for the new one. Running control planes
    follow within seconds, nodes when they renew their certificates. A key that leaked is another matter: remove the
    folder, start the control plane, and let every node and person join and log in again.

    \b
    Examples:
      stoker ca rotate
    """
    from stoker.cli.wiring.authority import authority_dir, authority_in

    with authority_in(authority_dir(config, data_dir)) as authority:
        before = authority.fingerprint
        authority.rotate()
        pairs = (("fingerprint", authority.fingerprint), ("before", before))
    show_pairs(form, pairs, dict(pairs))
