"""REST for usage: who used how much of the cluster."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from stoker.brain.domain.errors import StokerError, refuse
from stoker.brain.domain.ids import Position
from stoker.brain.domain.units import Instant
from stoker.brain.domain.usage import UsageQuery
from stoker.live.control import ControlPlane
from stoker.live.http.answers import json_answer, query_of
from stoker.live.http.contract import json_content, route
from stoker.live.usage import usage_report
from stoker.ports import HistoryFailed
from stoker.wire.moment import parse_moment
from stoker.wire.rest.instant import iso
from stoker.wire.rest.usage import UsageAsked, UsageView, cluster_usage_view, line_view
from stoker.wire.versions import API_PREFIX


def routes(control: ControlPlane) -> APIRouter:
    router = APIRouter(prefix=API_PREFIX, tags=["usage"])

    @router.get(
        "/usage",
        **route(json_content(UsageView), query=UsageAsked, refusals=("bad_moment", "history_unavailable")),
    )
    async def usage(request: Request) -> Response:
        """Sum up what was used, by tenant, user, job or node."""
        return json_answer(await _report(control, query_of(request, UsageAsked)))

    return router


async def _report(control: ControlPlane, asked: UsageAsked) -> UsageView:
    now = control.committer.now()
    query = _query(asked, now)
    try:
        report = await usage_report(control, query, now)
    except HistoryFailed as fault:
        hint = "scheduling goes on; see `history_failed` in the control plane's log"
        raise StokerError(refuse("history_unavailable", f"usage can't be summed up now: {fault}", hint)) from fault
    return UsageView(
        since=iso(query.since),
        to=iso(query.until),
        by=asked.what,
        tenant=asked.tenant,
        user=asked.user,
        lines=[line_view(line) for line in report.lines],
        more=report.more,
        total=line_view(report.total),
        cluster=cluster_usage_view(report.capacity_gpu_ms, report.allocated_gpu_ms),
    )


def _query(asked: UsageAsked, now: Instant) -> UsageQuery:
    since, until = parse_moment(asked.since, now), min(parse_moment(asked.to, now), now)
    if since >= until:
        raise StokerError(
            refuse(
                "bad_moment",
                f"the span from {asked.since[:80]!r} to {asked.to[:80]!r} is empty: {iso(Instant(since))} isn't before "
                f"{iso(Instant(until))}",
                "let `from` be before `to` and in the past",
            )
        )
    return UsageQuery(
        since=Instant(since),
        until=Instant(until),
        by=asked.what,
        tenant=asked.tenant,
        user=asked.user,
        through=Position(0),
    )
