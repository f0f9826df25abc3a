"""Order and grouping of the checks of `stoker doctor`."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from stoker.agent.identity import IdentityFile, with_addresses
from stoker.agent.machine import local_address
from stoker.agent.settings import ADDRESS, AgentSettings
from stoker.brain.domain.errors import StokerError
from stoker.cli.doctor import effective, folder, machine, network, node, pair, serving
from stoker.cli.doctor.finding import Check, Finding, Level
from stoker.live.settings.control import ControlSettings

Run = Callable[[Check], Sequence[Finding]]


def of_file(
    run: Run, path: Path | None, kind: str, environ: Mapping[str, str], flags: Mapping[str, object]
) -> Iterator[Finding]:
    """The settings of a daemon, and this machine as the place where it will run."""
    seen = effective.read(kind, path, environ, flags)
    yield from run(Check("settings", lambda: effective.judged(seen, path)))
    settings = seen.value
    yield from _each(run, machine.checks(kind))
    if isinstance(settings, ControlSettings):
        yield from _each(run, _control(settings))
    elif isinstance(settings, AgentSettings):
        yield from _each(run, _agent(settings))


def of_server(run: Run, server: serving.Server) -> Iterator[Finding]:
    """A control plane that serves, and what it says of its cluster."""
    for gate, checks in ((serving.first, serving.open_checks), (serving.token, serving.checks)):
        found = run(gate(server))
        yield from found
        if any(finding.level is Level.ERROR for finding in found):
            return
        yield from _each(run, checks(server))
    yield from _each(run, pair.pair_checks(server))


def _each(run: Run, checks: Iterable[Check]) -> Iterator[Finding]:
    for check in checks:
        yield from run(check)


def _control(settings: ControlSettings) -> list[Check]:
    listeners = (("http", settings.http), ("grpc", settings.grpc))
    return [
        *folder.checks("control", settings.data_dir),
        Check("store", lambda: folder.store(settings.store.url, settings.data_dir)),
        Check("output_archive", lambda: folder.archive(settings.output.archive_dir)),
        Check("secrets", lambda: folder.secret_key(settings.secret_key_file, settings.data_dir)),
        *(
            Check(f"{section}_port", partial(network.listener, section, at.host, at.port, settings.data_dir))
            for section, at in listeners
        ),
        *([Check("clusters", partial(network.other_clusters, settings))] if settings.web.clusters else ()),
    ]


def _agent(settings: AgentSettings) -> list[Check]:
    with suppress(StokerError):  # one that can't be read is told by its own check
        settings = with_addresses(settings, IdentityFile(settings.data_dir).read())
    addresses = settings.control.addresses or (ADDRESS,)
    return [
        *folder.checks("agent", settings.data_dir),
        *node.checks(settings),
        Check("control", lambda: network.control(addresses), seconds=5 + 2 * network.CONNECT_S * len(addresses)),
        Check("address", lambda: network.node_address(settings.node.address, lambda: local_address(addresses[0]))),
    ]
