"""The page of tenants: the tree with what each may have, has, borrows and lends, its fair share, and its usage.

Usage over time is asked apart from the rest (`/tenants/usage`), a question for each part of the span, and seldom.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, Final

from starlette.requests import Request
from starlette.routing import Route

from stoker.web.formatting import percent
from stoker.web.site import Context, Site
from stoker.wire import endpoints

SPANS: Final = (("1d", "Day"), ("7d", "Week"), ("30d", "Month"))
_PARTS: Final = {"1d": (12, 2), "7d": (14, 12), "30d": (15, 48)}
"""Of each span: parts, and hours of each."""
OTHERS: Final = "others"
TENANTS_DRAWN: Final = 7
"""Those that used most, each in a colour of its own; the others together."""


def routes(site: Site) -> list[Route]:
    """Return the route of the page of tenants."""

    async def show(request: Request) -> Context:
        span = _span_of(request)
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

    async def over_time(request: Request) -> Context:
        span = _span_of(request)
        count, hours = _PARTS[span]
        end = datetime.fromisoformat(site.now)
        ends = [end - timedelta(hours=hours * back) for back in range(count, -1, -1)]
        parts: list[dict[str, float]] = []
        for since, to in pairwise(ends):
            query = {"from": since.isoformat(), "to": to.isoformat(), "by": "tenant"}
            lines = (await site.ask(request, endpoints.USAGE, query)).lines
            parts.append({line.key: line.gpu_hours for line in lines if line.gpu_hours})
        return {"span": span, **usage_bars(parts, ends)}

    return [
        site.page("/tenants", "tenants.html", "tenants", show),
        site.page("/tenants/usage", "tenant_usage.html", "tenants", over_time),
    ]


def _span_of(request: Request) -> str:
    wanted = request.query_params.get("from", "7d")
    return wanted if wanted in dict(SPANS) else "7d"


def usage_bars(parts: Sequence[Mapping[str, float]], ends: Sequence[datetime]) -> dict[str, Any]:
    """Return bars of GPU hours, a stack for each part of a span: `parts` by tenant, `ends` one moment more than those.

    Positions are in percent of the width and of the highest stack.
    """
    sums: Counter[str] = Counter()
    for part in parts:
        sums.update(part)
    drawn = sorted(sums, key=lambda name: (-sums[name], name))[:TENANTS_DRAWN]
    names = [*drawn, OTHERS] if len(sums) > len(drawn) else drawn
    highest = max((sum(part.values()) for part in parts), default=0.0)
    stacks = []
    for at, part in enumerate(parts):
        others = sum(hours for name, hours in part.items() if name not in drawn)
        bottom, rows = 0.0, []
        for place, name in enumerate(names):
            hours = others if name == OTHERS else part.get(name, 0.0)
            if hours:
                height = percent(hours, highest)
                rows.append(
                    {"place": place, "name": name, "hours": hours, "y": 100 - bottom - height, "height": height}
                )
                bottom += height
        stacks.append({"x": percent(at, len(parts)), "at": ends[at].isoformat(), "rows": rows})
    legend = [(place, name, sums.get(name)) for place, name in enumerate(names)]
    return {"stacks": stacks, "width": percent(0.86, len(parts)), "legend": legend, "highest": highest}
