"""Which job does a path name, also once the state has forgotten it?

What still lives is in the state; only what the state says it has forgotten is looked for in the history.
"""

from starlette.requests import Request

from stoker.api.http.responses import caller_of, job_named
from stoker.brain.domain.array import JobRef, contains, member_id, parse_job_ref
from stoker.brain.domain.errors import StokerError, refuse
from stoker.brain.domain.ids import JobId
from stoker.brain.domain.job import Job, lazy_member
from stoker.control.access import check_read
from stoker.control.control_plane import ControlPlane
from stoker.ports import HistoryFailed


async def lookup_job(request: Request, control: ControlPlane) -> Job:
    """As `job_at`, and what the history knows. Raises: the same, and `history_unavailable`."""
    return await lookup_job_named(request.path_params["job_id"], control)


async def lookup_job_named(text: str, control: ControlPlane) -> Job:
    """As `job_named`, and what the history knows."""
    try:
        return job_named(text, control.committer.state)
    except StokerError as fault:
        if fault.refusal.code != "job_forgotten":
            raise
        found = await _job_in_history(control, parse_job_ref(text))
        if found is None:
            raise
        return found


async def lookup_own_job(request: Request, control: ControlPlane) -> Job:
    """The same, for one who may see it in full. Raises: the same, and `not_allowed`."""
    job = await lookup_job(request, control)
    check_read(control.committer.state, caller_of(request), job)
    return job


async def record_of(control: ControlPlane, job: JobId) -> Job | None:
    """The record of a job, wherever it is. Raises: StokerError `history_unavailable`."""
    known = control.committer.state.jobs.get(job)
    if known is not None:
        return known
    try:
        return await control.history.recall(job)
    except HistoryFailed as fault:
        raise history_failed(fault) from fault


async def _job_in_history(control: ControlPlane, ref: JobRef) -> Job | None:
    record = await record_of(control, ref.job)
    if ref.members is None or record is None:
        return record
    index = ref.members[0][0]
    if record.members is None or record.spec.array is None or not contains(record.spec.array.indexes, index):
        return None
    return await record_of(control, member_id(record.id, record.spec.array, index)) or lazy_member(record, index)


def history_failed(fault: HistoryFailed) -> StokerError:
    return StokerError(
        refuse(
            "history_unavailable",
            f"jobs that ended long ago can't be looked up now: {fault}",
            "scheduling goes on; `--state pending,running` lists without them, and the control plane's log says more",
        )
    )
