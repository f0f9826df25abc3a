"""How does a Python program with an event loop ask a control plane?

    async with AsyncClient("http://127.0.0.1:8080") as client:
        job = await client.submit(JobBody(command=["python", "train.py"], gpu_count=4))
        job = await client.wait(job.id)

The methods, what they answer and what they raise are those of `client.Client`, and many tasks may call them at once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from msgspec import structs

from stoker.brain.domain.errors import StokerError
from stoker.wire.client import endpoints, follow
from stoker.wire.client.async_transport import AsyncTransport
from stoker.wire.client.backoff import sleep_async
from stoker.wire.client.endpoints import ApiCall, LogPart
from stoker.wire.client.follow import FollowSequence, Sleep, Yield
from stoker.wire.client.retry import PATIENCE_S
from stoker.wire.client.servers import DEFAULT_SERVER
from stoker.wire.client.staleness import Notice, Stale, Waiting, ignore_notice
from stoker.wire.rest.cluster import ClusterView, HealthView
from stoker.wire.rest.gpu import GpuListView
from stoker.wire.rest.job import JobListQuery, JobListView, JobsToldView, JobsView, JobView, WhyView
from stoker.wire.rest.log import LogQuery
from stoker.wire.rest.node import NodeView
from stoker.wire.rest.partition import NewPartitionBody, PartitionBody, PartitionView
from stoker.wire.rest.submit import JobBody
from stoker.wire.rest.task import TaskListQuery, TaskListView, TaskView

if TYPE_CHECKING:
    from stoker.wire.rest.audit import AuditListQuery, AuditListView
    from stoker.wire.rest.job_event import JobEventsQuery, JobEventsView
    from stoker.wire.rest.quota import QuotaBody, QuotaView
    from stoker.wire.rest.tenant import NewTenantBody, TenantBody, TenantView
    from stoker.wire.rest.token import NewTokenBody, NewTokenView, TokenListView, TokenView
    from stoker.wire.rest.usage import UsageReportQuery, UsageView

__all__ = [
    "DEFAULT_SERVER",
    "AsyncClient",
    "JobBody",
    "JobListQuery",
    "LogPart",
    "LogQuery",
    "Notice",
    "Stale",
    "StokerError",
    "Waiting",
]

Answer = TypeVar("Answer")


class AsyncClient:
    """One user's way to one cluster, for any number of tasks of one event loop."""

    def __init__(
        self,
        servers: str = DEFAULT_SERVER,
        *,
        token: str = "",
        patience_s: float = PATIENCE_S,
        notify: Callable[[Notice], object] = ignore_notice,
    ) -> None:
        """As `Client`. Raises: StokerError `bad_server` or `bad_token`."""
        self._transport = AsyncTransport(servers, token=token, patience_s=patience_s, notify=notify)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._transport.close()

    @property
    def server(self) -> str:
        return self._transport.server

    @property
    def patience_s(self) -> float:
        return self._transport.patience_s

    @patience_s.setter
    def patience_s(self, seconds: float) -> None:
        self._transport.patience_s = seconds

    async def submit(self, job: JobBody, *, key: str = "") -> JobView:
        return await self._ask(endpoints.submit(job, key))

    async def submit_many(self, jobs: Sequence[JobBody], *, key: str = "") -> list[JobView]:
        return await self._ask(endpoints.submit_many(jobs, key))

    async def submit_array(self, job: JobBody, members: str, *, key: str = "") -> JobView:
        return await self._ask(endpoints.submit(structs.replace(job, array=members), key))

    async def job(self, job_id: str) -> JobView:
        return await self._ask(endpoints.job(job_id))

    async def members(self, jobs: str) -> JobsView:
        return await self._ask(endpoints.members(jobs))

    async def jobs(self, query: JobListQuery | None = None) -> JobListView:
        return await self._ask(endpoints.jobs(query))

    def each_job(self, query: JobListQuery | None = None) -> AsyncIterator[JobView]:
        return self._each(follow.each_job(query), JobView)

    async def cancel(self, jobs: str) -> JobsToldView:
        return await self._order("cancel", jobs)

    async def hold(self, jobs: str) -> JobsToldView:
        return await self._order("hold", jobs)

    async def release(self, jobs: str) -> JobsToldView:
        return await self._order("release", jobs)

    async def requeue(self, jobs: str) -> JobsToldView:
        return await self._order("requeue", jobs)

    async def signal(self, jobs: str, signal: str | int) -> JobsToldView:
        return await self._order("signal", jobs, signal)

    async def why(self, job_id: str) -> WhyView:
        return await self._ask(endpoints.why(job_id))

    async def job_events(self, job_id: str, query: JobEventsQuery | None = None) -> JobEventsView:
        return await self._ask(endpoints.job_events(job_id, query))

    async def wait(self, job_id: str, *, at_most_s: float = float("inf")) -> JobView:
        return await self._one(follow.wait(job_id, at_most_s), JobView)

    async def wait_all(self, job_ids: Sequence[str]) -> list[JobView]:
        return [await self.wait(job_id) for job_id in job_ids]

    async def logs(self, job_id: str, query: LogQuery | None = None) -> LogPart:
        return await self._ask(endpoints.logs(job_id, query))

    def follow_logs(self, job_id: str, query: LogQuery | None = None) -> AsyncIterator[LogPart]:
        return self._each(follow.follow(job_id, query or LogQuery()), LogPart)

    async def task(self, task_id: str) -> TaskView:
        return await self._ask(endpoints.task(task_id))

    async def tasks(self, query: TaskListQuery | None = None) -> TaskListView:
        return await self._ask(endpoints.tasks(query))

    async def nodes(self) -> list[NodeView]:
        return await self._ask(endpoints.nodes())

    async def node(self, name: str) -> NodeView:
        return await self._ask(endpoints.node(name))

    async def drain(self, name: str, reason: str = "") -> NodeView:
        return await self._ask(endpoints.drain(name, reason))

    async def resume(self, name: str) -> NodeView:
        return await self._ask(endpoints.resume(name))

    async def forget(self, name: str, *, force: bool = False) -> NodeView:
        return await self._ask(endpoints.forget(name, force=force))

    async def label(self, name: str, labels: Mapping[str, str], remove: Sequence[str] = ()) -> NodeView:
        return await self._ask(endpoints.label(name, labels, remove))

    async def taint(self, name: str, taints: Sequence[str], remove: Sequence[str] = ()) -> NodeView:
        return await self._ask(endpoints.taint(name, taints, remove))

    async def partitions(self) -> list[PartitionView]:
        return await self._ask(endpoints.partitions())

    async def partition(self, name: str) -> PartitionView:
        return await self._ask(endpoints.partition(name))

    async def create_partition(self, partition: NewPartitionBody) -> PartitionView:
        return await self._ask(endpoints.create_partition(partition))

    async def put_partition(self, name: str, partition: PartitionBody) -> PartitionView:
        return await self._ask(endpoints.put_partition(name, partition))

    async def delete_partition(self, name: str) -> PartitionView:
        return await self._ask(endpoints.delete_partition(name))

    async def tenants(self) -> list[TenantView]:
        return await self._ask(endpoints.tenants())

    async def tenant(self, name: str) -> TenantView:
        return await self._ask(endpoints.tenant(name))

    async def create_tenant(self, tenant: NewTenantBody) -> TenantView:
        return await self._ask(endpoints.create_tenant(tenant))

    async def change_tenant(self, name: str, change: TenantBody) -> TenantView:
        return await self._ask(endpoints.change_tenant(name, change))

    async def delete_tenant(self, name: str) -> TenantView:
        return await self._ask(endpoints.delete_tenant(name))

    async def quota(self) -> QuotaView:
        return await self._ask(endpoints.quota())

    async def set_quota(self, change: QuotaBody) -> QuotaView:
        return await self._ask(endpoints.set_quota(change))

    async def create_token(self, token: NewTokenBody) -> NewTokenView:
        return await self._ask(endpoints.create_token(token))

    async def tokens(self) -> TokenListView:
        return await self._ask(endpoints.tokens())

    async def revoke_token(self, token_id: str) -> TokenView:
        return await self._ask(endpoints.revoke_token(token_id))

    async def gpus(self) -> GpuListView:
        return await self._ask(endpoints.gpus())

    async def usage(self, query: UsageReportQuery | None = None) -> UsageView:
        return await self._ask(endpoints.usage(query))

    async def audit(self, query: AuditListQuery | None = None) -> AuditListView:
        return await self._ask(endpoints.audit(query))

    async def status(self) -> ClusterView:
        return await self._ask(endpoints.cluster())

    async def health(self) -> HealthView:
        return await self._ask(endpoints.health())

    async def _order(self, word: endpoints.JobOperation, jobs: str, signal: str | int = "") -> JobsToldView:
        told = await self._ask(endpoints.job_operation(word, jobs, signal))
        if told is not None:
            return told
        now = await self.members(jobs)
        return JobsToldView(jobs=now.jobs, total=now.total, changed=now.total)

    async def _ask(self, ask: ApiCall[Answer]) -> Answer:
        return ask.read(await self._transport.send(ask.request))

    async def _one(self, todo: FollowSequence, kind: type[Answer]) -> Answer:
        return await anext(self._each(todo, kind))

    async def _each(self, todo: FollowSequence, kind: type[Answer]) -> AsyncIterator[Answer]:
        """Carry steps out, and yield what they give."""
        step = next(todo, None)
        while step is not None:
            answer: object = None
            if isinstance(step, Yield):
                assert isinstance(step.value, kind), f"{kind} is due, {type(step.value)} is given"
                yield step.value
            elif isinstance(step, Sleep):
                await sleep_async(step.seconds)
            else:
                try:
                    answer = await self._ask(step)
                except StokerError as fault:
                    step = follow.thrown(todo, fault)
                    continue
            step = follow.sent(todo, answer)
