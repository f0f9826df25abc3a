"""Commands `stoker agent ...`: the agent of a GPU node in the foreground, and how a node joins its cluster.

The agent ends on SIGTERM and on Ctrl-C and leaves jobs running; what it prints are its log lines.
"""

import os
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path

import click

from stoker.cli.display.output import output_options, show_lines
from stoker.cli.options import OnceGroup
from stoker.cli.setting_options import config_option, set_option


@click.group(invoke_without_command=True, cls=OnceGroup)
@config_option
@set_option
@click.option("--prolog", metavar="PROGRAM", help="Run it before each task (executor.prolog).")
@click.option("--epilog", metavar="PROGRAM", help="Run it after each task (executor.epilog).")
@click.pass_context
def agent(ctx: click.Context, /, path: Path | None, flags: dict[str, object], **programs: str | None) -> None:
    """Run the agent of a GPU node, which has joined its cluster before.

    \b
    Examples:
      stoker agent join control.example.org:9090 --token T
      stoker agent -c agent.yaml
      stoker agent -c agent.yaml --prolog /etc/stoker/prolog
    """
    if ctx.invoked_subcommand is not None:
        return
    _import_without_openssl()
    from stoker.cli.foreground import quiet_grpc, run_until_signal

    quiet_grpc()
    from stoker.agent.main import run_agent
    from stoker.agent.settings import AgentSettings
    from stoker.cli.wiring.settings import load
    from stoker.live.settings.control import ControlSettings

    flags = {**flags, **{f"executor.{name}": program for name, program in programs.items() if program is not None}}
    settings = load(AgentSettings, path, os.environ, flags, others=(ControlSettings,)).value
    run_until_signal(lambda stop: run_agent(settings, stop=stop))


@agent.command()
@click.argument("addresses", metavar="HOST:PORT[,HOST:PORT]")
@click.option("--token", metavar="T", envvar="STOKER_TOKEN", help="Join token. [env: STOKER_TOKEN]")
@click.option("--token-file", metavar="F", type=click.Path(dir_okay=False), help="File with it.")
@click.option("--name", metavar="N", help="Name of this node. [default: node.name, else the host name]")
@config_option
@set_option
@output_options
def join(addresses: str, path: Path | None, flags: dict[str, object], form: str, **given: str | None) -> None:
    """Let this node join the cluster whose control plane is at HOST:PORT, once.

    The node makes a key, which never leaves it, and the control plane knows the node by it from then on. The token,
    made by `stoker token create --role join`, says by which certificate the control plane proves itself; nothing is
    sent before. Run it as the account that the agent runs as, with the same settings.

    \b
    Examples:
      stoker agent join control.example.org:9090 --token T
      stoker agent join a:9090,b:9090 --token-file join.token
    """
    import asyncio

    from stoker.cli.credentials import hide, token_in
    from stoker.cli.foreground import quiet_grpc

    token, token_file, name = given["token"], given["token_file"], given["name"]
    if token:
        hide(token)
    if token_file is not None and token == os.environ.get("STOKER_TOKEN"):
        token = None  # a flag wins over the environment, which may hold the token of the person who types
    if (token is None) == (token_file is None):
        raise click.UsageError("give the join token, by --token or by --token-file")
    quiet_grpc()
    from stoker.agent.main import join_cluster
    from stoker.agent.settings import AgentSettings
    from stoker.cli.wiring.settings import load
    from stoker.live.settings.control import ControlSettings

    if name:
        flags = {**flags, "node.name": name}
    settings = load(AgentSettings, path, os.environ, flags, others=(ControlSettings,)).value
    text = token if token is not None else token_in(str(token_file))
    identity = asyncio.run(join_cluster(settings, [each.strip() for each in addresses.split(",")], text))
    cluster = identity.certificates.cluster_id
    start = "stoker agent" if path is None else f"stoker agent -c {shlex.quote(str(path))}"
    said = [f"node {identity.node} has joined cluster {cluster}; start its agent: {start}"]
    show_lines(form, said, {"node": identity.node, "cluster_id": cluster, "control": identity.addresses})


def _import_without_openssl() -> None:
    """Import asyncio and hashlib without OpenSSL, which would be a tenth of what an agent may take.

    gRPC brings a TLS of its own, and nothing else that a running agent talks to speaks it; few bytes are hashed. What
    imports `ssl` later, as the client of container engines does, gets it.
    """
    own_hashes = ("_md5", "_sha1", "_sha2" if sys.version_info >= (3, 12) else "_sha256", "_sha3", "_blake2")
    importers = {"ssl": "asyncio"}
    if all(map(find_spec, own_hashes)):  # some distributions build Python without any
        importers["_hashlib"] = "hashlib"
    kept_out = [name for name, importer in importers.items() if not {name, importer} & sys.modules.keys()]
    for name in kept_out:
        sys.modules[name] = None  # type: ignore[assignment]  # as the import system documents it: not to be had
    import asyncio  # noqa: F401  # for all that follow
    import hashlib  # noqa: F401  # for all that follow
    import hmac  # noqa: F401  # for all that follow

    for name in kept_out:
        del sys.modules[name]
