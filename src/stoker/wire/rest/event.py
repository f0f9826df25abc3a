"""REST shape of an event in the event stream.

Source: the HTML standard, server-sent events. The id of a message is the fact's position in the log, so that
`Last-Event-ID` resumes where a reader was.
"""

import msgspec

from stoker.brain.domain.ids import Position
from stoker.brain.state.codec import Fact
from stoker.brain.state.events.union import Event
from stoker.wire.rest.view import iso


class EventView(msgspec.Struct, frozen=True, kw_only=True):
    """One fact. `event` is as the log holds it; its member `type` names it, and times in it are milliseconds."""

    position: int
    at: str
    by: str
    event: Event


class EventQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`after` is for readers that can't set the header `Last-Event-ID`. Empty = from now on."""

    after: str = ""


def event_view(position: Position, fact: Fact) -> EventView:
    return EventView(position=position, at=iso(fact.at), by=fact.by, event=fact.event)
