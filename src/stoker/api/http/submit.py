"""How do bodies become jobs, once for each idempotency key?

Rules: I1  a repeat under the key of an earlier submit, with the very same body, is answered like that one: 201, with
           the jobs as they are now. That it was a repeat stands in a header, since who lost the first answer can't
           know, and needn't
       I2  the same key with another body, or on the path of the other dialect, is refused
       I3  a repeat waits until what it repeats is durable
       I4  what the state has forgotten is looked for in the history; of what isn't there either the id is answered
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

import msgspec
from starlette.requests import Request

from stoker.brain.domain.access import Caller
from stoker.brain.domain.errors import StokerError, refuse
from stoker.brain.domain.ids import JobId, Principal
from stoker.brain.domain.job import Job, JobSpec
from stoker.brain.domain.units import Instant
from stoker.brain.state.commands import Submit
from stoker.brain.state.events.job import JobSubmitted
from stoker.control.access import owned
from stoker.control.control_plane import ControlPlane
from stoker.control.queries.job_details import ListedJobs, listed_jobs
from stoker.control.queries.job_lookup import record_of
from stoker.wire.idempotency import KEY_HEADER, REPLAYED_HEADER
from stoker.wire.rest.submit import JobBody, spec_of

_DIGEST_BYTES: Final = 16


class Key(NamedTuple):
    """An idempotency key, and what came with it. Without one both are empty."""

    key: str = ""
    digest: str = ""


class Submitted(NamedTuple):
    """What a submit came to, durably."""

    seen: ListedJobs
    forgotten: Sequence[JobId] = ()
    """I4"""
    at: Instant | None = None
    """When it was first submitted, of a repeat (I1)."""

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.at is None else {REPLAYED_HEADER: "true"}


def key_of(request: Request, data: bytes, dialect: str) -> Key:
    """Raises: StokerError `bad_idempotency_key`."""
    given = request.headers.getlist(KEY_HEADER)
    if not given:
        return Key()
    if len(given) > 1 or not given[0]:
        many = "is given twice" if len(given) > 1 else "is empty"
        hint = "give one key, or leave the header out"
        raise StokerError(refuse("bad_idempotency_key", f"the header {KEY_HEADER} {many}", hint))
    return keyed(given[0], data, dialect)


def keyed(key: str, data: bytes, dialect: str) -> Key:
    """The dialect is part of what was asked (I2)."""
    return Key(key, blake2b(data, digest_size=_DIGEST_BYTES, person=dialect.encode()).hexdigest())


def spec_for(control: ControlPlane, caller: Caller, body: JobBody, now: Instant, at: str = "") -> JobSpec:
    """The job that this caller submits by this body, which lies at `at` in a bulk.

    Raises: StokerError `not_allowed`, `user_not_yours`, or for what can't be read.
    """
    return owned(control.committer.state, caller, spec_of(body, now, at, home=caller.home))


def of_index(fault: StokerError, index: int) -> StokerError:
    """The same refusal, saying which job of a bulk it is about."""
    refusal = fault.refusal
    message = refusal.message if f"jobs[{index}]" in refusal.message else f"jobs[{index}]: {refusal.message}"
    return StokerError(msgspec.structs.replace(refusal, message=message, facts={**refusal.facts, "index": index}))


async def submitted(control: ControlPlane, caller: Caller, specs: Sequence[JobSpec], key: Key) -> Submitted:
    """The jobs that these became. Raises: StokerError as the brain refuses."""
    committer = control.committer
    control.access.check(caller)
    committer.check_room()
    events = committer.tell(Submit(by=caller.principal, specs=tuple(specs), key=key.key, digest=key.digest))
    if not events:
        return await _repeated(control, caller.principal, key)
    # Taken now: by the time they are durable a short job may have ended and, on a busy cluster, been forgotten.
    jobs = [committer.state.jobs[event.job] for event in events if isinstance(event, JobSubmitted)]
    answer = Submitted(listed_jobs(control, jobs))
    await committer.settled()
    return answer


async def _repeated(control: ControlPlane, by: Principal, key: Key) -> Submitted:
    first = control.committer.state.submitted_under(by, key.key)
    assert first is not None, "a submit without events repeats one that is known"
    await control.committer.settled()  # I3
    jobs: list[Job] = []
    forgotten: list[JobId] = []
    for job_id in first.jobs:
        try:
            job = await record_of(control, job_id)
        except StokerError:  # the history can't be read now: I4
            job = None
        if job is None:
            forgotten.append(job_id)
        else:
            jobs.append(job)
    return Submitted(listed_jobs(control, jobs), forgotten, first.at)
