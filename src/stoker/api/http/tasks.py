"""REST routes for tasks: the same jobs in the dgpu dialect."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from stoker.api.http.responses import (
    ANSWER_BYTES_MAX,
    ListParts,
    ListResponse,
    body_of,
    caller_of,
    drawn_in_turns,
    json_response,
    key_of,
    lookup_job_at,
    query_of,
    repeat_headers,
)
from stoker.api.http.routing import BODY, CHANGE, JOB, KEYED, LISTED, LOOKUP, SUBMIT, Routes
from stoker.brain.domain.access import Caller
from stoker.brain.domain.allocation import TaskPlacement
from stoker.brain.domain.array import JobRef, parse_job_ref
from stoker.brain.domain.job import Job
from stoker.brain.domain.job_filter import JobFilter
from stoker.brain.domain.units import NEVER
from stoker.brain.state.commands import Cancel
from stoker.control.access import owned
from stoker.control.control_plane import ControlPlane
from stoker.control.job_operations import OperationResults, carry_out_operation
from stoker.control.queries.job_details import job_details, job_details_for
from stoker.control.queries.job_listing import JobPage, select, states_of
from stoker.control.submission import submitted
from stoker.wire import endpoints
from stoker.wire.rest.decode import decode_body
from stoker.wire.rest.job import LIST_MAX, JobDetails
from stoker.wire.rest.node import gpu_id
from stoker.wire.rest.task import (
    CLASS_OF,
    MessageView,
    TaskBody,
    TaskListQuery,
    TaskView,
    task_forgotten_view,
    task_spec,
    task_states_named,
    task_submitted_view,
    task_view,
)

_encode = msgspec.json.Encoder().encode


def routes(control: ControlPlane) -> Routes:
    router = Routes()

    @router.serve(endpoints.SUBMIT_TASK, *BODY, *SUBMIT, *KEYED, *CHANGE)
    async def submit_task(request: Request) -> Response:
        """Submit a job in the dgpu dialect."""
        caller, data = caller_of(request), await body_of(request)
        body = decode_body(TaskBody, data)
        spec = owned(control.committer.state, caller, task_spec(body, home=caller.home))
        answer = await submitted(control, caller, (spec,), key_of(request, data, "tasks"))
        if answer.forgotten:
            view = task_forgotten_view(answer.forgotten[0], answer.at or NEVER)
        else:
            view = task_submitted_view(job_details(control, answer.seen.jobs[0]))
        return json_response(view, 201, repeat_headers(answer))

    @router.serve(endpoints.TASKS, *LISTED)
    async def list_tasks(request: Request) -> Response:
        """List tasks, newest first: as many as fit into 4 MiB."""
        caller, query = caller_of(request), query_of(request, TaskListQuery)

        async def page() -> ListParts:
            found = await select(control, _wanted(query), JobPage(min(query.limit, LIST_MAX)))
            rows = (_encode(_shown(control, caller, job)) for job in found.jobs)
            made = await drawn_in_turns(control.clock, rows, ANSWER_BYTES_MAX)
            return ListParts(b'{"tasks":[', made, b'],"total":%d}' % found.total)

        return ListResponse(control, caller, page)

    @router.serve(endpoints.TASK, *LOOKUP)
    async def show_task(request: Request) -> TaskView:
        """Show one task."""
        return _shown(control, caller_of(request), await lookup_job_at(request, control))

    @router.serve(endpoints.CANCEL_TASK, *JOB, "job_ended", *CHANGE)
    async def cancel_task(request: Request) -> MessageView:
        """Cancel a task, waiting or running."""
        caller, target = caller_of(request), parse_job_ref(request.path_params["job_id"])
        told = await carry_out_operation(control, caller, Cancel(by=caller.principal, target=target))
        return MessageView(_said(told, target))

    return router


def _said(told: JobDetails | OperationResults, target: JobRef) -> str:
    if isinstance(told, OperationResults):
        return f"{told.changed} of the {told.total} tasks {target} are cancelled or being stopped"
    stopping = "is being stopped; its GPUs are free once its processes are gone"
    return f"task {told.job.label} {'is cancelled' if told.job.is_final else stopping}"


def _wanted(query: TaskListQuery) -> JobFilter:
    return JobFilter(
        states=states_of(query.status, task_states_named),
        job_class=CLASS_OF[query.priority] if query.priority else None,
    )


def _shown(control: ControlPlane, caller: Caller, job: Job) -> TaskView:
    now = job_details_for(control, caller, job)
    return task_view(now, _assigned(control, now.job))


def _assigned(control: ControlPlane, job: Job) -> list[str]:
    """Ids of the GPUs that the newest attempt holds or held; a GPU that its node no longer has, by UUID."""
    return [
        gpu for task in (job.attempts[-1].tasks if job.attempts else ()) for gpu in _gpus_of(control, task.placement)
    ]


def _gpus_of(control: ControlPlane, placement: TaskPlacement) -> list[str]:
    node = control.committer.state.nodes.get(placement.node)
    index_of = {gpu.uuid: gpu.index for gpu in node.inventory.gpus} if node else {}
    return [gpu_id(placement.node, index_of[uuid]) if uuid in index_of else uuid for uuid in placement.gpus]
