"""How does a Python program, such as our own command line, ask a control plane?

    with Client("http://127.0.0.1:8080") as client:
        job = client.submit(JobBody(command=["python", "train.py"], gpu_count=4))
        job = client.wait(job.id)

`async_client` has the same methods for programs with an event loop. Every method raises StokerError: with the server's
code, message and hint, or `no_server` where none answers, `not_active` where only standbys do, or `no_answer` where the
answer got lost and the request may have been carried out. What is safe to repeat is repeated: see `retry`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from msgspec import structs

from stoker.brain.domain.errors import StokerError
from stoker.wire.client import endpoints, follow
from stoker.wire.client.backoff import sleep_blocking
from stoker.wire.client.endpoints import ApiCall, LogPart
from stoker.wire.client.follow import FollowSequence, Sleep, Yield
from stoker.wire.client.retry import PATIENCE_S
from stoker.wire.client.servers import DEFAULT_SERVER
from stoker.wire.client.staleness import Notice, Stale, Waiting, ignore_notice
from stoker.wire.client.transport import Transport
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
    "Client",
    "JobBody",
    "JobListQuery",
    "LogPart",
    "LogQuery",
    "Notice",
    "Stale",
    "StokerError",
    "TaskListQuery",
    "Waiting",
]

Answer = TypeVar("Answer")


class Client:
    """One user's way to one cluster. Not for use by several threads at once."""

    def __init__(
        self,
        servers: str = DEFAULT_SERVER,
        *,
        token: str = "",
        patience_s: float = PATIENCE_S,
        pause: Callable[[float], object] = sleep_blocking,
        notify: Callable[[Notice], object] = ignore_notice,
    ) -> None:
        """`servers` has commas between several: an active one and its standbys, in any order. The `token` is sent with
        each request, and to no other server; empty = none is.

        For up to `patience_s` a request is repeated that may be, while no server answers, none is active or each says
        that it can't now; 0 = say so at once. `pause` blocks for seconds. `notify` is told when an answer comes from a
        standby, and may be old, and when a request is being repeated.

        Raises: StokerError `bad_server` or `bad_token`.
        """
        self._transport = Transport(servers, token=token, patience_s=patience_s, pause=pause, notify=notify)
        self._pause = pause

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Hang up. Jobs aren't touched."""
        self._transport.close()

    @property
    def server(self) -> str:
        """The address that is asked first: that of the last active one that answered."""
        return self._transport.server

    @property
    def patience_s(self) -> float:
        """For how long a request is repeated that may be. Counts from the next one when it is set."""
        return self._transport.patience_s

    @patience_s.setter
    def patience_s(self, seconds: float) -> None:
        self._transport.patience_s = seconds

    def submit(self, job: JobBody, *, key: str = "") -> JobView:
        """Submit one job. It is submitted once, however often its answer gets lost on the way: each call draws an
        idempotency key. With a `key` of the caller's own that holds beyond this call and this process too.

        Raises: StokerError with what is wrong with the job (`bad_field`, `demand_unsatisfiable` and the like);
        `queue_full`; `idempotency_key_reused` where the key came with another body; `job_forgotten` where it was
        submitted under this key so long ago that its record is gone.
        """
        return self._ask(endpoints.submit(job, key))

    def submit_many(self, jobs: Sequence[JobBody], *, key: str = "") -> list[JobView]:
        """Submit all of these jobs or none, in one request. They may wait for each other: `after="ok:#0"`.

        Raises: StokerError as `submit`; the message names the job at fault (`jobs[3]`), the fact `index` too.
        """
        return self._ask(endpoints.submit_many(jobs, key))

    def submit_array(self, job: JobBody, members: str, *, key: str = "") -> JobView:
        """Submit an array: one job with many members, `0-9`, `1,3,7` or `0-98:2`, and `%3` for at most 3 at once.

        Raises: StokerError as `submit`, and `bad_array` or `array_too_large`.
        """
        return self._ask(endpoints.submit(structs.replace(job, array=members), key))

    def job(self, job_id: str) -> JobView:
        """Show a job, an array, or one member (`7_3`).

        Raises: StokerError `job_unknown`, `member_unknown` or `job_forgotten`.
        """
        return self._ask(endpoints.job(job_id))

    def members(self, jobs: str) -> JobsView:
        """Show several members of an array, `7_[0-4,9]`: at most 1000 of them; `total` counts all."""
        return self._ask(endpoints.members(jobs))

    def jobs(self, query: JobListQuery | None = None) -> JobListView:
        """List one page of jobs, newest first. Raises: StokerError `unknown_state` or `bad_parameter`."""
        return self._ask(endpoints.jobs(query))

    def each_job(self, query: JobListQuery | None = None) -> Iterator[JobView]:
        """List every job that matches, newest first, page by page; `query.limit` and `query.after` are ours to set."""
        return self._each(follow.each_job(query), JobView)

    def cancel(self, jobs: str) -> JobsToldView:
        """End a job, an array, one member or several (`7_[0-4,9]`). A job is final once its processes are gone; until
        then it is `stopping`.

        Raises: StokerError `job_unknown`, or `job_ended` where nothing is left to cancel.
        """
        return self._order("cancel", jobs)

    def hold(self, jobs: str) -> JobsToldView:
        """Keep what waits from starting, until it is released.

        Raises: StokerError `job_live` for what has started, `job_ended` for what is over.
        """
        return self._order("hold", jobs)

    def release(self, jobs: str) -> JobsToldView:
        """Let what is held wait for its turn again. Raises: StokerError `not_held`."""
        return self._order("release", jobs)

    def requeue(self, jobs: str) -> JobsToldView:
        """Run it once more: what is live is stopped first, what has ended waits again. Of a whole array the members
        that failed. Never repeated by itself, for it would stop what it started.

        Raises: StokerError `job_waits`, `nothing_failed`, or `no_answer` where it may have been carried out.
        """
        return self._order("requeue", jobs)

    def signal(self, jobs: str, signal: str | int) -> JobsToldView:
        """Send a signal, `USR1` or 10, to the processes of what runs. Never repeated by itself.

        Raises: StokerError `bad_signal`, `not_running`, `node_unreachable`, or `no_answer` where it may have been sent.
        """
        return self._order("signal", jobs, signal)

    def why(self, job_id: str) -> WhyView:
        """Say what keeps a job from running, and where in the queue it is, or what ended it."""
        return self._ask(endpoints.why(job_id))

    def job_events(self, job_id: str, query: JobEventsQuery | None = None) -> JobEventsView:
        """Tell what happened to a job, newest last, and who told it what."""
        return self._ask(endpoints.job_events(job_id, query))

    def wait(self, job_id: str, *, at_most_s: float = float("inf")) -> JobView:
        """The job once it is final, or as it is when `at_most_s` of pauses are over."""
        return self._one(follow.wait(job_id, at_most_s), JobView)

    def wait_all(self, job_ids: Sequence[str]) -> list[JobView]:
        """All of these jobs, in the order given, once the last is final."""
        return [self.wait(job_id) for job_id in job_ids]

    def logs(self, job_id: str, query: LogQuery | None = None) -> LogPart:
        """Read one part of a task's output: from a place, or the last lines.

        Raises: StokerError `not_started`, `attempt_unknown`, `node_unreachable` or `log_unavailable`.
        """
        return self._ask(endpoints.logs(job_id, query))

    def follow_logs(self, job_id: str, query: LogQuery | None = None) -> Iterator[LogPart]:
        """A rank's output as it is written, every byte once, over all attempts, until the job ends. `query` says which
        `rank`, at which `attempt` only, and with how many lines of `tail` to begin.

        Raises: StokerError as `logs`, but what time may lift is waited out.
        """
        return self._each(follow.follow(job_id, query or LogQuery()), LogPart)

    def task(self, task_id: str) -> TaskView:
        """Show a job in the dgpu dialect."""
        return self._ask(endpoints.task(task_id))

    def tasks(self, query: TaskListQuery | None = None) -> TaskListView:
        """List jobs in the dgpu dialect, newest first."""
        return self._ask(endpoints.tasks(query))

    def nodes(self) -> list[NodeView]:
        """List every node ever registered, by name."""
        return self._ask(endpoints.nodes())

    def node(self, name: str) -> NodeView:
        """Show a node. Raises: StokerError `node_unknown`."""
        return self._ask(endpoints.node(name))

    def drain(self, name: str, reason: str = "") -> NodeView:
        """Give a node no new work; what runs there goes on."""
        return self._ask(endpoints.drain(name, reason))

    def resume(self, name: str) -> NodeView:
        """End a drain."""
        return self._ask(endpoints.resume(name))

    def forget(self, name: str, *, force: bool = False) -> NodeView:
        """Forget a node that won't come back; with `force`, settle what it held without proof that it is gone.

        Raises: StokerError `node_in_use`. Never repeated by itself.
        """
        return self._ask(endpoints.forget(name, force=force))

    def label(self, name: str, labels: Mapping[str, str], remove: Sequence[str] = ()) -> NodeView:
        """Set labels on a node and take others off, by key. Raises: StokerError `bad_label` or `too_many_labels`."""
        return self._ask(endpoints.label(name, labels, remove))

    def taint(self, name: str, taints: Sequence[str], remove: Sequence[str] = ()) -> NodeView:
        """Put taints on a node and take others off, by key. Raises: StokerError `bad_taint` or `too_many_labels`."""
        return self._ask(endpoints.taint(name, taints, remove))

    def partitions(self) -> list[PartitionView]:
        """List every partition, by name."""
        return self._ask(endpoints.partitions())

    def partition(self, name: str) -> PartitionView:
        """Show a partition. Raises: StokerError `partition_unknown`."""
        return self._ask(endpoints.partition(name))

    def create_partition(self, partition: NewPartitionBody) -> PartitionView:
        """Make a partition. Raises: StokerError `partition_exists`. Never repeated by itself."""
        return self._ask(endpoints.create_partition(partition))

    def put_partition(self, name: str, partition: PartitionBody) -> PartitionView:
        """Make a partition, or replace it whole."""
        return self._ask(endpoints.put_partition(name, partition))

    def delete_partition(self, name: str) -> PartitionView:
        """Take a partition away. Raises: StokerError `partition_in_use`. Never repeated by itself."""
        return self._ask(endpoints.delete_partition(name))

    def tenants(self) -> list[TenantView]:
        """List every tenant, each followed by those beneath it."""
        return self._ask(endpoints.tenants())

    def tenant(self, name: str) -> TenantView:
        """Show a tenant, and what it uses now. Raises: StokerError `tenant_unknown`."""
        return self._ask(endpoints.tenant(name))

    def create_tenant(self, tenant: NewTenantBody) -> TenantView:
        """Make a tenant. Raises: StokerError `tenant_exists`. Never repeated by itself."""
        return self._ask(endpoints.create_tenant(tenant))

    def change_tenant(self, name: str, change: TenantBody) -> TenantView:
        """Change what is given, and leave the rest; None takes a limit off."""
        return self._ask(endpoints.change_tenant(name, change))

    def delete_tenant(self, name: str) -> TenantView:
        """Take a tenant away. Raises: StokerError `tenant_in_use`. Never repeated by itself."""
        return self._ask(endpoints.delete_tenant(name))

    def quota(self) -> QuotaView:
        """Show how online and batch jobs share the GPUs."""
        return self._ask(endpoints.quota())

    def set_quota(self, change: QuotaBody) -> QuotaView:
        """Share the GPUs anew. Raises: StokerError `bad_share` or `share_below_use`."""
        return self._ask(endpoints.set_quota(change))

    def create_token(self, token: NewTokenBody) -> NewTokenView:
        """Make a token; its text is in this answer only. Raises: StokerError `bad_token`. Never repeated by itself."""
        return self._ask(endpoints.create_token(token))

    def tokens(self) -> TokenListView:
        """List every token that holds, without its text."""
        return self._ask(endpoints.tokens())

    def revoke_token(self, token_id: str) -> TokenView:
        """End a token at once, also on open streams. Raises: StokerError `token_not_found`."""
        return self._ask(endpoints.revoke_token(token_id))

    def gpus(self) -> GpuListView:
        """List the GPUs of every node, and who holds them."""
        return self._ask(endpoints.gpus())

    def usage(self, query: UsageReportQuery | None = None) -> UsageView:
        """Sum up what was used, by tenant, user, job or node; the last seven days unless the query says otherwise."""
        return self._ask(endpoints.usage(query))

    def audit(self, query: AuditListQuery | None = None) -> AuditListView:
        """List what people told the cluster, newest first. Raises: StokerError `not_allowed` but for admins."""
        return self._ask(endpoints.audit(query))

    def status(self) -> ClusterView:
        """Show the cluster in numbers."""
        return self._ask(endpoints.cluster())

    def health(self) -> HealthView:
        """Show who serves, in which version."""
        return self._ask(endpoints.health())

    def _order(self, word: endpoints.JobOperation, jobs: str, signal: str | int = "") -> JobsToldView:
        told = self._ask(endpoints.job_operation(word, jobs, signal))
        if told is not None:
            return told
        now = self.members(jobs)
        return JobsToldView(jobs=now.jobs, total=now.total, changed=now.total)

    def _ask(self, ask: ApiCall[Answer]) -> Answer:
        return ask.read(self._transport.send(ask.request))

    def _one(self, todo: FollowSequence, kind: type[Answer]) -> Answer:
        return next(self._each(todo, kind))

    def _each(self, todo: FollowSequence, kind: type[Answer]) -> Iterator[Answer]:
        """Carry steps out, and yield what they give."""
        step = next(todo, None)
        while step is not None:
            answer: object = None
            if isinstance(step, Yield):
                assert isinstance(step.value, kind), f"{kind} is due, {type(step.value)} is given"
                yield step.value
            elif isinstance(step, Sleep):
                self._pause(step.seconds)
            else:
                try:
                    answer = self._ask(step)
                except StokerError as fault:
                    step = follow.thrown(todo, fault)
                    continue
            step = follow.sent(todo, answer)
