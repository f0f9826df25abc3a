"""Look-up of the job that an id names, in the state or in the history.

What still lives is in the state; only what the state says it has forgotten is looked for in the history.
"""

from stoker.brain.domain.array import JobRef, count_of, member_id, parse_job_ref
from stoker.brain.domain.errors import Refusal, StokerError, refusal_error
from stoker.brain.domain.ids import JobId
from stoker.brain.domain.job import Job, lazy_member
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.validation.dependency import has_member
from stoker.brain.state.validation.lookups import find_job
from stoker.control.control_plane import ControlPlane
from stoker.ports import HistoryFailed


def job_named(text: str, state: ClusterState) -> Job:
    """Return the job or the one member that an id names, among those in the state.

    Raises: StokerError `bad_job_id`, `several_jobs`, `job_unknown`, `job_forgotten` or `member_unknown`.
    """
    ref = parse_job_ref(text)
    if names_several(ref):
        hint = f"name one of them, such as `{ref.job}_{ref.members[0][0] if ref.members else 0}`"
        raise refusal_error("several_jobs", f"{str(ref)[:80]} names several members, and one is wanted", hint)
    found = find_job(state, ref)
    if isinstance(found, Refusal):
        raise StokerError(found)
    return found


def names_several(ref: JobRef) -> bool:
    """Return whether an id names more than one member of an array."""
    return ref.members is not None and count_of(ref.members) > 1


async def lookup_job(text: str, control: ControlPlane) -> Job:
    """Return what `job_named` does, also of jobs that only the history knows.

    Raises: the same, and StokerError `history_unavailable`.
    """
    try:
        return job_named(text, control.committer.state)
    except StokerError as fault:
        if fault.refusal.code != "job_forgotten":
            raise
        found = await job_in_history(control, parse_job_ref(text))
        if found is None:
            raise
        return found


async def record_of(control: ControlPlane, job: JobId) -> Job | None:
    """Return the record of a job from the state, else from the history. Raises: StokerError `history_unavailable`."""
    known = control.committer.state.jobs.get(job)
    if known is not None:
        return known
    try:
        return await control.history.recall(job)
    except HistoryFailed as fault:
        raise history_failed(fault) from fault


async def job_in_history(control: ControlPlane, ref: JobRef) -> Job | None:
    """Return a forgotten job or member as the history has it. Raises: StokerError `history_unavailable`."""
    record = await record_of(control, ref.job)
    if ref.members is None or record is None:
        return record
    index = ref.members[0][0]
    if record.members is None or record.spec.array is None or not has_member(record, index):
        return None
    return await record_of(control, member_id(record.id, record.spec.array, index)) or lazy_member(record, index)


async def is_no_member(control: ControlPlane, ref: JobRef) -> bool:
    """Return whether `ref` names a member that its job never had, of which nothing is known where no record is left.

    Raises: StokerError `history_unavailable`.
    """
    if ref.members is None:
        return False
    record = await record_of(control, ref.job)
    return record is not None and not has_member(record, ref.members[0][0])


def history_failed(fault: HistoryFailed) -> StokerError:
    return refusal_error(
        "history_unavailable",
        f"jobs that ended long ago can't be looked up now: {fault}",
        "scheduling goes on; `--state pending,running` lists without them, and the control plane's log says more",
    )
