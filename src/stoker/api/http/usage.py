"""REST routes for usage: who used how much of the cluster."""

from typing import Final

from starlette.requests import Request

from stoker.api.http.responses import caller_of, query_of
from stoker.api.http.routing import Routes
from stoker.brain.domain.access import Caller, Role
from stoker.brain.domain.errors import refusal_error
from stoker.brain.domain.ids import Position, TenantName
from stoker.brain.domain.tenant import NO_TENANT, is_within
from stoker.brain.domain.units import SECOND_MS, Instant
from stoker.brain.domain.usage import UsageBy, UsageQuery, as_tree
from stoker.brain.engine.fair_share import WHOLE
from stoker.brain.engine.share_report import NextJob, TenantShare, share_report
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.state_view import StateView
from stoker.control.access import Sights, not_allowed, reaches
from stoker.control.control_plane import ControlPlane
from stoker.control.queries.job_listing import check_tenant
from stoker.control.queries.usage import LINES_MAX, usage_report
from stoker.ports import HistoryFailed
from stoker.wire import endpoints
from stoker.wire.rest.decode import bad_value
from stoker.wire.rest.usage import (
    NextJobView,
    ShareLineView,
    SharesView,
    UsageReportQuery,
    UsageView,
    cluster_usage_view,
    line_view,
    tree_line_view,
)
from stoker.wire.rest.view import iso, view_of
from stoker.wire.rest.why import PriorityView
from stoker.wire.text import parse_timestamp

_REFUSALS: Final = ("bad_moment", "unknown_tenant", "history_unavailable")
TREE_LINES_MAX: Final = 10_000
"""As many as there may be tenants: a tree without its leaves would have wrong sums."""


def routes(control: ControlPlane) -> Routes:
    router = Routes()

    @router.serve(endpoints.USAGE, *_REFUSALS)
    async def usage(request: Request) -> UsageView:
        """Sum up what was used, by tenant, user, job or node. A token that is bound to a tenant sees that tenant's use
        and that of those beneath it."""
        return await _report(control, caller_of(request), query_of(request, UsageReportQuery))

    return router


async def _report(control: ControlPlane, caller: Caller, asked: UsageReportQuery) -> UsageView:
    state, now = control.committer.state, control.committer.now()
    query = _query(asked, now, _among(state, caller, asked))
    try:
        report = await usage_report(control, query, now, lines_max=TREE_LINES_MAX if asked.tree else LINES_MAX)
    except HistoryFailed as fault:
        hint = "scheduling goes on; see `history_failed` in the control plane's log"
        raise refusal_error("history_unavailable", f"usage can't be summed up now: {fault}", hint) from fault
    if asked.tenant and not report.lines:
        check_tenant(state, asked.tenant)
    return UsageView(
        since=iso(query.since),
        to=iso(query.until),
        by=asked.what,
        tenant=asked.tenant,
        user=asked.user,
        tree=asked.tree,
        lines=[tree_line_view(line) for line in as_tree(report.lines, state.tenants, _top(caller, asked))]
        if asked.tree
        else [line_view(line) for line in report.lines],
        more=report.more,
        total=line_view(report.total),
        cluster=cluster_usage_view(report.capacity_gpu_ms, report.allocated_gpu_ms),
        shares=_shares(state, caller, asked, now) if asked.shares else None,
    )


def _shares(state: ClusterState, caller: Caller, asked: UsageReportQuery, now: Instant) -> SharesView:
    """The fair shares of the tenants that the caller sees, or of the tree that is asked for."""
    seen, policy, wanted = Sights(state, caller).tenants(), state.policy, TenantName(asked.tenant)
    among = seen
    if wanted:
        among = frozenset(name for name in state.tenants if is_within(state.tenants, name, wanted))
    report = share_report(StateView(state), policy, now, among)
    following = report.next if report.next and (seen is None or report.next.tenant in seen) else None
    return SharesView(
        points=policy.fair_share_points,
        half_life_s=policy.fair_share_half_life_ms // SECOND_MS,
        lines=[_share_line(line) for line in report.lines],
        more=report.more,
        next=following and _next_view(state, following),
        message=report.why,
    )


def _share_line(line: TenantShare) -> ShareLineView:
    return view_of(
        ShareLineView,
        line,
        entitled_percent=_percent(line.entitled),
        used_percent=_percent(line.used),
        fair_share=line.term,
        pending_jobs=line.pending,
    )


def _percent(part: int) -> float:
    """For people."""
    return round(100 * part / WHOLE, 3)


def _next_view(state: ClusterState, job: NextJob) -> NextJobView:
    known = state.find(state.locate(job.job))
    return NextJobView(
        job_id=known.label if known else str(job.job),
        tenant=job.tenant,
        priority=view_of(PriorityView, job.priority),
    )


def _top(caller: Caller, asked: UsageReportQuery) -> TenantName:
    """The highest tenant of which all is summed up. Empty = there is none."""
    return TenantName(asked.tenant) or (NO_TENANT if caller.role is Role.ADMIN else caller.tenant)


def _among(state: ClusterState, caller: Caller, asked: UsageReportQuery) -> frozenset[TenantName] | None:
    """The tenants whose use may be shown, and is asked for. None = of all. Raises: StokerError `not_allowed`."""
    wanted = TenantName(asked.tenant)
    if wanted and not reaches(state, caller, wanted):
        raise not_allowed(
            f"the use of tenant {wanted[:80]} was asked for, and your token is for {caller.home} and those beneath it",
            "leave `tenant` out, or ask an admin",
        )
    if wanted and asked.tree:
        return frozenset(name for name in state.tenants if is_within(state.tenants, name, wanted)) | {wanted}
    return Sights(state, caller).tenants()


def _query(asked: UsageReportQuery, now: Instant, among: frozenset[TenantName] | None) -> UsageQuery:
    if asked.tree and asked.what is not UsageBy.TENANT:
        wanted = "left out, or `by` must be tenant: only tenants form a tree"
        raise bad_value("tree", wanted=wanted, got=f"true beside by={asked.by}", kind="parameter")
    since, until = parse_timestamp(asked.since, now), min(parse_timestamp(asked.to, now), now)
    if since >= until:
        raise refusal_error(
            "bad_moment",
            f"the span from {asked.since[:80]!r} to {asked.to[:80]!r} is empty: {iso(Instant(since))} isn't before "
            f"{iso(Instant(until))}",
            "let `from` be before `to` and in the past",
        )
    return UsageQuery(
        since=Instant(since),
        until=Instant(until),
        by=asked.what,
        tenant="" if asked.tree else asked.tenant,
        user=asked.user,
        among=among,
        through=Position(0),
    )
