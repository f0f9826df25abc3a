"""Submission of jobs from request bodies, once for each idempotency key.

Rules: I1  a repeat under the key of an earlier submit, with the very same body, is answered like that one, with the
           jobs as they are now. That it is a repeat is said beside the answer, since a client that lost the first
           answer can't know, and needn't
       I2  the same key with another body, or in another dialect, is refused
       I3  a repeat waits until what it repeats is durable
       I4  a job that the state has forgotten is looked for in the history; if that lacks it too, its id is answered
       I5  how a job ended on which a dependency waits and that the state has forgotten is asked of the history, and so
           is whether it had the member that is named; while that can't be read, such a submit is refused
"""

from collections.abc import Mapping, Sequence, Set
from hashlib import blake2b
from typing import Final, NamedTuple

import msgspec

from stoker.brain.domain.access import Caller
from stoker.brain.domain.array import JobRef
from stoker.brain.domain.errors import StokerError, refuse
from stoker.brain.domain.ids import JobId, Principal
from stoker.brain.domain.job import Job, JobSpec
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.domain.notify import Notify
from stoker.brain.domain.units import Instant
from stoker.brain.state.commands import Submit
from stoker.brain.state.events.job import JobSubmitted
from stoker.brain.state.validation.dependency import forgotten
from stoker.control.access import owned
from stoker.control.control_plane import ControlPlane
from stoker.control.queries.job_details import ListedJobs, listed_jobs
from stoker.control.queries.job_lookup import is_no_member, job_in_history, record_of
from stoker.wire.rest.submit import JobBody, spec_of

_DIGEST_BYTES: Final = 16


class Key(NamedTuple):
    """An idempotency key and a digest of the request that it came with; both are empty where no key was given."""

    key: str = ""
    digest: str = ""


class Submitted(NamedTuple):
    """The jobs that one submit became, durably."""

    seen: ListedJobs
    forgotten: Sequence[JobId] = ()
    """Jobs of which nothing is left but the id (I4)."""
    at: Instant | None = None
    """When the jobs were first submitted; None = by this request (I1)."""


class EndedBefore(NamedTuple):
    """Answers of the history about jobs that dependencies name and the state has forgotten (I5)."""

    ended: Mapping[JobRef, JobState]
    no_members: Set[JobRef]


def keyed(key: str, data: bytes, dialect: str) -> Key:
    """Return the key with a digest of the request, of which the dialect is part (I2)."""
    return Key(key, blake2b(data, digest_size=_DIGEST_BYTES, person=dialect.encode()).hexdigest())


def spec_for(control: ControlPlane, caller: Caller, body: JobBody, now: Instant, at: str = "") -> JobSpec:
    """The job that this caller submits by this body, which lies at `at` in a bulk.

    Raises: StokerError `not_allowed`, `user_not_yours`, or for what can't be read.
    """
    return owned(control.committer.state, caller, spec_of(body, now, at, home=caller.home))


def of_index(fault: StokerError, index: int) -> StokerError:
    """Return the refusal, saying which job of a bulk it is about."""
    refusal = fault.refusal
    message = refusal.message if f"jobs[{index}]" in refusal.message else f"jobs[{index}]: {refusal.message}"
    return StokerError(msgspec.structs.replace(refusal, message=message, facts={**refusal.facts, "index": index}))


async def submitted(control: ControlPlane, caller: Caller, specs: Sequence[JobSpec], key: Key) -> Submitted:
    """The jobs that these became. Raises: StokerError as the brain refuses, or `history_unavailable` (I5)."""
    committer = control.committer
    control.access.check(caller)
    for index, spec in enumerate(specs):
        check_targets(control, spec.notify, index if len(specs) > 1 else None)
    before = await ended_before(control, specs) if any(spec.after for spec in specs) else EndedBefore({}, frozenset())
    committer.check_room()
    events = committer.tell(
        Submit(
            by=caller.principal,
            specs=tuple(specs),
            key=key.key,
            digest=key.digest,
            ended=before.ended,
            no_members=before.no_members,
        )
    )
    if not events:
        return await _repeated(control, caller.principal, key)
    # Taken now: by the time they are durable a short job may have ended and, on a busy cluster, been forgotten.
    jobs = [committer.state.jobs[event.job] for event in events if isinstance(event, JobSubmitted)]
    answer = Submitted(listed_jobs(control, jobs))
    await committer.settled()
    return answer


def check_targets(control: ControlPlane, notify: Notify | None, index: int | None = None) -> None:
    """Refuse targets that this control plane may not tell anything. Raises: StokerError `notify_not_allowed`."""
    for target in notify.to if notify is not None else ():
        refusal = _NO_NOTIFIER if control.notifier is None else control.notifier.fault(target)
        if refusal is not None:
            fault = StokerError(refusal)
            raise fault if index is None else of_index(fault, index)


_NO_NOTIFIER: Final = refuse(
    "notify_not_allowed", "this control plane notifies nobody", "leave `notify` out; `stoker wait ID` waits for an end"
)


async def ended_before(control: ControlPlane, specs: Sequence[JobSpec]) -> EndedBefore:
    """Return what the history knows of forgotten jobs that these ones wait for (I5)."""
    ended: dict[JobRef, JobState] = {}
    no_members: set[JobRef] = set()
    looked_for: dict[JobRef, None] = {}
    while gone := forgotten(control.committer.state, specs, looked_for):
        looked_for.update(gone)
        for ref in gone:
            found = await job_in_history(control, ref)
            if found is not None and found.is_final:
                ended[ref] = found.state
            elif found is None and await is_no_member(control, ref):
                no_members.add(ref)
    return EndedBefore(ended, no_members)


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
