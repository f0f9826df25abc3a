"""REST routes for jobs: submit, list, show, operations on them, why each waits, and what happened to it.

An operation on one job, one member or a whole array is answered with it; one on several members with those.

Rules: A1  an answer with several jobs leaves out their commands and environments, unless a list is asked for them
       A2  it ends with the job that reaches ANSWER_BYTES_MAX; the answer to a submit names all jobs
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, get_args

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from stoker.api.http.audit import newest_rows
from stoker.api.http.gpu_figures import job_view_with_gpus
from stoker.api.http.responses import (
    ANSWER_BYTES_MAX,
    BYTES_PER_TURN,
    ListParts,
    ListResponse,
    body_of,
    caller_of,
    drawn_in_turns,
    json_response,
    key_of,
    lookup_job_at,
    lookup_seen_job_at,
    query_of,
    raw_json,
    read_body,
    repeat_headers,
)
from stoker.api.http.routing import BODY, CHANGE, JOB, KEYED, LIST, LOOKUP, SUBMIT, Routes
from stoker.brain.domain.access import Caller
from stoker.brain.domain.array import JobRef, count_of, parse_job_ref
from stoker.brain.domain.audit import OK, AuditQuery
from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.gpu import gpus_number
from stoker.brain.domain.ids import JobId
from stoker.brain.domain.job import Job, JobSpec
from stoker.brain.domain.sight import Sight, seen_job
from stoker.brain.domain.units import Instant, counted
from stoker.brain.engine.queue_order import queue_position
from stoker.brain.state.blocking_jobs import Blocking, BlockingJob, blocking_jobs
from stoker.brain.state.commands import JobOperation, SignalJob
from stoker.brain.state.quota_report import LentGuarantee, lent_guarantees, unmet_guarantees
from stoker.brain.state.state_view import StateView
from stoker.control.access import Sights
from stoker.control.control_plane import ControlPlane
from stoker.control.job_operations import carry_out_operation, reach_text
from stoker.control.job_preview import JobPreviews
from stoker.control.queries.job_details import (
    AlternativeSearches,
    ListedJobs,
    in_list,
    job_details,
    job_details_for,
    listed_jobs,
    members_named,
)
from stoker.control.queries.job_history import story_of
from stoker.control.queries.job_listing import filter_of, page_of, select
from stoker.control.queries.job_lookup import names_several
from stoker.control.queries.planned_starts import reservation_of
from stoker.control.submission import Submitted, of_index, spec_for, submitted
from stoker.wire import endpoints
from stoker.wire.rest.audit import AUDIT_MAX, JobEventsQuery, JobEventsView
from stoker.wire.rest.decode import NoBody, decode_body, decode_list, decode_members, unknown_name
from stoker.wire.rest.job import (
    ForgottenJobView,
    JobDetails,
    JobListQuery,
    JobView,
    as_seen,
    job_view,
)
from stoker.wire.rest.submit import JobBody, JobPatch, JobsBody, ScriptView, script_view
from stoker.wire.rest.view import iso, view_of
from stoker.wire.rest.why import (
    BlockingJobView,
    HolderView,
    LentView,
    PreviewView,
    PriorityView,
    QueuePlace,
    WaitDetails,
    WhyView,
    why_view,
)

BODIES_PER_TURN: Final = 256
"""Jobs read before others get a turn: about a millisecond."""
ROWS_MAX: Final = 4_096
"""Rows of lists kept: about 4 MiB, and four of the longest pages. Beyond it the one that was made first goes."""
ROWS_BYTES_MAX: Final = 16 << 20
"""Of all rows that are kept; a job of many ranks and attempts has a long one."""
HOLDERS_NAMED_MAX: Final = 5
"""Holders of a lent guarantee in the sentence; the answer has them all."""
OPERATIONS_MAX: Final = 2_000
"""Of more operations on one job the newest are shown: an array may have as many as it has members. About 25 ms."""

_COMMANDS: Final = {kind.row.action: kind for kind in get_args(JobOperation)}
_encode = msgspec.json.Encoder().encode


def routes(control: ControlPlane) -> Routes:
    router = Routes()
    rows, previews = RowCache(control), JobPreviews(control)

    @router.serve(endpoints.SUBMIT, *BODY, *SUBMIT, *KEYED, *CHANGE)
    async def submit(request: Request) -> Response:
        """Submit one job, or all or none of `{"jobs": [...]}`."""
        caller, data = caller_of(request), await body_of(request)
        key = key_of(request, data, "jobs")
        # Most bodies are one job; only where the word stands in it, or may be written otherwise, they are looked into.
        members = decode_members(data) if b'"jobs"' in data or b"\\u" in data else {}
        if "jobs" in members:
            specs = await _specs(control, caller, members)
            return await _many(control, caller, await submitted(control, caller, specs, key))
        spec = spec_for(control, caller, decode_body(JobBody, data), control.committer.now())
        return _one(control, caller, await submitted(control, caller, (spec,), key))

    @router.serve(endpoints.PREVIEW, *BODY)
    async def preview(request: Request) -> PreviewView:
        """Say what would become of a job, and submit nothing. What a submit refuses is part of the answer."""
        caller, body = caller_of(request), await read_body(request, JobBody)
        return await previews.of(caller, body)

    @router.serve(endpoints.JOBS, *LIST)
    async def list_jobs(request: Request) -> Response:
        """List jobs, newest first unless `sort` says otherwise."""
        caller, query = caller_of(request), query_of(request, JobListQuery)
        return ListResponse(control, caller, lambda: _page(control, rows, caller, query))

    @router.serve(endpoints.JOB, *LOOKUP)
    async def show(request: Request) -> JobView | Response:
        """Show one job, or several members of an array."""
        ref = parse_job_ref(request.path_params["job_id"])
        if not names_several(ref):
            details = job_details_for(control, caller_of(request), await lookup_job_at(request, control))
            return job_view_with_gpus(control, details)
        members = listed_jobs(control, members_named(control.committer.state, ref))
        content = b",".join(await drawn(control, members, Sights(control.committer.state, caller_of(request))))
        return raw_json(b'{"jobs":[%b],"total":%d}' % (content, count_of(ref.members or ())))

    for name, row in endpoints.ENDPOINTS.items():
        if row.job_operation:
            body_codes = () if row.method == "DELETE" else BODY
            router.serve(row, *JOB, *body_codes, *row.refusals, *CHANGE)(_operation(control, name, row))

    _serve_details(control, router)
    return router


def _serve_details(control: ControlPlane, router: Routes) -> None:
    """Serve what is asked of one job beside its record."""
    searches = AlternativeSearches(control)

    @router.serve(endpoints.WHY, *LOOKUP)
    async def why(request: Request) -> WhyView:
        """Say why a job waits, and where in the queue, or why it ended."""
        state = control.committer.state
        job, sight = await lookup_seen_job_at(request, control, Sight.OUTLINE)
        now = as_seen(job_details(control, job), sight)
        position = queue_position(StateView(state), state.policy, job, control.committer.now())
        place = view_of(QueuePlace, position, priority=view_of(PriorityView, position.priority)) if position else None
        lent = lent_view(lent_guarantees(state, job, now.reason))
        sees = Sights(state, caller_of(request))
        reservation = reservation_of(control, job) if position else None
        blocking = blocking_jobs(state, job, now.reason, control.committer.now(), reservation)
        others = await searches.of(job, now.reason) if position else []
        warnings = unmet_guarantees(state, job, now.reason)
        details = WaitDetails(place, lent, reservation=reservation, alternatives=others, warnings=warnings)
        return why_view(now, waits_for(details, job.id, blocking, sees))

    @router.serve(endpoints.SCRIPT, *LOOKUP, "not_allowed")
    async def script(request: Request) -> ScriptView:
        """Show the script that was submitted with a job, as it was then."""
        job, _ = await lookup_seen_job_at(request, control, Sight.FULL)
        return script_view(job)

    @router.serve(endpoints.JOB_EVENTS, *LOOKUP, "not_allowed")
    async def job_events(request: Request) -> JobEventsView:
        """Tell what happened to a job, newest last, and who told it what."""
        asked = query_of(request, JobEventsQuery)
        job, sight = await lookup_seen_job_at(request, control, Sight.OUTLINE)
        return await _story(control, seen_job(job, sight), asked)


def _one(control: ControlPlane, caller: Caller, answer: Submitted) -> Response:
    if answer.forgotten:
        job_id = str(answer.forgotten[0])
        said = f"job {job_id} was submitted under this key, and ended so long ago that its record is gone"
        return json_response(ForgottenJobView(id=job_id, job_id=job_id, message=said), 201, repeat_headers(answer))
    (job,) = answer.seen.jobs
    now = answer.seen.arrays.get(job.id) or job_details(control, job)
    # A repeat may show what was submitted with another token of the same user.
    now = as_seen(now, Sights(control.committer.state, caller)(job))
    return json_response(job_view(now, submitted=True), 201, repeat_headers(answer))


async def _many(control: ControlPlane, caller: Caller, answer: Submitted) -> Response:
    sees = Sights(control.committer.state, caller)
    content = b",".join(await drawn(control, answer.seen, sees, submitted=True))
    total = len(answer.seen.jobs) + len(answer.forgotten)
    gone = b',"forgotten":[%b]' % b",".join(b'"%d"' % job for job in answer.forgotten) if answer.forgotten else b""
    return raw_json(b'{"jobs":[%b],"total":%d%b}' % (content, total, gone), 201, repeat_headers(answer))


async def _page(control: ControlPlane, rows: "RowCache", caller: Caller, query: JobListQuery) -> ListParts:
    sees = Sights(control.committer.state, caller)
    wanted = filter_of(query, control.committer.now(), caller, sees)
    page = await page_of(control, query, sees)
    found = await select(control, wanted, page)
    jobs = listed_jobs(control, found.jobs)
    made = await (drawn(control, jobs, sees, full=True) if query.full else rows.of(jobs, sees))
    last = found.jobs[len(made) - 1].id if len(made) < len(found.jobs) else found.last
    following = b"null" if last is None else b'"%b"' % found.cursor(last).encode()
    return ListParts(b'{"jobs":[', made, b'],"total":%d,"limit":%d,"next":%b}' % (found.total, page.limit, following))


async def _specs(control: ControlPlane, caller: Caller, members: dict[str, msgspec.Raw]) -> list[JobSpec]:
    for name in members:
        if name != "jobs":
            raise unknown_name(name, JobsBody, "", "field")
    specs: list[JobSpec] = []
    now, read = control.committer.now(), 0
    for index, element in enumerate(decode_list(members["jobs"], "jobs")):
        at = f"jobs[{index}]"
        try:
            specs.append(spec_for(control, caller, decode_body(JobBody, element, at), now, at))
        except StokerError as fault:
            raise of_index(fault, index) from fault
        read += memoryview(element).nbytes
        if len(specs) % BODIES_PER_TURN == 0 or read >= BYTES_PER_TURN:
            read = 0
            await control.clock.sleep(0)
    return specs


# -- rows of lists -----------------------------------------------------------------------------------------------------


class RowCache:
    """Encoded list rows of one application, so that a job is encoded once for many lists.

    A list is asked for again and again while few of its jobs change. Records are frozen and replaced whole, so a row is
    good as long as the very same record is shown with the same reason and, of an array, the same counts; making one
    anew costs 6 us, keeping it 0.5.
    """

    def __init__(self, control: ControlPlane) -> None:
        self._control = control
        self._kept: dict[tuple[JobId, Sight], tuple[JobDetails, bytes]] = {}
        self._bytes = 0

    async def of(self, seen: ListedJobs, sees: Sights) -> list[bytes]:
        """Each job as JSON, as it is seen; the first ones, up to A2."""
        return await _each(self._control, seen, lambda now: self._row(now, sees(now.job)))

    def _row(self, now: JobDetails, sight: Sight) -> bytes:
        key = now.job.id, sight
        kept = self._kept.get(key)
        if kept is not None and kept[0].job is now.job and kept[0][1:] == now[1:]:
            return kept[1]
        content = _encode(job_view(in_list(now, sight)))
        self._bytes += len(content) - len(kept[1] if kept else b"")
        self._kept[key] = now, content
        while len(self._kept) > ROWS_MAX or self._bytes > ROWS_BYTES_MAX:
            _, gone = self._kept.pop(next(iter(self._kept)))
            self._bytes -= len(gone)
        return content


async def drawn(
    control: ControlPlane, seen: ListedJobs, sees: Sights, *, submitted: bool = False, full: bool = False
) -> list[bytes]:
    """Return the rows of jobs that nobody asks for again soon (A1, A2).

    `submitted`: all of them, with what the answer to a submit adds. `full`: with their commands and environments.
    """

    def draw(now: JobDetails) -> bytes:
        return _encode(job_view(in_list(now, sees(now.job), full=full), submitted=submitted))

    return await _each(control, seen, draw, bounded=not submitted)


async def _each(
    control: ControlPlane, seen: ListedJobs, draw: Callable[[JobDetails], bytes], *, bounded: bool = True
) -> list[bytes]:
    rows = (draw(seen.arrays.get(job.id) or job_details(control, job)) for job in seen.jobs)
    return await drawn_in_turns(control.clock, rows, ANSWER_BYTES_MAX if bounded else None)


# -- operations on jobs ------------------------------------------------------------------------------------------------


def _operation(
    control: ControlPlane, name: str, row: endpoints.Endpoint[Any]
) -> Callable[[Request], Awaitable[JobView | Response]]:
    """Return the handler of an operation on jobs: it gives the command whose action has this name.

    The fields of the body are those of the command, unless the body says otherwise (`command_fields`).
    """
    command = _COMMANDS[name]

    async def operate(request: Request) -> JobView | Response:
        given = {} if row.method == "DELETE" else await _fields_given(request, row, control.committer.now())
        caller, target = caller_of(request), parse_job_ref(request.path_params["job_id"])
        told = await carry_out_operation(control, caller, command(by=caller.principal, target=target, **given))
        if isinstance(told, JobDetails):
            said = reach_text(told, given["signal"]) if command is SignalJob else ""
            return msgspec.structs.replace(job_view(told), message=said)
        content = b",".join(await drawn(control, told.seen, Sights(control.committer.state, caller)))
        return raw_json(b'{"jobs":[%b],"total":%d,"changed":%d}' % (content, told.total, told.changed))

    operate.__name__, operate.__doc__ = name, row.job_operation
    return operate


async def _fields_given(request: Request, row: endpoints.Endpoint[Any], now: Instant) -> dict[str, Any]:
    data = await body_of(request)
    if row.body is None:
        # A body that says nothing is taken, one that says something is not: it would be meant.
        if data:
            decode_body(NoBody, data)
        return {}
    body = decode_body(row.body(), b"{}" if not data and row.body_may_lack else data)
    if isinstance(body, JobPatch):
        return {"changes": body.changes(now)}
    return body.command_fields() if hasattr(body, "command_fields") else msgspec.structs.asdict(body)


# -- why it waits, and what happened to it -----------------------------------------------------------------------------


def waits_for(known: WaitDetails, waiting: JobId, blocking: Blocking | None, sees: Sights) -> WaitDetails:
    """Add who holds what the job waits for, each as far as the caller sees it."""
    if blocking is None:
        return known
    views = [_blocking_view(each, waiting, sees(each.job)) for each in blocking.jobs]
    return known._replace(blocked_by=views, blocking_jobs=blocking.total, fits_by=blocking.fits_by)


def _blocking_view(blocking: BlockingJob, waiting: JobId, sight: Sight) -> BlockingJobView:
    job, named = blocking.job, sight is not Sight.REDUCED
    return BlockingJobView(
        id=job.label,
        name=job.spec.name if named else "",
        user=job.account if named else "",
        tenant=job.spec.tenant,
        gpus=gpus_number(blocking.gpu_milli),
        ends_by=iso(blocking.ends_by),
        ending=blocking.is_ending,
        gives_way=blocking.gives_way_to(waiting),
    )


def lent_view(lent: Sequence[LentGuarantee]) -> LentView | None:
    """Say which guarantees cover the job and who holds their GPUs; None where none is lent."""
    if not lent:
        return None
    holders = [HolderView(**holder._asdict()) for each in lent for holder in each.holders]
    within = " and ".join(
        f"{f'{each.name} jobs' if each.kind == 'class' else f'tenant {each.name}'} "
        f"({each.used} of {counted(each.guaranteed, 'GPU')} used)"
        for each in lent
    )
    return LentView(
        message=f"it is within the guarantee of {within}, and GPUs of it are lent: {_named(holders)}. Of "
        "what comes free it has its turn before whoever would borrow, whatever the place in the queue; if it asks for "
        "whole GPUs, borrowers are told to end, but for those that may not be requeued, gave way too often, or are "
        "part of what their own side is guaranteed",
        guarantees=[f"{each.kind} {each.name}" for each in lent],
        holders=holders,
    )


def _named(holders: Sequence[HolderView]) -> str:
    words = [
        f"{holder.name} jobs hold {holder.gpus} beyond theirs"
        if holder.kind == "class"
        else f"tenant {holder.name} holds {holder.gpus} beyond its own"
        for holder in holders[:HOLDERS_NAMED_MAX]
    ]
    more = len(holders) - HOLDERS_NAMED_MAX
    return ", ".join(words) + (f", {counted(more, 'other tenant')} the rest" if more > 0 else "")


async def _story(control: ControlPlane, job: Job, asked: JobEventsQuery) -> JobEventsView:
    rows = await newest_rows(control, AuditQuery(job=_ref(job), outcome=OK), 0, OPERATIONS_MAX + 1)
    story = story_of(job, rows[:OPERATIONS_MAX][::-1])
    limit = min(asked.limit, AUDIT_MAX)
    events = story[asked.after : asked.after + limit]
    more = asked.after + limit < len(story)
    return JobEventsView(
        id=job.label,
        events=events,
        total=len(story),
        limit=limit,
        next=str(asked.after + limit) if more else None,
        partial=len(rows) > OPERATIONS_MAX,
    )


def _ref(job: Job) -> JobRef:
    if not job.array_of:
        return JobRef(job.id)
    return JobRef(job.array_of, ((job.array_index, job.array_index, 1),))
