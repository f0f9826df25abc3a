"""Table of every REST endpoint: method, path, query, body and answer, each stated once.

A route of `stoker.api.http` takes from its row the method, the path, the HTTP status and the shapes, and adds a handler
and the codes of its refusals. The route of an operation on jobs follows from its row alone: it gives the command whose
action has the row's name. A method of the Python client has its row's name in lower case: it fills in the path, the
query and the body, and decodes the answer as the row says. A test compares the rows with the routes of the running
application, and another one with the methods of the client, each both ways.

Shapes are named by functions, so that a command loads only the shapes of the endpoints that it calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Generic, Literal, NamedTuple, TypeVar

from stoker import __version__
from stoker.wire import rest

if TYPE_CHECKING:
    from msgspec import Struct

API_PREFIX: Final = "/api/v1"
"""The REST contract. Fields are added under it, never renamed or given a new meaning."""
JSON: Final = "application/json"
PRODUCT: Final = __version__
"""Version of this program."""
USER_AGENT: Final = f"stoker/{PRODUCT}"
KEY_HEADER: Final = "Idempotency-Key"
"""Of a submit: any text without control characters, best a fresh UUID.

Source: draft-ietf-httpapi-idempotency-key-header.
"""
REPLAYED_HEADER: Final = "Idempotency-Replayed"
"""`true` in an answer that repeats an earlier one."""
KEY_MAX: Final = 255
"""Characters; the policy's bound counts bytes."""

Answer = TypeVar("Answer", covariant=True)


class Endpoint(NamedTuple, Generic[Answer]):
    """One HTTP method at one path, with the shapes that it takes and gives."""

    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
    path: str
    """As in the OpenAPI document, with parameters in braces."""
    answer: Callable[[], type[Answer]]
    """Shape of the answer; `bytes` where `media_type` is not JSON."""
    body: Callable[[], type[Struct]] | None = None
    """None = no body is sent."""
    query: Callable[[], type[Struct]] | None = None
    """None = parameters are not looked at."""
    other_answers: Callable[[], tuple[type[Struct], ...]] = tuple
    """Shapes that the answer has instead where several jobs are named, or one that is forgotten."""
    other_bodies: Callable[[], tuple[type[Struct], ...]] = tuple
    """Shapes that the body may have instead."""
    media_type: str = JSON
    """Of the answer."""
    status: int = 200
    """HTTP status of success."""
    keyed: bool = False
    """Whether an idempotency key may be sent."""
    repeatable: bool = True
    """Whether a client may send the request again when its answer was lost: twice has the effect of once."""
    done_code: str = ""
    """Code with which a repeat is refused where the first request was carried out. Empty = a repeat is not refused."""
    job_operation: str = ""
    """What an operation on jobs does, as a sentence of the OpenAPI document. Empty = it is another endpoint."""
    refusals: tuple[str, ...] = ()
    """Codes that an operation on jobs may refuse with, beside those of every one."""

    @property
    def answers(self) -> tuple[type[object], ...]:
        """Every shape that the answer may have."""
        return (self.answer(), *self.other_answers())

    @property
    def bodies(self) -> tuple[type[Struct], ...]:
        """Every shape that the body may have; empty where none is sent."""
        return () if self.body is None else (self.body(), *self.other_bodies())

    @property
    def body_may_lack(self) -> bool:
        """Whether an order may come without the body that it may have."""
        from msgspec.structs import fields  # only a control plane asks

        return bool(self.job_operation) and not any(field.required for each in self.bodies for field in fields(each))


def _no_query() -> type[Struct]:
    return rest.decode.NoQuery


def _job_operation(
    method: Literal["POST", "PATCH", "DELETE"],
    path: str,
    does: str,
    *refusals: str,
    body: Callable[[], type[Struct]] | None = None,
    repeatable: bool = True,
    done_code: str = "",
) -> Endpoint[rest.job.JobView]:
    """Return the row of an operation on a job, a member or a whole array, or on several members."""
    return Endpoint(
        *(method, path, lambda: rest.job.JobView),
        body=body,
        other_answers=lambda: (rest.job.JobsToldView,),
        repeatable=repeatable,
        done_code=done_code,
        job_operation=does,
        refusals=refusals,
    )


# -- jobs --------------------------------------------------------------------------------------------------------------

SUBMIT: Final = Endpoint(
    "POST",
    "/api/v1/jobs",
    lambda: rest.job.JobView,
    body=lambda: rest.submit.JobBody,
    other_answers=lambda: (rest.job.JobsSubmittedView, rest.job.ForgottenJobView),
    other_bodies=lambda: (rest.submit.JobsBody,),
    status=201,
    keyed=True,
)
PREVIEW: Final = Endpoint(
    "POST", "/api/v1/jobs/preview", lambda: rest.why.PreviewView, body=lambda: rest.submit.JobBody
)
JOBS: Final = Endpoint("GET", "/api/v1/jobs", lambda: rest.job.JobListView, query=lambda: rest.job.JobListQuery)
JOB: Final = Endpoint(
    "GET", "/api/v1/jobs/{job_id}", lambda: rest.job.JobView, other_answers=lambda: (rest.job.JobsView,)
)
CANCEL: Final = _job_operation(
    "DELETE",
    "/api/v1/jobs/{job_id}",
    "Cancel a job, an array or members of one. A job is final once its processes are proved gone.",
    "job_ended",
    done_code="job_ended",
)
HOLD: Final = _job_operation(
    "POST",
    "/api/v1/jobs/{job_id}/hold",
    "Keep what waits from starting, until it is released.",
    *("job_ended", "job_live", "too_many_jobs", "job_bytes_full"),
)
RELEASE: Final = _job_operation(
    "POST",
    "/api/v1/jobs/{job_id}/release",
    "Let what is held wait for its turn again.",
    *("not_held", "too_many_jobs", "job_bytes_full"),
    done_code="not_held",
)
REQUEUE: Final = _job_operation(
    "POST",
    "/api/v1/jobs/{job_id}/requeue",
    "Run it once more: what is live is stopped first. Of a whole array the members that failed.",
    *("nothing_failed", "job_waits", "job_ended", "too_many_jobs", "too_many_attempts"),
    *("dependency_never_satisfied", "unknown_partition", "unknown_tenant", "queue_full", "job_bytes_full"),
    *("over_tenant_limit", "demand_unstated", "priority_above_tier", "time_limit_too_long"),
    body=lambda: rest.submit.RequeueBody,
    repeatable=False,
)
"""A repeat would stop what the first one started."""
SIGNAL: Final = _job_operation(
    "POST",
    "/api/v1/jobs/{job_id}/signal",
    "Send a signal to the processes of what runs, once.",
    *("bad_signal", "not_running", "node_unreachable"),
    body=lambda: rest.submit.SignalBody,
    repeatable=False,
)
"""A repeat would send the signal a second time."""
UPDATE: Final = _job_operation(
    "PATCH",
    "/api/v1/jobs/{job_id}",
    "Change a job: what waits in all that the body may name, what runs in its time limit, name, comment, priority, "
    "retries, requeue, preemptible, checkpoint and signal.",
    *("no_changes", "job_ended", "job_live", "not_of_members", "too_many_jobs", "job_bytes_full", "conflicting_fields"),
    *("bad_time", "bad_field", "bad_begin", "begin_too_late", "bad_lost_after", "bad_priority", "out_of_range"),
    "bad_signal",
    *("text_too_long", "bad_text", "gpu_wish_without_gpus", "demand_unsatisfiable", "time_limit_too_long"),
    *("bad_dependency", "dependency_cycle", "dependency_never_satisfied", "too_many_dependencies"),
    *("bad_selector", "bad_toleration", "too_many_terms", "unknown_node", "unknown_partition", "unknown_tenant"),
    *("over_tenant_limit", "demand_unstated", "priority_above_tier", "history_unavailable"),
    body=lambda: rest.submit.JobPatch,
)
WHY: Final = Endpoint("GET", "/api/v1/jobs/{job_id}/why", lambda: rest.why.WhyView)
SCRIPT: Final = Endpoint("GET", "/api/v1/jobs/{job_id}/script", lambda: rest.submit.ScriptView)
JOB_EVENTS: Final = Endpoint(
    "GET",
    "/api/v1/jobs/{job_id}/events",
    lambda: rest.audit.JobEventsView,
    query=lambda: rest.audit.JobEventsQuery,
)
LOGS: Final = Endpoint(
    "GET", "/api/v1/jobs/{job_id}/logs", lambda: bytes, query=lambda: rest.log.LogQuery, media_type="text/plain"
)

FORWARD: Final = Endpoint(
    *("POST", "/api/v1/jobs/{job_id}/forward", lambda: bytes),
    query=lambda: rest.forward.ForwardQuery,
    media_type="application/octet-stream",
    repeatable=False,
)
EXEC: Final = Endpoint(
    *("GET", "/api/v1/jobs/{job_id}/exec", lambda: bytes),
    query=lambda: rest.exec_session.ExecQuery,
    media_type="application/octet-stream",
    status=101,
    repeatable=False,
)
ATTACH: Final = Endpoint(
    *("GET", "/api/v1/jobs/{job_id}/attach", lambda: bytes),
    query=lambda: rest.exec_session.AttachQuery,
    media_type="application/octet-stream",
    status=101,
    repeatable=False,
)

# -- jobs in the dgpu dialect ------------------------------------------------------------------------------------------

SUBMIT_TASK: Final = Endpoint(
    "POST",
    "/api/v1/tasks",
    lambda: rest.task.TaskSubmittedView,
    body=lambda: rest.task.TaskBody,
    status=201,
    keyed=True,
)
TASKS: Final = Endpoint("GET", "/api/v1/tasks", lambda: rest.task.TaskListView, query=lambda: rest.task.TaskListQuery)
TASK: Final = Endpoint("GET", "/api/v1/tasks/{job_id}", lambda: rest.task.TaskView)
CANCEL_TASK: Final = Endpoint("DELETE", "/api/v1/tasks/{job_id}", lambda: rest.task.MessageView, done_code="job_ended")

# -- GPUs, nodes, partitions -------------------------------------------------------------------------------------------

GPUS: Final = Endpoint("GET", "/api/v1/gpus", lambda: rest.node.GpuListView, query=_no_query)
NODES: Final = Endpoint("GET", "/api/v1/nodes", lambda: rest.node.NodeListView, query=_no_query)
NODE: Final = Endpoint("GET", "/api/v1/nodes/{name}", lambda: rest.node.NodeView)
NODE_FIGURES: Final = Endpoint("GET", "/api/v1/nodes/{name}/figures", lambda: rest.gpu_figures.NodeHourView)
DRAIN: Final = Endpoint(
    "POST", "/api/v1/nodes/{name}/drain", lambda: rest.node.NodeView, body=lambda: rest.node.DrainBody
)
RESUME: Final = Endpoint("POST", "/api/v1/nodes/{name}/resume", lambda: rest.node.NodeView)
FORGET: Final = Endpoint(
    "DELETE",
    "/api/v1/nodes/{name}",
    lambda: rest.node.NodeView,
    query=lambda: rest.node.ForgetQuery,
    repeatable=False,
)
LABEL: Final = Endpoint(
    "POST", "/api/v1/nodes/{name}/labels", lambda: rest.node.NodeView, body=lambda: rest.node.LabelsBody
)
TAINT: Final = Endpoint(
    "POST", "/api/v1/nodes/{name}/taints", lambda: rest.node.NodeView, body=lambda: rest.node.TaintsBody
)
PARTITIONS: Final = Endpoint("GET", "/api/v1/partitions", lambda: rest.partition.PartitionListView, query=_no_query)
CREATE_PARTITION: Final = Endpoint(
    "POST",
    "/api/v1/partitions",
    lambda: rest.partition.PartitionView,
    body=lambda: rest.partition.NewPartitionBody,
    status=201,
    repeatable=False,
)
PARTITION: Final = Endpoint("GET", "/api/v1/partitions/{name}", lambda: rest.partition.PartitionView)
PUT_PARTITION: Final = Endpoint(
    "PUT",
    "/api/v1/partitions/{name}",
    lambda: rest.partition.PartitionView,
    body=lambda: rest.partition.PartitionBody,
)
DELETE_PARTITION: Final = Endpoint(
    "DELETE", "/api/v1/partitions/{name}", lambda: rest.partition.PartitionView, repeatable=False
)

# -- tenants, quota, tokens --------------------------------------------------------------------------------------------

TENANTS: Final = Endpoint("GET", "/api/v1/tenants", lambda: rest.tenant.TenantListView, query=_no_query)
CREATE_TENANT: Final = Endpoint(
    "POST",
    "/api/v1/tenants",
    lambda: rest.tenant.TenantView,
    body=lambda: rest.tenant.NewTenantBody,
    status=201,
    repeatable=False,
)
TENANT: Final = Endpoint("GET", "/api/v1/tenants/{name}", lambda: rest.tenant.TenantView)
CHANGE_TENANT: Final = Endpoint(
    "PUT", "/api/v1/tenants/{name}", lambda: rest.tenant.TenantView, body=lambda: rest.tenant.TenantBody
)
DELETE_TENANT: Final = Endpoint("DELETE", "/api/v1/tenants/{name}", lambda: rest.tenant.TenantView, repeatable=False)
QUOTA: Final = Endpoint("GET", "/api/v1/quota", lambda: rest.quota.QuotaView, query=_no_query)
SET_QUOTA: Final = Endpoint("PUT", "/api/v1/quota", lambda: rest.quota.QuotaView, body=lambda: rest.quota.QuotaBody)
TOKENS: Final = Endpoint("GET", "/api/v1/tokens", lambda: rest.token.TokenListView, query=_no_query)
CREATE_TOKEN: Final = Endpoint(
    "POST",
    "/api/v1/tokens",
    lambda: rest.token.NewTokenView,
    body=lambda: rest.token.NewTokenBody,
    status=201,
    repeatable=False,
)
"""A token whose text got lost would stay valid for anyone who finds it."""
WHOAMI: Final = Endpoint("GET", "/api/v1/whoami", lambda: rest.token.CallerView, query=_no_query)
REVOKE_TOKEN: Final = Endpoint("DELETE", "/api/v1/tokens/{id}", lambda: rest.token.TokenView, repeatable=False)
SECRETS: Final = Endpoint(
    "GET", "/api/v1/secrets", lambda: rest.secret.SecretListView, query=lambda: rest.secret.SecretListQuery
)
SET_SECRET: Final = Endpoint(
    "PUT", "/api/v1/secrets/{name}", lambda: rest.secret.SecretView, body=lambda: rest.secret.SecretBody
)
DELETE_SECRET: Final = Endpoint(
    "DELETE",
    "/api/v1/secrets/{name}",
    lambda: rest.secret.SecretView,
    query=lambda: rest.secret.SecretQuery,
    done_code="secret_unknown",
)

# -- the cluster -------------------------------------------------------------------------------------------------------

USAGE: Final = Endpoint("GET", "/api/v1/usage", lambda: rest.usage.UsageView, query=lambda: rest.usage.UsageReportQuery)
AUDIT: Final = Endpoint(
    "GET", "/api/v1/audit", lambda: rest.audit.AuditListView, query=lambda: rest.audit.AuditListQuery
)
BACKUP: Final = Endpoint("GET", "/api/v1/backup", lambda: bytes, query=_no_query, media_type="application/x-tar")
STATUS: Final = Endpoint("GET", "/api/v1/cluster/status", lambda: rest.cluster.ClusterView, query=_no_query)
CONTROL: Final = Endpoint("GET", "/api/v1/control", lambda: rest.cluster.ControlView)
PROMOTE: Final = Endpoint("POST", "/api/v1/control/promote", lambda: rest.cluster.ControlView, repeatable=False)
EVENTS: Final = Endpoint(
    "GET", "/api/v1/events", lambda: bytes, query=lambda: rest.event.EventQuery, media_type="text/event-stream"
)
ROOT_HEALTH: Final = Endpoint("GET", "/health", lambda: rest.cluster.HealthView)
"""For probes that know no prefix."""
HEALTH: Final = ROOT_HEALTH._replace(path="/api/v1/health")
READY: Final = Endpoint("GET", "/ready", lambda: rest.cluster.ReadyView)
METRICS: Final = Endpoint("GET", "/metrics", lambda: bytes, media_type="text/plain")
ERRORS: Final = Endpoint("GET", "/api/v1/errors", lambda: bytes, media_type="text/html")

ENDPOINTS: Final[Mapping[str, Endpoint[object]]] = {
    name.lower(): row for name, row in tuple(globals().items()) if isinstance(row, Endpoint)
}
"""Every row by the name of its client method, in the order of the OpenAPI document."""
