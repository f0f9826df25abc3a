"""REST routes for the audit trail: who told the cluster what, and what came of it. Admins only."""

from collections.abc import Sequence
from typing import Final

from starlette.requests import Request

from stoker.api.http.responses import caller_of, query_of
from stoker.api.http.routing import Routes
from stoker.api.requests import READ
from stoker.brain.domain.array import JobRef, count_of, parse_job_ref
from stoker.brain.domain.audit import OK, REFUSED, UNCHANGED, AuditQuery, AuditRow
from stoker.brain.domain.errors import refusal_error
from stoker.brain.domain.suggestion import nearest
from stoker.brain.domain.units import NEVER, Instant
from stoker.brain.state.events.leadership import RESTORE
from stoker.control.access import require_admin
from stoker.control.audit_actions import ACTIONS
from stoker.control.audit_trail import ASK, BACKUP, DROPPED
from stoker.control.control_plane import ControlPlane
from stoker.control.queries.job_listing import check_tenant
from stoker.control.queries.job_lookup import record_of
from stoker.ports import HistoryFailed
from stoker.wire import endpoints
from stoker.wire.rest.audit import AUDIT_MAX, AuditListQuery, AuditListView, audit_view
from stoker.wire.status import STATUSES
from stoker.wire.text import parse_timestamp

_REFUSALS: Final = (
    *("not_allowed", "unknown_outcome", "unknown_action", "unknown_tenant", "bad_moment"),
    *("bad_job_id", "bad_array", "several_jobs", "history_unavailable"),
)
_OUTCOMES: Final = (OK, UNCHANGED, REFUSED)
_ACTIONS: Final = (*ACTIONS.values(), READ, ASK, DROPPED, BACKUP, RESTORE)


def routes(control: ControlPlane) -> Routes:
    router = Routes()

    @router.serve(endpoints.AUDIT, *_REFUSALS)
    async def audit(request: Request) -> AuditListView:
        """List what people told the cluster, newest first, and what came of it."""
        require_admin(caller_of(request))
        asked = query_of(request, AuditListQuery)
        limit = min(asked.limit, AUDIT_MAX)
        query = await _query(control, asked)
        rows = await newest_rows(control, query, _below(asked.after), limit + 1)
        if asked.tenant and not rows and not asked.after:
            check_tenant(control.committer.state, asked.tenant)
        following = str(rows[limit - 1].key) if len(rows) > limit else None
        return audit_view(rows[:limit], limit, following)

    return router


async def newest_rows(control: ControlPlane, query: AuditQuery, below: int, most: int) -> list[AuditRow]:
    """Raises: StokerError `history_unavailable`."""
    try:
        return await control.history.audit(query, below, most)
    except HistoryFailed as fault:
        raise refusal_error(
            "history_unavailable",
            f"the audit trail can't be read now: {fault}",
            "what is told meanwhile is kept, and written later; see `history_failed` in the control plane's log",
        ) from fault


async def _query(control: ControlPlane, asked: AuditListQuery) -> AuditQuery:
    now = control.committer.now()
    return AuditQuery(
        since=Instant(parse_timestamp(asked.since, now)) if asked.since else NEVER,
        until=Instant(parse_timestamp(asked.until, now)) if asked.until else NEVER,
        by=asked.by,
        action=_action(asked.action),
        outcome=_outcome(asked.outcome),
        tenant=asked.tenant,
        job=await _ref(control, asked.job) if asked.job else None,
    )


def _outcome(word: str) -> str:
    """Raises: StokerError `unknown_outcome`: a misspelt code would look as if nothing had been refused so."""
    if not word or word in _OUTCOMES or word in STATUSES:
        return word
    hint = _meant(word, (*_OUTCOMES, *STATUSES), "`ok`, `unchanged`, `refused`, or the code of a refusal")
    raise refusal_error("unknown_outcome", f"no command ends as {word[:80]!r}", hint, got=word[:80])


def _action(word: str) -> str:
    """Raises: StokerError `unknown_action`, for the same reason."""
    if not word or word in _ACTIONS or word.startswith(f"{READ}_"):
        return word
    hint = _meant(word, _ACTIONS, f"known are: {', '.join(_ACTIONS)}")
    raise refusal_error("unknown_action", f"no command is called {word[:80]!r}", hint, got=word[:80])


def _meant(word: str, known: Sequence[str], nothing: str) -> str:
    near = nearest(word, known)
    return f"did you mean `{near}`?" if near else nothing


async def _ref(control: ControlPlane, text: str) -> JobRef:
    """A job or array, or one member by its array: under that its orders are kept."""
    ref = parse_job_ref(text)
    if ref.members is not None:
        if count_of(ref.members) > 1:
            message = f"{text[:80]} names several members, and one is wanted"
            raise refusal_error("several_jobs", message, f"name one of them, or the whole array: `{ref.job}`")
        return ref
    found = control.committer.state.locate(ref.job)
    if found.members is not None:
        return found
    record = await record_of(control, ref.job)
    if record is not None and record.array_of:
        return JobRef(record.array_of, ((record.array_index, record.array_index, 1),))
    return ref


def _below(after: str) -> int:
    """Raises: StokerError `bad_parameter`."""
    if not after:
        return 0
    if after.isascii() and after.isdigit() and len(after) <= 18 and int(after) > 0:
        return int(after)
    raise refusal_error(
        "bad_parameter", f"`after`: {after[:80]!r} is no row", "give the `next` of the page before", path="after"
    )
