"""Which request does each question to a control plane make, and what does its answer mean?

Nothing is sent here: `client` and `async_client` differ only in how they wait for an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Generic, Literal, NamedTuple, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from stoker.brain.domain.array import parse_job_ref
from stoker.brain.domain.errors import Refusal, StokerError, refuse
from stoker.wire.client.backoff import fresh_key
from stoker.wire.client.http_message import Reply, Request, bad_answer
from stoker.wire.idempotency import KEY_HEADER
from stoker.wire.rest.cluster import ClusterView, HealthView
from stoker.wire.rest.gpu import GpuListView
from stoker.wire.rest.job import (
    ForgottenJobView,
    JobListQuery,
    JobListView,
    JobsSubmittedView,
    JobsToldView,
    JobsView,
    JobView,
    SignalBody,
    WhyView,
)
from stoker.wire.rest.log import ATTEMPT_HEADER, ENDED_HEADER, OFFSET_HEADER, SIZE_HEADER, LogQuery
from stoker.wire.rest.node import DrainBody, LabelsBody, NodeListView, NodeView, TaintsBody
from stoker.wire.rest.partition import NewPartitionBody, PartitionBody, PartitionListView, PartitionView
from stoker.wire.rest.submit import JobBody, JobsBody
from stoker.wire.rest.task import TaskListQuery, TaskListView, TaskView
from stoker.wire.versions import API_PREFIX

# What few commands need is imported where it is asked for: it would cost the others ten milliseconds.
if TYPE_CHECKING:
    from stoker.wire.rest.audit import AuditListQuery, AuditListView
    from stoker.wire.rest.job_event import JobEventsQuery, JobEventsView
    from stoker.wire.rest.quota import QuotaBody, QuotaView
    from stoker.wire.rest.tenant import NewTenantBody, TenantBody, TenantView
    from stoker.wire.rest.token import NewTokenBody, NewTokenView, TokenListView, TokenView
    from stoker.wire.rest.usage import UsageReportQuery, UsageView

Answer = TypeVar("Answer", covariant=True)
View = TypeVar("View", bound=msgspec.Struct)
JobOperation = Literal["cancel", "hold", "release", "requeue", "signal"]

_DONE_CODES: Final[Mapping[JobOperation, str]] = {"cancel": "job_ended", "release": "not_held"}
"""A repeat of these that is refused so was carried out the first time."""
_LIST: Final = b'{"jobs":'
"""So the answer begins where an id named several members."""
_ONCE: Final[tuple[JobOperation, ...]] = ("requeue", "signal")
"""Orders that may not come twice."""


class LogPart(NamedTuple):
    """Bytes of a task's output. The next part begins at `end`."""

    data: bytes
    offset: int
    """Where `data` begins, counted from the first byte ever written. Above what was asked for where the node has
    dropped what lay between."""
    size: int
    """Bytes ever written."""
    ended: bool
    """No more will be written."""
    attempt: int = 0
    """Which attempt wrote it. 0 = the server doesn't say."""

    @property
    def end(self) -> int:
        return self.offset + len(self.data)


class ApiCall(NamedTuple, Generic[Answer]):
    """A request, and how its answer is read."""

    request: Request
    read: Callable[[Reply], Answer]


# -- jobs ------------------------------------------------------------------------------------------------------------


def submit(job: JobBody, key: str) -> ApiCall[JobView]:
    return ApiCall(_submit(msgspec.json.encode(job), key), _submitted)


def submit_many(jobs: Sequence[JobBody], key: str) -> ApiCall[list[JobView]]:
    return ApiCall(_submit(msgspec.json.encode(JobsBody(jobs=list(jobs))), key), _all_submitted)


def _submit(body: bytes, key: str) -> Request:
    """Raises: StokerError `bad_idempotency_key`: a header has no other letters, and no line break above all."""
    if not (key.isascii() and (key.isprintable() or not key)):
        why = f"the key {key[:80]!r} has letters that no header can carry"
        raise StokerError(refuse("bad_idempotency_key", why, "use a fresh UUID for each submit"))
    return Request("POST", f"{API_PREFIX}/jobs", body, {KEY_HEADER: key or fresh_key()}, repeatable=True)


def _submitted(reply: Reply) -> JobView:
    try:
        return msgspec.json.decode(reply.body, type=JobView)
    except msgspec.MsgspecError:
        gone = _decoded(ForgottenJobView)(reply)
    raise _forgotten([gone.id], gone.message)


def _all_submitted(reply: Reply) -> list[JobView]:
    answer = _decoded(JobsSubmittedView)(reply)
    if answer.forgotten:
        said = f"{len(answer.forgotten)} of the jobs submitted under this key ended so long ago that they are forgotten"
        raise _forgotten(answer.forgotten, said)
    return answer.jobs


def _forgotten(ids: Sequence[str], message: str) -> StokerError:
    hint = "they were submitted, once; use a fresh key for a submit that is another one"
    return StokerError(refuse("job_forgotten", message, hint, job_id=ids[0]))


def job(job_id: str) -> ApiCall[JobView]:
    """Its answer raises `several_jobs` where the id names several members, which the server shows as a list."""
    read = _decoded(JobView)

    def one(reply: Reply) -> JobView:
        if reply.body.startswith(_LIST):
            raise StokerError(_several(job_id))
        return read(reply)

    return ApiCall(_get(f"/jobs/{_word(job_id)}"), one)


def _several(job_id: str) -> Refusal:
    ref = parse_job_ref(job_id)
    first = ref.members[0][0] if ref.members else 0
    hint = f"name one of them, such as `{ref.job}_{first}`, or all: `{ref.job}`"
    return refuse("several_jobs", f"{job_id[:80]} names several members, and one is wanted", hint)


def members(jobs: str) -> ApiCall[JobsView]:
    return ApiCall(_get(f"/jobs/{_word(jobs)}"), _shown_jobs)


def _shown_jobs(reply: Reply) -> JobsView:
    if reply.body.startswith(_LIST):
        return _decoded(JobsView)(reply)
    return JobsView(jobs=[_decoded(JobView)(reply)], total=1)


def jobs(query: JobListQuery | None) -> ApiCall[JobListView]:
    return _read(JobListView, "/jobs" + _query(query))


def job_operation(word: JobOperation, jobs: str, signal: str | int = "") -> ApiCall[JobsToldView | None]:
    """The answer is None where the order had been carried out before, as the refusal of a repeat said."""
    method, tail = ("DELETE", "") if word == "cancel" else ("POST", f"/{word}")
    body = msgspec.json.encode(SignalBody(signal=signal)) if word == "signal" else None
    target = f"{API_PREFIX}/jobs/{_word(jobs)}{tail}"
    repeatable, done_code = word not in _ONCE, _DONE_CODES.get(word, "")
    return ApiCall(Request(method, target, body, repeatable=repeatable, done_code=done_code), _told)


def _told(reply: Reply) -> JobsToldView | None:
    if reply.status >= 300:
        return None
    if reply.body.startswith(_LIST):
        return _decoded(JobsToldView)(reply)
    return JobsToldView(jobs=[_decoded(JobView)(reply)], total=1, changed=1)


def why(job_id: str) -> ApiCall[WhyView]:
    return _read(WhyView, f"/jobs/{_word(job_id)}/why")


def job_events(job_id: str, query: JobEventsQuery | None) -> ApiCall[JobEventsView]:
    from stoker.wire.rest.job_event import JobEventsView

    return _read(JobEventsView, f"/jobs/{_word(job_id)}/events{_query(query)}")


def logs(job_id: str, query: LogQuery | None) -> ApiCall[LogPart]:
    request = _get(f"/jobs/{_word(job_id)}/logs{_query(query)}")
    return ApiCall(request._replace(waits=query is not None and query.wait_s > 0), _log_part)


def _log_part(reply: Reply) -> LogPart:
    try:
        offset, size = (int(reply.headers[name.lower()]) for name in (OFFSET_HEADER, SIZE_HEADER))
        ended = reply.headers[ENDED_HEADER.lower()] == "true"
        attempt = int(reply.headers.get(ATTEMPT_HEADER.lower(), "0"))
    except (KeyError, ValueError) as fault:
        raise bad_answer(reply) from fault
    return LogPart(reply.body, offset, size, ended, attempt)


def task(task_id: str) -> ApiCall[TaskView]:
    return _read(TaskView, f"/tasks/{_word(task_id)}")


def tasks(query: TaskListQuery | None) -> ApiCall[TaskListView]:
    return _read(TaskListView, "/tasks" + _query(query))


# -- nodes, partitions, the cluster ----------------------------------------------------------------------------------


def nodes() -> ApiCall[list[NodeView]]:
    return ApiCall(_get("/nodes"), lambda reply: _decoded(NodeListView)(reply).nodes)


def node(name: str) -> ApiCall[NodeView]:
    return _read(NodeView, f"/nodes/{_word(name)}")


def drain(name: str, reason: str) -> ApiCall[NodeView]:
    return _change(NodeView, "POST", f"/nodes/{_word(name)}/drain", DrainBody(reason=reason))


def resume(name: str) -> ApiCall[NodeView]:
    return _change(NodeView, "POST", f"/nodes/{_word(name)}/resume")


def forget(name: str, *, force: bool) -> ApiCall[NodeView]:
    return _change(NodeView, "DELETE", f"/nodes/{_word(name)}?force={str(force).lower()}", repeatable=False)


def label(name: str, labels: Mapping[str, str], remove: Sequence[str]) -> ApiCall[NodeView]:
    body = LabelsBody(labels=dict(labels), remove=list(remove))
    return _change(NodeView, "POST", f"/nodes/{_word(name)}/labels", body)


def taint(name: str, taints: Sequence[str], remove: Sequence[str]) -> ApiCall[NodeView]:
    body = TaintsBody(taints=list(taints), remove=list(remove))
    return _change(NodeView, "POST", f"/nodes/{_word(name)}/taints", body)


def partitions() -> ApiCall[list[PartitionView]]:
    return ApiCall(_get("/partitions"), lambda reply: _decoded(PartitionListView)(reply).partitions)


def partition(name: str) -> ApiCall[PartitionView]:
    return _read(PartitionView, f"/partitions/{_word(name)}")


def create_partition(partition: NewPartitionBody) -> ApiCall[PartitionView]:
    return _change(PartitionView, "POST", "/partitions", partition, repeatable=False)


def put_partition(name: str, partition: PartitionBody) -> ApiCall[PartitionView]:
    return _change(PartitionView, "PUT", f"/partitions/{_word(name)}", partition)


def delete_partition(name: str) -> ApiCall[PartitionView]:
    return _change(PartitionView, "DELETE", f"/partitions/{_word(name)}", repeatable=False)


def tenants() -> ApiCall[list[TenantView]]:
    from stoker.wire.rest.tenant import TenantListView

    return ApiCall(_get("/tenants"), lambda reply: _decoded(TenantListView)(reply).tenants)


def tenant(name: str) -> ApiCall[TenantView]:
    from stoker.wire.rest.tenant import TenantView

    return _read(TenantView, f"/tenants/{_word(name)}")


def create_tenant(tenant: NewTenantBody) -> ApiCall[TenantView]:
    from stoker.wire.rest.tenant import TenantView

    return _change(TenantView, "POST", "/tenants", tenant, repeatable=False)


def change_tenant(name: str, change: TenantBody) -> ApiCall[TenantView]:
    from stoker.wire.rest.tenant import TenantView

    return _change(TenantView, "PUT", f"/tenants/{_word(name)}", change)


def delete_tenant(name: str) -> ApiCall[TenantView]:
    from stoker.wire.rest.tenant import TenantView

    return _change(TenantView, "DELETE", f"/tenants/{_word(name)}", repeatable=False)


def quota() -> ApiCall[QuotaView]:
    from stoker.wire.rest.quota import QuotaView

    return _read(QuotaView, "/quota")


def set_quota(change: QuotaBody) -> ApiCall[QuotaView]:
    from stoker.wire.rest.quota import QuotaView

    return _change(QuotaView, "PUT", "/quota", change)


def gpus() -> ApiCall[GpuListView]:
    return _read(GpuListView, "/gpus")


def usage(query: UsageReportQuery | None) -> ApiCall[UsageView]:
    from stoker.wire.rest.usage import UsageView

    return _read(UsageView, "/usage" + _query(query))


def audit(query: AuditListQuery | None) -> ApiCall[AuditListView]:
    from stoker.wire.rest.audit import AuditListView

    return _read(AuditListView, "/audit" + _query(query))


def cluster() -> ApiCall[ClusterView]:
    return _read(ClusterView, "/cluster/status")


def health() -> ApiCall[HealthView]:
    return _read(HealthView, "/health")


# -- tokens ----------------------------------------------------------------------------------------------------------


def create_token(body: NewTokenBody) -> ApiCall[NewTokenView]:
    """Never sent twice: a token whose text got lost would stay behind, good for whoever finds it."""
    from stoker.wire.rest.token import NewTokenView

    return _change(NewTokenView, "POST", "/tokens", body, repeatable=False)


def tokens() -> ApiCall[TokenListView]:
    from stoker.wire.rest.token import TokenListView

    return _read(TokenListView, "/tokens")


def revoke_token(token_id: str) -> ApiCall[TokenView]:
    from stoker.wire.rest.token import TokenView

    return _change(TokenView, "DELETE", f"/tokens/{_word(token_id)}", repeatable=False)


# -- how -------------------------------------------------------------------------------------------------------------


def _get(path: str) -> Request:
    return Request("GET", API_PREFIX + path, repeatable=True)


def _read(shape: type[View], path: str) -> ApiCall[View]:
    return ApiCall(_get(path), _decoded(shape))


def _change(
    shape: type[View], method: str, path: str, body: msgspec.Struct | None = None, *, repeatable: bool = True
) -> ApiCall[View]:
    data = None if body is None else msgspec.json.encode(body)
    return ApiCall(Request(method, API_PREFIX + path, data, repeatable=repeatable), _decoded(shape))


def _decoded(shape: type[View]) -> Callable[[Reply], View]:
    def read(reply: Reply) -> View:
        try:
            return msgspec.json.decode(reply.body, type=shape)
        except msgspec.MsgspecError as fault:
            raise bad_answer(reply) from fault

    return read


def _word(text: str) -> str:
    """One part of a path, whatever is in it. Raises: StokerError `missing_field` for nothing: the path of all is
    another question."""
    if not text:
        hint = "give the one that is meant; a variable that was to hold it may be empty"
        raise StokerError(refuse("missing_field", "an empty text is no id and no name", hint))
    return quote(text, safe="")


def _query(query: msgspec.Struct | None) -> str:
    """Only what differs from the defaults travels, so that a newer client can ask an older server."""
    if query is None:
        return ""
    fields = msgspec.structs.fields(query)
    given = {field.encode_name: getattr(query, field.name) for field in fields}
    defaults = {field.encode_name: field.default for field in fields}
    changed = {name: value for name, value in given.items() if value != defaults[name]}
    return f"?{urlencode(changed)}" if changed else ""
