"""Checks of several control planes that are named as a pair.

Each is asked by itself: whether all are there, of one cluster, one active and another ready is what no single one of
them knows. Answers are read loosely: control planes may be of another version.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

import msgspec

from stoker.brain.domain.errors import Refusal, StokerError, refuse
from stoker.cli.doctor.finding import Check, CheckResult, doubtful, fine, wrong
from stoker.cli.doctor.serving import BOUND_S, Health, Server
from stoker.wire.client.servers import each_alone
from stoker.wire.endpoints import API_PREFIX
from stoker.wire.rest.cluster import ControlView

_NUMBERS: Final = re.compile(r"(\d+)\.(\d+)")
_SETTINGS: Final = "see failover in the settings of each"


class Half(msgspec.Struct, kw_only=True):
    """The answer of one control plane of a pair."""

    address: str
    health: Health = msgspec.field(default_factory=Health)
    view: ControlView | None = None
    """None = it didn't tell."""
    refusal: Refusal | None = None
    """Why."""

    @property
    def called(self) -> str:
        return f"{self.view.name} ({self.address})" if self.view is not None and self.view.name else self.address


def pair_checks(server: Server) -> list[Check]:
    """Nothing where one alone was named."""
    addresses = each_alone(server.servers)
    if len(addresses) < 2:
        return []
    return [Check("pair", lambda: pair([_asked(server, each) for each in addresses]), BOUND_S * 2 * len(addresses))]


def _asked(server: Server, address: str) -> Half:
    alone, half = server.alone(address), Half(address=address)
    try:
        half.health = msgspec.json.decode(alone.get("/health").body, type=Health)
        half.view = msgspec.json.decode(alone.get(f"{API_PREFIX}/control").body, type=ControlView)
    except StokerError as fault:
        half.refusal = fault.refusal
    except msgspec.MsgspecError:
        message = f"what answers at {address} is not a Stoker control plane"
        half.refusal = refuse("bad_answer", message, "check --server")
    return half


def pair(halves: Sequence[Half]) -> Iterator[CheckResult]:
    for half in halves:
        if half.refusal is not None:
            yield wrong(f"{half.address} doesn't tell what it is: {half.refusal.message}", half.refusal.hint)
    told = [half for half in halves if half.view is not None]
    found = [*_who(told), *_active(told, everybody=len(told) == len(halves)), *_versions(told), *_places(told)]
    yield from found
    if not found and len(told) == len(halves):
        active = next(half for half in told if half.view and half.view.role == "active")
        others = ", ".join(half.called for half in told if half is not active)
        yield fine(f"{active.called} is active, and {others} stands by")


def _who(told: Sequence[Half]) -> Iterator[CheckResult]:
    """Those that belong together have names of their own and one cluster."""
    alone = [half.address for half in told if half.view and not half.view.name]
    if alone:
        fix = f"leave it out of --server, or set failover.enabled there; {_SETTINGS}"
        yield wrong(f"{', '.join(alone)} is a control plane of its own, not one of several", fix)
    names = Counter(half.view.name for half in told if half.view and half.view.name)
    for name, number in names.items():
        if number > 1:
            where = ", ".join(half.address for half in told if half.view and half.view.name == name)
            fix = "give each its own failover.name; if it is one of them by two addresses, name one"
            yield wrong(f"{number} are called {name}: {where}", fix)
    clusters = {half.health.cluster_id: half for half in told}
    if len(clusters) > 1:
        shown = ", ".join(f"{half.called}: {cluster}" for cluster, half in sorted(clusters.items()))
        yield wrong(f"they are of {len(clusters)} clusters ({shown})", f"name those of one cluster; {_SETTINGS}")


def _active(told: Sequence[Half], *, everybody: bool) -> Iterator[CheckResult]:
    """Exactly one, and another one that may take over at once."""
    active = [half for half in told if half.view and half.view.name and half.view.role == "active"]
    if len(active) > 1:
        fix = "ask again: one may have been about to step down. If it stays so, let failover.marker of all be the same"
        yield wrong(f"{len(active)} are active: {', '.join(half.called for half in active)}", fix)
    elif told and not active:
        whys = "; ".join(f"{half.called}: {half.view.why}" for half in told if half.view and half.view.why)
        level = wrong if everybody else doubtful
        yield level(f"none of those that tell is active ({whys})", "mend what keeps them from it")
    for half in active:
        if half.view is not None and len(half.view.in_sync) == 1:
            fix = "start the standby, or see `stoker control status` and the log of it: it says why it isn't in sync"
            yield doubtful(f"only {half.called} is in sync: if it dies now, nobody takes over by itself", fix)


def _versions(told: Sequence[Half]) -> Iterator[CheckResult]:
    """Neighbours run beside each other."""
    numbers = sorted(
        {(int(found[1]), int(found[2])) for half in told if (found := _NUMBERS.match(half.health.version))}
    )
    if any(low[0] != high[0] or high[1] - low[1] > 1 for low, high in pairwise(numbers)) or len(numbers) > 2:
        shown = ", ".join(f"{half.called}: {half.health.version}" for half in told)
        yield wrong(
            f"their versions are more than one apart ({shown})", "upgrade one after the other, version by version"
        )


def _places(told: Sequence[Half]) -> Iterator[CheckResult]:
    """What they share, as each of them sees it."""
    for half in told:
        view = half.view
        if view is not None and view.name and not view.marker_reached:
            yield wrong(
                f"{half.called} can't reach the marker: {view.why}", "mend that: it can't become or stay active"
            )
        if view is not None and view.secret:
            yield doubtful(f"{half.called}: {view.secret}", "docs/explanation/the-marker.md says what to do")
        if view is not None and view.unlike:
            yield doubtful(f"{half.called}: {view.unlike}", "let these settings be the same on each")
