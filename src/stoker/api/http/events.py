"""REST routes for the event stream, which sends each event once it is durable.

Rules: E1  the id of a message is its position in the log; a reader that sends it as `Last-Event-ID` misses nothing. A
           standby shows facts as they reach its disk, of which the last few may be taken back when the active one dies
           in that moment: who needs each of them asks with `Stoker-Stale: no`
       E2  a reader that can't be served without a gap is told so by one message `lost`, whose id is where it may go on
       E3  who may not see everything hears of what he sees, with gaps between the ids
       E4  once its token is revoked or has expired, a stream ends with one message `refused`
       E5  a quiet stream says `: beat` every BEAT_S, so that a dead peer is noticed on both sides
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from functools import partial
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from stoker.api.http.guard import is_head
from stoker.api.http.responses import EndlessResponse, StreamLimit, caller_of, query_of
from stoker.api.http.routing import REF, Content, Routes
from stoker.brain.domain.errors import refuse
from stoker.brain.domain.ids import Position
from stoker.brain.state.codec import Fact
from stoker.control.access import token_unknown
from stoker.control.control_plane import ControlPlane
from stoker.control.feed import Entry, FeedLost
from stoker.control.queries.event_visibility import VisibleEvents, drop
from stoker.wire import endpoints
from stoker.wire.rest.decode import bad_value
from stoker.wire.rest.event import EventQuery, EventView, event_view
from stoker.wire.rest.problem import problem_of

STREAMS_MAX: Final = 256
"""Each costs a copy of every fact."""
BEAT_S: Final = 15.0
"""Below the minute after which proxies cut a silent connection."""
MESSAGE_BYTES_KEPT: Final = 4_096
"""Of shorter ones it costs as much to look for them; those of who hears a part only are short."""
MESSAGES_KEPT_MAX: Final = 16
"""Readers that keep up are at the same one or nearly so; the largest has 250 KB."""
MEDIA_TYPE: Final = "text/event-stream"

_DATA: Final = {
    "type": "string",
    "contentMediaType": "application/json",
    "contentSchema": {"$ref": REF.format(name=EventView.__name__)},
}
_MESSAGES: Final[Content] = {
    MEDIA_TYPE: {
        "schema": {
            "type": "object",
            "description": "One message of the stream. Those without data only say how far the stream has come.",
            "properties": {"id": {"type": "string"}, "event": {"type": "string"}, "data": _DATA},
        }
    }
}

Watch = Callable[[], Coroutine[None, None, None]]
"""Returns once the reader may not listen any more."""

_encode = msgspec.json.Encoder().encode


def routes(control: ControlPlane) -> Routes:
    router = Routes()
    cache = MessageCache()
    readers = StreamLimit(STREAMS_MAX, "follow the events", "close some, or read the lists instead")

    @router.serve(endpoints.EVENTS, "too_many_streams", content=_MESSAGES)
    async def events(request: Request) -> Response:
        """Follow what happens. Each message's data is an EventView."""
        caller, query = caller_of(request), query_of(request, EventQuery)
        after = _position(request.headers.get("last-event-id", "") or query.after)
        if is_head(request):
            return Response(media_type=MEDIA_TYPE)
        heard = VisibleEvents(control, caller, control.committer.feed.subscribe(after))
        return EndlessResponse(
            readers,
            caller,
            messages(heard, partial(control.access.watch, caller), cache.message),
            {"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
            MEDIA_TYPE,
        )

    return router


class MessageCache:
    """The newest large messages, so that a fact is encoded once for all who hear the whole of it.

    Each submit of a job of 250 KB would otherwise cost 20 ms where 64 readers listen, in which nobody else is answered.
    """

    def __init__(self) -> None:
        self._kept: dict[int, tuple[Fact, bytes]] = {}
        """By the identity of the fact, which lives as long as its message."""

    def message(self, entry: Entry) -> bytes:
        fact = entry[1]
        kept = self._kept.get(id(fact))
        if kept is not None:
            return kept[1]
        message = _message(entry)
        if len(message) >= MESSAGE_BYTES_KEPT:
            self._kept[id(fact)] = fact, message
            if len(self._kept) > MESSAGES_KEPT_MAX:
                del self._kept[next(iter(self._kept))]
        return message


async def messages(heard: VisibleEvents, revoked: Watch, draw: Callable[[Entry], bytes]) -> AsyncGenerator[bytes, None]:
    """The stream, until its reader goes away, falls behind or may not listen any more, or the control plane stops."""
    over, upcoming = asyncio.ensure_future(revoked()), asyncio.ensure_future(heard.next())
    try:
        yield b": stoker\n\n"
        while True:
            await asyncio.wait({upcoming, over}, timeout=BEAT_S, return_when=asyncio.FIRST_COMPLETED)
            if over.done():
                yield _refused()
                return
            if not upcoming.done():
                yield _beat(heard.passed)
                continue
            entry = upcoming.result()
            if entry is None:
                return
            yield draw(entry)
            upcoming = asyncio.ensure_future(heard.next())
    except FeedLost as lost:
        yield _lost(lost)
    finally:
        drop(upcoming)
        over.cancel()


def _beat(passed: Position | None) -> bytes:
    """An id without data is remembered by a browser and told to nobody: what wasn't heard needn't be gone through
    again."""
    return b": beat\n\n" if passed is None else b": beat\nid: %d\n\n" % passed


def _message(entry: Entry) -> bytes:
    position, fact = entry
    shown = event_view(position, fact)
    kind = type(fact.event).__struct_config__.tag
    return b"id: %d\nevent: %b\ndata: %b\n\n" % (position, str(kind).encode(), _encode(shown))


def _refused() -> bytes:
    """E4. A browser, which reconnects by itself, is refused then and gives up."""
    return b"event: refused\ndata: %b\n\n" % _encode(problem_of(token_unknown().refusal))


def _lost(lost: FeedLost) -> bytes:
    refusal = refuse(
        "feed_lost",
        f"what happened after position {lost.position} can't be told without a gap",
        f"read the lists anew, then follow from position {lost.oldest - 1}",
        position=lost.position,
        oldest=lost.oldest,
    )
    # With this id a browser, which reconnects by itself, goes on instead of getting lost again.
    return b"id: %d\nevent: lost\ndata: %b\n\n" % (lost.oldest - 1, _encode(problem_of(refusal)))


def _position(text: str) -> Position | None:
    if not text:
        return None
    if text.isascii() and text.isdigit() and len(text) <= 16:
        return Position(int(text))
    raise bad_value("Last-Event-ID", wanted="a position in the log", got=repr(text[:40]), kind="parameter")
