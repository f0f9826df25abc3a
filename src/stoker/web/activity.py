"""The page of events as they come and, to admins, of the audit trail, with its query in the address."""

from typing import Final, get_args
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.routing import Route

from stoker.api.http.responses import caller_of
from stoker.brain.domain.access import Role
from stoker.brain.state.events.union import Event
from stoker.web.site import Context, Site
from stoker.wire import endpoints
from stoker.wire.rest.audit import AuditListQuery

RECENT: Final = 200
"""Facts that are told again when the page is opened, as far as the feed still has them."""
_KINDS: Final = [str(kind.__struct_config__.tag) for kind in get_args(Event)]
"""Names of the messages of the stream: a browser hears only those that it is told the names of."""
_FIELDS: Final = AuditListQuery.__struct_fields__


def routes(site: Site) -> list[Route]:
    """Return the route of the page of events."""

    async def show(request: Request) -> Context:
        given = {name: value for name, value in request.query_params.items() if name in _FIELDS and value}
        trail = None
        if caller_of(request).role is Role.ADMIN:
            trail = await site.ask(request, endpoints.AUDIT, {"limit": "50", **given})
        feed = site.control.committer.feed
        after = max(feed.oldest - 1, feed.newest - RECENT, 0)
        following = urlencode({**given, "after": trail.next}) if trail is not None and trail.next else ""
        return {
            "trail": trail,
            "given": {name: given.get(name, "") for name in _FIELDS},
            "after": after,
            "kinds": _KINDS,
            "next": f"/activity?{following}" if following else "",
            "source": f"/activity?{urlencode(given)}" if given else "/activity",
        }

    return [site.page("/activity", "activity.html", "activity", show)]
