"""The page of tenants: the tree with what each may have, has, borrows and lends, its fair share, and its usage."""

from typing import Final

from starlette.requests import Request
from starlette.routing import Route

from stoker.web.site import Context, Site
from stoker.wire import endpoints

SPANS: Final = (("1d", "Day"), ("7d", "Week"), ("30d", "Month"))


def routes(site: Site) -> list[Route]:
    """Return the route of the page of tenants."""

    async def show(request: Request) -> Context:
        wanted = request.query_params.get("from", "7d")
        span = wanted if wanted in dict(SPANS) else "7d"
        listed = await site.ask(request, endpoints.TENANTS)
        usage = await site.ask(
            request, endpoints.USAGE, {"from": span, "by": "tenant", "tree": "true", "shares": "true"}
        )
        by_user = await site.ask(request, endpoints.USAGE, {"from": span, "by": "user"})
        return {
            "tenants": sorted(listed.tenants, key=lambda tenant: tenant.path.split("/")),
            "quota": await site.ask(request, endpoints.QUOTA),
            "usage": usage,
            "used_of": {line.key: line for line in usage.lines},
            "share_of": {line.tenant: line for line in usage.shares.lines} if usage.shares else {},
            "by_user": by_user,
            "span": span,
            "spans": SPANS,
        }

    return [site.page("/tenants", "tenants.html", "tenants", show)]
