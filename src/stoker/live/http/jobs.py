"""REST for jobs: submit, list, show, cancel."""

from collections.abc import Sequence
from typing import Final

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from stoker.brain.domain.array import JobRef
from stoker.brain.domain.errors import Refusal, StokerError
from stoker.brain.domain.job import Job, JobSpec
from stoker.brain.domain.lifecycle import states_named
from stoker.brain.state.commands import Cancel, Submit
from stoker.brain.state.events.job import JobSubmitted
from stoker.live.control import ControlPlane
from stoker.live.http.answers import ANYONE, body_of, job_at, json_answer, query_of
from stoker.live.http.contract import BODY, CHANGE, JOB, SUBMIT, json_content, one_of, route
from stoker.live.http.listing import Wanted, page_of, select, states_of
from stoker.live.http.rows import Rows, reason_of
from stoker.wire.rest.decode import bad_value, decode_body, decode_list, decode_members, unknown_name
from stoker.wire.rest.job import JobListQuery, JobListView, JobsSubmittedView, JobView, job_view
from stoker.wire.rest.submit import JobBody, JobsBody, spec_of
from stoker.wire.versions import API_PREFIX

BODIES_PER_TURN: Final = 256
"""Jobs read before others get a turn: about a millisecond."""


def routes(control: ControlPlane) -> APIRouter:
    router = APIRouter(prefix=API_PREFIX, tags=["jobs"])
    shown, rows = json_content(JobView), Rows(control)

    @router.post(
        "/jobs",
        **route(
            one_of(JobView, JobsSubmittedView),
            status=201,
            body=one_of(JobBody, JobsBody),
            refusals=(*BODY, *SUBMIT, *CHANGE),
        ),
    )
    async def submit(request: Request) -> Response:
        """Submit one job, or all or none of `{"jobs": [...]}`."""
        data = await body_of(request)
        members = decode_members(data)
        if "jobs" not in members:
            (job,) = await submitted(control, (spec_of(decode_body(JobBody, data), control.committer.now()),))
            return json_answer(job_view(job, reason_of(control, job), submitted=True), 201)
        jobs = await submitted(control, await _specs(control, members))
        content = b",".join(await rows.of(jobs, submitted=True))
        return _raw_json(b'{"jobs":[%b],"total":%d}' % (content, len(jobs)), 201)

    @router.get(
        "/jobs",
        **route(json_content(JobListView), query=JobListQuery, refusals=("unknown_state", "bad_job_id")),
    )
    async def list_jobs(request: Request) -> Response:
        """List jobs, newest first."""
        return await _page(control, rows, query_of(request, JobListQuery))

    @router.get("/jobs/{job_id}", **route(shown, path="job_id", refusals=JOB))
    async def show(request: Request) -> Response:
        """Show one job."""
        job = job_at(request, control.committer.state)
        return json_answer(job_view(job, reason_of(control, job)))

    @router.delete("/jobs/{job_id}", **route(shown, path="job_id", refusals=(*JOB, "job_ended", *CHANGE)))
    async def cancel(request: Request) -> Response:
        """Cancel a job. It is final once its processes are proved gone."""
        job = await cancelled(control, request)
        return json_answer(job_view(job, reason_of(control, job)))

    return router


async def _page(control: ControlPlane, rows: Rows, query: JobListQuery) -> Response:
    page = page_of(query.limit, query.offset, query.after)
    states = states_of(query.state, states_named)
    found = await select(control.committer.state, states, _wanted(query), page, control.clock)
    content = b",".join(await rows.of(found.jobs))
    following = b'"%d"' % found.jobs[-1].id if found.more else b"null"
    members = (content, found.total, page.limit, following)
    return _raw_json(b'{"jobs":[%b],"total":%d,"limit":%d,"next":%b}' % members)


async def submitted(control: ControlPlane, specs: Sequence[JobSpec]) -> list[Job]:
    """The jobs that these became, durably. Raises: StokerError as the brain refuses."""
    committer = control.committer
    events = committer.tell(Submit(by=ANYONE, specs=tuple(specs)))
    # Taken now: by the time they are durable a short job may have ended and, on a busy cluster, been forgotten.
    jobs = [committer.state.jobs[event.job] for event in events if isinstance(event, JobSubmitted)]
    await committer.settled()
    return jobs


async def cancelled(control: ControlPlane, request: Request) -> Job:
    """The job that the path names, after it was told to end."""
    job = job_at(request, control.committer.state)
    await control.committer.ask(Cancel(by=ANYONE, target=JobRef(job.id)))
    return control.committer.state.jobs.get(job.id, job)


def _raw_json(content: bytes, status: int = 200) -> Response:
    return Response(content, status_code=status, media_type="application/json")


async def _specs(control: ControlPlane, members: dict[str, msgspec.Raw]) -> list[JobSpec]:
    for name in members:
        if name != "jobs":
            raise unknown_name(name, JobsBody, "", "field")
    specs: list[JobSpec] = []
    now = control.committer.now()
    for index, element in enumerate(decode_list(members["jobs"], "jobs")):
        at = f"jobs[{index}]"
        try:
            specs.append(spec_of(decode_body(JobBody, element, at), now, at))
        except StokerError as fault:
            raise StokerError(_of_index(fault.refusal, index)) from fault
        if len(specs) % BODIES_PER_TURN == 0:
            await control.clock.sleep(0)
    return specs


def _of_index(refusal: Refusal, index: int) -> Refusal:
    message = refusal.message if f"jobs[{index}]" in refusal.message else f"jobs[{index}]: {refusal.message}"
    return msgspec.structs.replace(refusal, message=message, facts={**refusal.facts, "index": index})


def _wanted(query: JobListQuery) -> Wanted | None:
    if query.tenant and query.tenant_id and query.tenant != query.tenant_id:
        raise bad_value("tenant_id", wanted="left out beside `tenant`", got="another tenant", kind="parameter")
    tenant = query.tenant or query.tenant_id
    tests: list[Wanted] = []
    if tenant:
        tests.append(lambda job: job.spec.tenant == tenant)
    if query.job_class:
        tests.append(lambda job: job.spec.job_class == query.job_class)
    if query.user:
        # The account it runs as, else who submitted it: the same that lists show.
        tests.append(lambda job: (job.spec.user or job.by.removeprefix("user:")) == query.user)
    if query.name:
        tests.append(lambda job: job.spec.name == query.name)
    return (lambda job: all(test(job) for test in tests)) if tests else None
