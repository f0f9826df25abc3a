"""JobService: jobs for programs that prefer gRPC.

Each method does what its route of REST does, by the same functions: roles, tenants, defaults, keys, bounds, what is
shown of others' jobs and what is refused are theirs. Here is only what the two protocols have different.

Rules: J1  a message beyond the bound of REST's bodies is refused, and so are more calls at once than `CALLS_MAX`
       J2  an answer has as many jobs as fit into what gRPC's clients take; the rest can be asked for
       J3  a call that brings no deadline gets `DEADLINE_S`
       J4  a defect is answered without its words, which may be about others' jobs; the log has them
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from google.protobuf.message import Message

from stoker.api.requests import BODY_BYTES_MAX, NOBODY, audit_action_of, check_role, too_large
from stoker.api.rpc.callers import Callers, Context
from stoker.api.rpc.status import abort
from stoker.brain.domain.access import Caller
from stoker.brain.domain.array import count_of, parse_job_ref
from stoker.brain.domain.errors import Refusal, StokerError, refusal_error, refuse
from stoker.brain.domain.job import JobSpec
from stoker.brain.state.commands import Cancel
from stoker.control.access import Sights
from stoker.control.control_plane import ControlPlane
from stoker.control.job_operations import carry_out_operation
from stoker.control.queries.job_details import (
    ListedJobs,
    in_list,
    job_details,
    job_details_for,
    listed_jobs,
    members_named,
)
from stoker.control.queries.job_listing import filter_of, page_of, select
from stoker.control.queries.job_lookup import lookup_job, names_several
from stoker.control.submission import Key, keyed, of_index, spec_for, submitted
from stoker.wire.endpoints import API_PREFIX
from stoker.wire.gen import job_pb2 as pb
from stoker.wire.gen.job_pb2_grpc import JobServiceServicer
from stoker.wire.job_codec import ANSWER_BYTES_MAX, check_known, encode_job, job_body, job_list_query
from stoker.wire.rest.job import JobDetails, job_view

CALLS_MAX: Final = 256
"""At once, of all callers: each may hold a message of some MiB while it waits for the disk."""
DEADLINE_S: Final = 60.0
"""Longer than a slow disk or a long look into the history takes."""
JOBS_PER_TURN: Final = 64
"""Jobs read or drawn before others get a turn: below two milliseconds."""
TURN_BYTES: Final = 256 << 10
"""And as many bytes of them, if that is less."""
_PATH: Final = f"{API_PREFIX}/jobs"
_DIALECT: Final = "grpc"

_log = logging.getLogger(__name__)
_Request = TypeVar("_Request", bound=Message)
_Response = TypeVar("_Response", bound=Message)


class JobService(JobServiceServicer):
    """The gRPC face of jobs."""

    def __init__(self, control: ControlPlane, callers: Callers) -> None:
        self._control = control
        self._callers = callers
        self._calls = 0

    async def Submit(self, request: pb.SubmitRequest, context: Context) -> pb.SubmitResponse:
        return await self._answered("POST", request, context, self._submit)

    async def Get(self, request: pb.GetRequest, context: Context) -> pb.GetResponse:
        return await self._answered("GET", request, context, self._get)

    async def List(self, request: pb.ListRequest, context: Context) -> pb.ListResponse:
        return await self._answered("GET", request, context, self._list)

    async def Cancel(self, request: pb.CancelRequest, context: Context) -> pb.CancelResponse:
        return await self._answered("DELETE", request, context, self._cancel)

    # --- every call ---------------------------------------------------------------------------------------------

    async def _answered(
        self,
        method: str,
        request: _Request,
        context: Context,
        work: Callable[[Caller, _Request], Awaitable[_Response]],
    ) -> _Response:
        """`method` is that of the same request in REST: its role is wanted here too."""
        caller = NOBODY
        try:
            caller = self._callers.of(context)
            self._control.rate_limit.take(caller.principal)
            check_role(caller, method, _PATH)
            with self._counted():
                _check_message(request)
                async with asyncio.timeout(DEADLINE_S):
                    return await work(caller, request)
        except StokerError as fault:
            refusal = fault.refusal
            self._callers.note(caller.principal, audit_action_of(method, _path(request)), refusal)
        except TimeoutError:
            refusal = _took_too_long()
        except Exception as fault:
            _log.exception("JobService broke while it answered %s", type(request).__name__)
            refusal = self._defect(request, fault)
        return await abort(context, refusal)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Count a call while it lasts; more than CALLS_MAX at once are refused (J1)."""
        if self._calls >= CALLS_MAX:
            message = f"{self._calls} calls of JobService are under way, as many as may"
            raise refusal_error("overloaded", message, "try again in a second", calls_max=CALLS_MAX)
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1

    def _defect(self, request: Message, fault: Exception) -> Refusal:
        """Answer a defect without its words, which the log has (J4)."""
        self._control.telemetry.count("requests_broken")
        return refuse(
            "internal_error",
            f"Stoker broke while it answered {type(request).__name__}",
            "this is a defect of ours: the control plane's log holds the traceback; please report it",
            error=type(fault).__name__,
        )

    # --- the methods --------------------------------------------------------------------------------------------

    async def _submit(self, caller: Caller, request: pb.SubmitRequest) -> pb.SubmitResponse:
        control, key = self._control, _key(request)
        answer = await submitted(control, caller, await self._specs(caller, request), key)
        jobs, sees = answer.seen.jobs, Sights(control.committer.state, caller)
        ids = sorted([*(job.id for job in jobs), *answer.forgotten])  # given out in the order of the request
        return pb.SubmitResponse(
            ids=[str(job) for job in ids],
            jobs=await self._encoded(answer.seen, sees, full=len(request.jobs) == 1),
            replayed=answer.at is not None,
            forgotten=[str(job) for job in answer.forgotten],
        )

    async def _specs(self, caller: Caller, request: pb.SubmitRequest) -> list[JobSpec]:
        """One job is read as REST reads one, several as it reads a list of them."""
        now = self._control.committer.now()
        if len(request.jobs) == 1:
            return [spec_for(self._control, caller, job_body(request.jobs[0]), now)]
        specs: list[JobSpec] = []
        for index, job in enumerate(request.jobs):
            at = f"jobs[{index}]"
            try:
                specs.append(spec_for(self._control, caller, job_body(job, at), now, at))
            except StokerError as fault:
                raise of_index(fault, index) from fault
            if len(specs) % JOBS_PER_TURN == 0:
                await self._control.clock.sleep(0)
        return specs

    async def _get(self, caller: Caller, request: pb.GetRequest) -> pb.GetResponse:
        control, ref = self._control, parse_job_ref(request.id)
        if not names_several(ref):
            job = await lookup_job(request.id, control)
            return pb.GetResponse(jobs=[_encode(job_details_for(control, caller, job))], total=1)
        state = control.committer.state
        jobs = await self._encoded(listed_jobs(control, members_named(state, ref)), Sights(state, caller))
        return pb.GetResponse(jobs=jobs, total=count_of(ref.members or ()))

    async def _list(self, caller: Caller, request: pb.ListRequest) -> pb.ListResponse:
        control, query = self._control, job_list_query(request)
        sees = Sights(control.committer.state, caller)
        wanted = filter_of(query, control.committer.now(), caller, sees)
        async with control.lists.made(caller):
            page = await page_of(control, query, sees)
            found = await select(control, wanted, page)
            jobs = await self._encoded(listed_jobs(control, found.jobs), sees, full=query.full)
        last = found.jobs[len(jobs) - 1].id if len(jobs) < len(found.jobs) else found.last
        following = "" if last is None else found.cursor(last)
        return pb.ListResponse(jobs=jobs, total=found.total, limit=page.limit, next=following)

    async def _cancel(self, caller: Caller, request: pb.CancelRequest) -> pb.CancelResponse:
        order = Cancel(by=caller.principal, target=parse_job_ref(request.id))
        told = await carry_out_operation(self._control, caller, order)
        if isinstance(told, JobDetails):
            return pb.CancelResponse(jobs=[_encode(told)], total=1)
        jobs = await self._encoded(told.seen, Sights(self._control.committer.state, caller))
        return pb.CancelResponse(jobs=jobs, total=told.total, changed=told.changed)

    async def _encoded(self, jobs: ListedJobs, sees: Sights, *, full: bool = False) -> list[pb.Job]:
        """J2: the first of them, and always one. `full`: with their commands and environments."""
        encoded: list[pb.Job] = []
        left, turn = ANSWER_BYTES_MAX, TURN_BYTES
        for job in jobs.jobs:
            now = jobs.arrays.get(job.id) or job_details(self._control, job)
            message = _encode(in_list(now, sees(job), full=full))
            size = message.ByteSize()
            left, turn = left - size, turn - max(size, TURN_BYTES // JOBS_PER_TURN)
            if left < 0 and encoded:
                break
            encoded.append(message)
            if turn <= 0:
                turn = TURN_BYTES
                await self._control.clock.sleep(0)
        return encoded


def _encode(now: JobDetails) -> pb.Job:
    return encode_job(job_view(now))


def _check_message(request: Message) -> None:
    """Refuse a message that is too long or has unknown fields (J1).

    Raises: StokerError `body_too_large` or `unknown_field`.
    """
    if request.ByteSize() > BODY_BYTES_MAX:
        raise too_large()
    check_known(request)


def _path(request: Message) -> str:
    """Of the same request in REST."""
    return f"{_PATH}/{request.id}" if isinstance(request, pb.GetRequest | pb.CancelRequest) else _PATH


def _key(request: pb.SubmitRequest) -> Key:
    """Raises: StokerError `bad_idempotency_key`."""
    if not request.HasField("idempotency_key"):
        return Key()
    if not request.idempotency_key:
        hint = "give one key, or leave the field out"
        raise refusal_error("bad_idempotency_key", "`idempotency_key` is empty", hint)
    jobs = pb.SubmitRequest(jobs=request.jobs).SerializeToString(deterministic=True)
    return keyed(request.idempotency_key, jobs, _DIALECT)


def _took_too_long() -> Refusal:
    return refuse(
        "took_too_long",
        f"the answer wasn't ready after {DEADLINE_S:.0f} s",
        "ask for less at once; a submit may have been taken all the same: repeat it under its idempotency key",
        deadline_s=round(DEADLINE_S),
    )
