"""The page of several clusters: this one and others that the settings name, with their totals and who has room.

Other clusters are asked by this control plane, never by a browser, so no policy is loosened and no token leaves it.

Rules: U1  whoever may see this cluster in numbers may see the others so, and nobody else: of them there is nothing but
           totals
       U2  clusters are asked all at once, and only while somebody looks: each ASK_S after its last answer at the
           soonest, up to AGAIN_S_MAX after several in vain. Of many readers one asks
       U3  a page waits WAIT_S for answers; what comes later is there at the next look
       U4  what a cluster answered last stays, with its age, while it doesn't answer, and is called old after OLD_S. The
           sums are of what isn't old
Source: ADR 0048.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.routing import Route

from stoker.brain.domain.units import NEVER, Instant, Mono
from stoker.ports import Clock
from stoker.web.site import Context, Site
from stoker.wire import endpoints
from stoker.wire.client.cluster_status import ClusterAnswer
from stoker.wire.rest.cluster import ClusterView, FreeGpusView
from stoker.wire.rest.view import iso

ASK_S: Final = 2.0
AGAIN_S_MAX: Final = 15.0
WAIT_S: Final = 0.5
OLD_S: Final = 15.0
MODELS_SHOWN: Final = 6
EVERY_S: Final = 2
"""Between two looks of a page that is open."""


class OtherCluster(NamedTuple):
    """Another cluster, and how it is asked."""

    name: str
    page: str
    """Address of its pages."""
    ask: Callable[[], Awaitable[ClusterAnswer]]
    """Asks it how it is; comes back within seconds and raises nothing."""


class ClusterRow(NamedTuple):
    """One cluster as the page shows it."""

    name: str
    page: str
    """Empty = it is this one."""
    cluster: ClusterView | None
    """What it answered last; None = it never has."""
    at: str
    """When it did."""
    unanswered: str = ""
    """Why it didn't the last time; empty = it did, or hasn't been asked."""
    since: str = ""
    """Since when it hasn't."""
    old: bool = False
    """Whether what it answered is no more what holds."""

    @property
    def nodes(self) -> list[tuple[str, int]]:
        """Nodes by what they are good for."""
        told = self.cluster.nodes if self.cluster is not None else {}
        drained = told.get("draining", 0) + told.get("drained", 0)
        down = told.get("unreachable", 0) + told.get("faulty", 0) + told.get("paused", 0)
        return [("ready", told.get("ready", 0)), ("drained", drained), ("down", down)]

    @property
    def held_back(self) -> int:
        """GPUs that nobody has and no job gets."""
        told = self.cluster
        return told.offline_gpus + told.quarantined_gpus + told.lost_gpus if told is not None else 0

    @property
    def free_by_model(self) -> list[FreeGpusView]:
        """Free GPUs by model, the most on one node first."""
        told = self.cluster.free_by_model if self.cluster is not None else []
        return sorted(told, key=lambda each: (-each.most_on_node, -each.free_gpus, each.model))[:MODELS_SHOWN]


class OtherClusters:
    """Last answers of other clusters, and the questions that are on their way."""

    def __init__(self, clusters: Sequence[OtherCluster], clock: Clock) -> None:
        self._all = [_Known(each, clock) for each in clusters]

    async def rows(self, own_id: str) -> list[ClusterRow]:
        """Return how they are; they are asked if it is time (U2, U3)."""
        asked = [task for each in self._all if (task := each.task())]
        if asked:
            await asyncio.wait(asked, timeout=WAIT_S)
        return [each.row(own_id) for each in self._all]


class _Known:
    """Last answer of one of them, and the question that is on its way."""

    def __init__(self, cluster: OtherCluster, clock: Clock) -> None:
        self._of, self._clock = cluster, clock
        self._asking: asyncio.Task[None] | None = None
        self._cluster: ClusterView | None = None
        self._at, self._since = NEVER, NEVER
        self._heard, self._next = Mono(0), Mono(0)
        self._unanswered = ""
        self._in_vain = 0

    def task(self) -> "asyncio.Task[None] | None":
        """Return the question that is on its way; it is asked if it is time. None = it is too soon."""
        if self._asking is not None and not self._asking.done():
            return self._asking
        if self._asking is not None and self._clock.mono() < self._next:
            return None
        self._next = Mono(self._clock.mono() + ASK_S)
        self._asking = asyncio.create_task(self._ask())
        return self._asking

    async def _ask(self) -> None:
        told = await self._of.ask()
        now = self._clock.now()
        if told.cluster is not None:
            self._cluster, self._at, self._heard = told.cluster, now, self._clock.mono()
        if told.unanswered and not self._unanswered:
            self._since = now
        self._unanswered = told.unanswered
        self._in_vain = self._in_vain + 1 if told.unanswered else 0
        pause_s = min(AGAIN_S_MAX, ASK_S * 2 ** min(max(self._in_vain - 1, 0), 8))
        self._next = Mono(self._clock.mono() + pause_s)

    def row(self, own_id: str) -> ClusterRow:
        unanswered, cluster = self._unanswered, self._cluster
        if cluster is not None and cluster.cluster_id == own_id:
            unanswered, cluster = "it is this cluster itself: its `servers` in the settings lead here", None
        return ClusterRow(
            *(self._of.name, self._of.page, cluster, _text(self._at)),
            unanswered=unanswered,
            since=_text(self._since) if self._unanswered else "",
            old=cluster is not None and (bool(unanswered) or self._clock.mono() - self._heard > OLD_S),
        )


def _text(at: Instant) -> str:
    return iso(at) if at != NEVER else ""


class Totals(NamedTuple):
    """Sums over the clusters whose figures hold."""

    clusters: int
    gpus: int
    busy: int
    free: int
    held_back: int
    running: int
    pending: int
    longest_wait_s: int | None
    free_by_model: list[FreeGpusView]


def totals_of(rows: Sequence[ClusterRow]) -> Totals:
    """Return the sums of rows that aren't old (U4)."""
    told = [row.cluster for row in rows if row.cluster is not None and not row.old]
    free, most = Counter[str](), Counter[str]()
    for each in (model for cluster in told for model in cluster.free_by_model):
        free[each.model] += each.free_gpus
        most[each.model] = max(most[each.model], each.most_on_node)
    waits = [each.longest_wait_s for each in told if each.longest_wait_s is not None]
    by_model = [FreeGpusView(model=name, free_gpus=free[name], most_on_node=most[name]) for name in sorted(free)]
    return Totals(
        clusters=len(told),
        gpus=sum(each.total_gpus for each in told),
        busy=sum(each.busy_gpus for each in told),
        free=sum(each.available_gpus for each in told),
        held_back=sum(row.held_back for row in rows if not row.old),
        running=sum(each.running_jobs for each in told),
        pending=sum(each.pending_jobs for each in told),
        longest_wait_s=max(waits, default=None),
        free_by_model=sorted(by_model, key=lambda each: (-each.free_gpus, each.model))[:MODELS_SHOWN],
    )


def routes(site: Site, others: OtherClusters) -> list[Route]:
    """Return the route of the page of several clusters."""

    async def show(request: Request) -> Context:
        own = await site.ask(request, endpoints.STATUS)  # U1: a refusal of it is one of this page
        rows = [ClusterRow("this cluster", "", own, site.now), *await others.rows(own.cluster_id)]
        return {"rows": rows, "totals": totals_of(rows), "every_s": EVERY_S}

    return [site.page("/clusters", "clusters.html", "clusters", show, still_s=EVERY_S / 2)]
