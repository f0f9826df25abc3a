"""The stream that keeps pages alive: which kinds of things have changed, told to all readers alike.

A tick names topics and no fact, so one message serves every reader, whatever each may see; a page then asks for what it
shows, as its reader. The facts themselves are in `/api/v1/events`.

Rules: T1  a tick follows a durable fact at once, and the next one GAP_S later at the soonest: of many facts one tick
       T2  without news a beat comes every BEAT_S, so that a page knows that it is told everything
       T3  the stream ends with the session of its reader, with a word that says so, and with the tenure of its control
           plane; a page then comes back by itself
Limits: READERS_MAX streams, a quarter of them of one principal; the pages of one browser share one.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stoker.api.http.responses import EndlessResponse, StreamLimit, caller_of
from stoker.brain.domain.access import Caller
from stoker.control.control_plane import ControlPlane
from stoker.control.feed import Entry
from stoker.web.site import Site
from stoker.wire.endpoints import PRODUCT
from stoker.wire.rest.view import iso

GAP_S: Final = 0.25
BEAT_S: Final = 5.0
READERS_MAX: Final = 512
_MEDIA_TYPE: Final = "text/event-stream"
_HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class PageTick(msgspec.Struct, frozen=True, kw_only=True):
    """One message of the stream."""

    topics: list[str] = []
    """The modules of `stoker.brain.state.events` whose kinds of events happened. Empty = a beat."""
    now: str
    """The control plane's clock, by which a page tells ages however wrong the browser's is."""
    version: str = PRODUCT
    cluster: str
    """Id of the cluster, by which a page knows that another one answers at its address."""
    ended: bool = False
    """The reader's session is over."""


_encode = msgspec.json.Encoder().encode


class Ticks:
    """Ticks of one control plane, for any number of readers."""

    def __init__(self, control: ControlPlane) -> None:
        self._control = control
        self._readers = StreamLimit(READERS_MAX, "look at pages", "close some pages")
        self._newest = 0
        self._changed: dict[str, int] = {}
        """By topic: the number of its newest change."""
        self._news = asyncio.Event()
        self._listens = False

    def route(self) -> Route:
        """Return the route of the stream."""
        return Route("/live", self._follow, methods=["GET"])

    async def _follow(self, request: Request) -> Response:
        if not self._listens:
            self._listens = True
            self._control.committer.on_durable(self._committed)
        caller = caller_of(request)
        return EndlessResponse(self._readers, caller, self._messages(caller), _HEADERS, _MEDIA_TYPE)

    def _committed(self, entries: Sequence[Entry]) -> None:
        if not self._readers.count:
            return
        for _, fact in entries:
            self._newest += 1
            self._changed[type(fact.event).__module__.rpartition(".")[2]] = self._newest
        # Readers that wait hold the old event; later ones wait for the next news.
        self._news.set()
        self._news = asyncio.Event()

    async def _messages(self, caller: Caller) -> AsyncGenerator[bytes, None]:
        control, seen = self._control, self._newest
        over = asyncio.ensure_future(control.access.watch(caller))
        closed = asyncio.ensure_future(control.committer.feed.until_closed())
        try:
            yield b"retry: 1000\n\n" + self._message([])
            while True:
                news = asyncio.ensure_future(self._news.wait())
                try:
                    await asyncio.wait({news, over, closed}, timeout=BEAT_S, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    news.cancel()
                if over.done():
                    yield self._message([], ended=True)
                    return
                if closed.done():
                    return
                topics = [topic for topic, number in self._changed.items() if number > seen]
                seen = self._newest
                yield self._message(topics)
                if topics:
                    await control.clock.sleep(GAP_S)
        finally:
            over.cancel()
            closed.cancel()

    def _message(self, topics: list[str], *, ended: bool = False) -> bytes:
        committer = self._control.committer
        tick = PageTick(topics=topics, now=iso(committer.now()), cluster=str(committer.state.cluster_id), ended=ended)
        return b"data: %b\n\n" % _encode(tick)


def routes(site: Site) -> list[Route]:
    """Return the route of the stream of ticks."""
    return [Ticks(site.control).route()]
