"""Methods of both clients, each declared once as the steps that it takes.

`Client` blocks while it runs the steps of a method, and `AsyncClient` awaits: a class that inherits ClientMethods gets
a method of its own for each of them, with the same name, parameters and documentation. A type checker reads the same
from `Declared.__get__`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from msgspec import structs

from stoker.wire import endpoints, rest
from stoker.wire.client import calls, follow
from stoker.wire.client.calls import LogPart, Steps, ask

if TYPE_CHECKING:
    from stoker.wire.client.async_transport import AsyncTransport
    from stoker.wire.client.clients import AsyncClient, Client
    from stoker.wire.client.transport import Transport
    from stoker.wire.rest.audit import AuditListQuery, AuditListView, JobEventsQuery, JobEventsView
    from stoker.wire.rest.cluster import ClusterView, HealthView
    from stoker.wire.rest.gpu_figures import NodeHourView
    from stoker.wire.rest.job import (
        JobListQuery,
        JobListView,
        JobsToldView,
        JobsView,
        JobView,
    )
    from stoker.wire.rest.log import LogQuery
    from stoker.wire.rest.node import GpuListView, NodeView
    from stoker.wire.rest.partition import NewPartitionBody, PartitionBody, PartitionView
    from stoker.wire.rest.quota import QuotaBody, QuotaView
    from stoker.wire.rest.secret import SecretBody, SecretListQuery, SecretListView, SecretQuery, SecretView
    from stoker.wire.rest.submit import JobBody, JobPatch, ScriptView
    from stoker.wire.rest.task import TaskListQuery, TaskListView, TaskView
    from stoker.wire.rest.tenant import NewTenantBody, TenantBody, TenantView
    from stoker.wire.rest.token import CallerView, NewTokenBody, NewTokenView, TokenListView, TokenView
    from stoker.wire.rest.usage import UsageReportQuery, UsageView
    from stoker.wire.rest.why import PreviewView, WhyView

Given = ParamSpec("Given")
Answer = TypeVar("Answer")


class Declared(Generic[Given, Answer]):
    """A method of both clients, by the steps that it takes."""

    def __init__(self, steps: Callable[Concatenate[Any, Given], Steps[Answer]]) -> None:
        self._steps = steps
        # What a caller gets is the answer.
        steps.__annotations__["return"] = steps.__annotations__["return"].removeprefix("Steps[").removesuffix("]")

    def method(self, run: Callable[[Any, Steps[Answer]], object]) -> Callable[..., object]:
        """Return the method of a client that runs steps by `run`."""
        steps = self._steps

        @wraps(steps)
        def method(client: object, *given: Given.args, **named: Given.kwargs) -> object:
            return run(client, steps(client, *given, **named))

        return method

    @overload
    def __get__(self, client: None, kind: type) -> Self: ...
    @overload
    def __get__(self, client: Client, kind: type) -> Callable[Given, Answer]: ...
    @overload
    def __get__(self, client: AsyncClient, kind: type) -> Callable[Given, Coroutine[Any, Any, Answer]]: ...
    def __get__(self, client: object, kind: type) -> object:
        return self


class ClientMethods:
    """Methods of both clients."""

    _transport: Transport | AsyncTransport

    def __init_subclass__(cls) -> None:
        run = vars(cls).get("_run")
        for name, each in vars(ClientMethods).items():
            if isinstance(each, Declared) and run is not None:
                setattr(cls, name, each.method(run))

    @property
    def root(self) -> bytes:
        """Certificate (DER) of the authority that the token names, once a server has presented it; empty = none."""
        return self._transport.root

    @property
    def server(self) -> str:
        """The address that is asked first: that of the last active one that answered."""
        return self._transport.server

    @property
    def patience_s(self) -> float:
        """For how long a request is repeated that may be, in seconds. Counts from the next one when it is set."""
        return self._transport.patience_s

    @patience_s.setter
    def patience_s(self, seconds: float) -> None:
        self._transport.patience_s = seconds

    @Declared
    def submit(self, job: JobBody, *, key: str = "") -> Steps[JobView]:
        """Submit one job, once, however often its answer gets lost on the way.

        Each call draws an idempotency key. With a `key` of the caller's own that holds beyond this call and this
        process too.

        Raises: StokerError with what is wrong with the job (`bad_field`, `demand_unsatisfiable` and the like);
        `queue_full`; `idempotency_key_reused` where the key came with another body; `job_forgotten` where it was
        submitted under this key so long ago that its record is gone.
        """
        return calls.submit(job, key)

    @Declared
    def preview(self, job: JobBody) -> Steps[PreviewView]:
        """Say what would become of a job if it were submitted now: where it would start, or why it would wait."""
        return ask(endpoints.PREVIEW, body=job)

    @Declared
    def submit_many(self, jobs: Sequence[JobBody], *, key: str = "") -> Steps[list[JobView]]:
        """Submit all of these jobs or none, in one request. They may wait for each other: `after="ok:#0"`.

        Raises: StokerError as `submit`; the message names the job at fault (`jobs[3]`), the fact `index` too.
        """
        return calls.submit_many(jobs, key)

    @Declared
    def submit_array(self, job: JobBody, members: str, *, key: str = "") -> Steps[JobView]:
        """Submit an array: one job with many members, `0-9`, `1,3,7` or `0-98:2`, and `%3` for at most 3 at once.

        Raises: StokerError as `submit`, and `bad_array` or `array_too_large`.
        """
        return calls.submit(structs.replace(job, array=members), key)

    @Declared
    def job(self, job_id: str) -> Steps[JobView]:
        """Show a job, an array, or one member (`7_3`).

        Raises: StokerError `job_unknown`, `member_unknown` or `job_forgotten`.
        """
        return calls.show_job(job_id)

    @Declared
    def members(self, jobs: str) -> Steps[JobsView]:
        """Show several members of an array, `7_[0-4,9]`: at most 1000 of them; `total` counts all."""
        return calls.show_members(jobs)

    @Declared
    def jobs(self, query: JobListQuery | None = None) -> Steps[JobListView]:
        """List one page of jobs, newest first. Raises: StokerError `unknown_state` or `bad_parameter`."""
        return ask(endpoints.JOBS, query=query)

    @Declared
    def cancel(self, jobs: str) -> Steps[JobsToldView]:
        """End a job, an array, one member or several (`7_[0-4,9]`).

        A job is final once its processes are gone; until then it is `stopping`.

        Raises: StokerError `job_unknown`, or `job_ended` where nothing is left to cancel.
        """
        return calls.tell_jobs(endpoints.CANCEL, jobs)

    @Declared
    def hold(self, jobs: str) -> Steps[JobsToldView]:
        """Keep what waits from starting, until it is released.

        Raises: StokerError `job_live` for what has started, `job_ended` for what is over.
        """
        return calls.tell_jobs(endpoints.HOLD, jobs)

    @Declared
    def release(self, jobs: str) -> Steps[JobsToldView]:
        """Let what is held wait for its turn again. Raises: StokerError `not_held`."""
        return calls.tell_jobs(endpoints.RELEASE, jobs)

    @Declared
    def requeue(self, jobs: str, *, hold: bool = False) -> Steps[JobsToldView]:
        """Run a job once more: what is live is stopped first, what has ended waits again; with `hold` it is held.

        Of a whole array the members that failed. Never repeated by itself, for it would stop what it started.

        Raises: StokerError `job_waits`, `nothing_failed`, or `no_answer` where it may have been carried out.
        """
        # Without a body where none is needed: an older control plane takes none.
        return calls.tell_jobs(endpoints.REQUEUE, jobs, rest.submit.RequeueBody(hold=True) if hold else None)

    @Declared
    def signal(self, jobs: str, signal: str | int) -> Steps[JobsToldView]:
        """Send a signal, `USR1` or 10, to the processes of what runs. Never repeated by itself.

        Raises: StokerError `bad_signal`, `not_running`, `node_unreachable`, or `no_answer` where it may have been sent.
        """
        return calls.tell_jobs(endpoints.SIGNAL, jobs, rest.submit.SignalBody(signal=signal))

    @Declared
    def update(self, jobs: str, changes: JobPatch) -> Steps[JobsToldView]:
        """Change a job, an array or members of one: what is left out stays as it is.

        Raises: StokerError `job_ended`, `job_live`, or as a submit is refused.
        """
        return calls.tell_jobs(endpoints.UPDATE, jobs, changes)

    @Declared
    def why(self, job_id: str) -> Steps[WhyView]:
        """Say what keeps a job from running, and where in the queue it is, or what ended it."""
        return ask(endpoints.WHY, job_id)

    @Declared
    def script(self, job_id: str) -> Steps[ScriptView]:
        """Show the script that was submitted with a job, as it was then; it is empty where there was none."""
        return ask(endpoints.SCRIPT, job_id)

    @Declared
    def job_events(self, job_id: str, query: JobEventsQuery | None = None) -> Steps[JobEventsView]:
        """Tell what happened to a job, newest last, and who told it what."""
        return ask(endpoints.JOB_EVENTS, job_id, query=query)

    @Declared
    def wait(self, job_id: str, *, at_most_s: float = float("inf")) -> Steps[JobView]:
        """The job once it is final, or as it is when `at_most_s` of pauses are over."""
        return follow.wait(job_id, at_most_s)

    @Declared
    def wait_all(self, job_ids: Sequence[str]) -> Steps[list[JobView]]:
        """All of these jobs, in the order given, once the last is final."""
        return follow.wait_all(job_ids)

    @Declared
    def logs(self, job_id: str, query: LogQuery | None = None) -> Steps[LogPart]:
        """Read one part of a task's output: from a place, or the last lines.

        Raises: StokerError `not_started`, `attempt_unknown`, `node_unreachable` or `log_unavailable`.
        """
        return calls.read_log(job_id, query)

    @Declared
    def task(self, task_id: str) -> Steps[TaskView]:
        """Show a job in the dgpu dialect."""
        return ask(endpoints.TASK, task_id)

    @Declared
    def tasks(self, query: TaskListQuery | None = None) -> Steps[TaskListView]:
        """List jobs in the dgpu dialect, newest first."""
        return ask(endpoints.TASKS, query=query)

    @Declared
    def nodes(self) -> Steps[list[NodeView]]:
        """List every node ever registered, by name."""
        return (yield from ask(endpoints.NODES)).nodes

    @Declared
    def node(self, name: str) -> Steps[NodeView]:
        """Show a node. Raises: StokerError `node_unknown`."""
        return ask(endpoints.NODE, name)

    @Declared
    def node_figures(self, name: str) -> Steps[NodeHourView]:
        """Show the last hour of a node's GPUs. Raises: StokerError `node_unknown`."""
        return ask(endpoints.NODE_FIGURES, name)

    @Declared
    def drain(self, name: str, reason: str = "") -> Steps[NodeView]:
        """Give a node no new work; what runs there goes on."""
        return ask(endpoints.DRAIN, name, body=rest.node.DrainBody(reason=reason))

    @Declared
    def resume(self, name: str) -> Steps[NodeView]:
        """End a drain, or the pause of a node on which starts failed."""
        return ask(endpoints.RESUME, name)

    @Declared
    def forget(self, name: str, *, force: bool = False) -> Steps[NodeView]:
        """Forget a node that won't come back; with `force`, settle what it held without proof that it is gone.

        Raises: StokerError `node_in_use`. Never repeated by itself.
        """
        return ask(endpoints.FORGET, name, query=rest.node.ForgetQuery(force=force))

    @Declared
    def label(self, name: str, labels: Mapping[str, str], remove: Sequence[str] = ()) -> Steps[NodeView]:
        """Set labels on a node and take others off, by key. Raises: StokerError `bad_label` or `too_many_labels`."""
        return ask(endpoints.LABEL, name, body=rest.node.LabelsBody(labels=dict(labels), remove=list(remove)))

    @Declared
    def taint(self, name: str, taints: Sequence[str], remove: Sequence[str] = ()) -> Steps[NodeView]:
        """Put taints on a node and take others off, by key. Raises: StokerError `bad_taint` or `too_many_labels`."""
        return ask(endpoints.TAINT, name, body=rest.node.TaintsBody(taints=list(taints), remove=list(remove)))

    @Declared
    def partitions(self) -> Steps[list[PartitionView]]:
        """List every partition, by name."""
        return (yield from ask(endpoints.PARTITIONS)).partitions

    @Declared
    def partition(self, name: str) -> Steps[PartitionView]:
        """Show a partition. Raises: StokerError `partition_unknown`."""
        return ask(endpoints.PARTITION, name)

    @Declared
    def create_partition(self, partition: NewPartitionBody) -> Steps[PartitionView]:
        """Make a partition. Raises: StokerError `partition_exists`. Never repeated by itself."""
        return ask(endpoints.CREATE_PARTITION, body=partition)

    @Declared
    def put_partition(self, name: str, partition: PartitionBody) -> Steps[PartitionView]:
        """Make a partition, or replace it whole."""
        return ask(endpoints.PUT_PARTITION, name, body=partition)

    @Declared
    def delete_partition(self, name: str) -> Steps[PartitionView]:
        """Take a partition away. Raises: StokerError `partition_in_use`. Never repeated by itself."""
        return ask(endpoints.DELETE_PARTITION, name)

    @Declared
    def tenants(self) -> Steps[list[TenantView]]:
        """List every tenant, each followed by those beneath it."""
        return (yield from ask(endpoints.TENANTS)).tenants

    @Declared
    def tenant(self, name: str) -> Steps[TenantView]:
        """Show a tenant, and what it uses now. Raises: StokerError `tenant_unknown`."""
        return ask(endpoints.TENANT, name)

    @Declared
    def create_tenant(self, tenant: NewTenantBody) -> Steps[TenantView]:
        """Make a tenant. Raises: StokerError `tenant_exists`. Never repeated by itself."""
        return ask(endpoints.CREATE_TENANT, body=tenant)

    @Declared
    def change_tenant(self, name: str, change: TenantBody) -> Steps[TenantView]:
        """Change what is given, and leave the rest; None takes a limit off."""
        return ask(endpoints.CHANGE_TENANT, name, body=change)

    @Declared
    def delete_tenant(self, name: str) -> Steps[TenantView]:
        """Take a tenant away. Raises: StokerError `tenant_in_use`. Never repeated by itself."""
        return ask(endpoints.DELETE_TENANT, name)

    @Declared
    def quota(self) -> Steps[QuotaView]:
        """Show how online and batch jobs share the GPUs."""
        return ask(endpoints.QUOTA)

    @Declared
    def set_quota(self, change: QuotaBody) -> Steps[QuotaView]:
        """Share the GPUs anew. Raises: StokerError `bad_share` or `share_below_use`."""
        return ask(endpoints.SET_QUOTA, body=change)

    @Declared
    def create_token(self, token: NewTokenBody) -> Steps[NewTokenView]:
        """Make a token; its text is in this answer only. Raises: StokerError `bad_token`. Never repeated by itself."""
        return ask(endpoints.CREATE_TOKEN, body=token)

    @Declared
    def tokens(self) -> Steps[TokenListView]:
        """List every token that holds, without its text."""
        return ask(endpoints.TOKENS)

    @Declared
    def whoami(self) -> Steps[CallerView]:
        """Show who asks: the principal, and what the token allows."""
        return ask(endpoints.WHOAMI)

    @Declared
    def revoke_token(self, token_id: str) -> Steps[TokenView]:
        """End a token at once, also on open streams. Raises: StokerError `token_not_found`."""
        return ask(endpoints.REVOKE_TOKEN, token_id)

    @Declared
    def secrets(self, query: SecretListQuery | None = None) -> Steps[SecretListView]:
        """List the secrets that one may use or administer, without their values."""
        return ask(endpoints.SECRETS, query=query)

    @Declared
    def set_secret(self, name: str, secret: SecretBody) -> Steps[SecretView]:
        """Set a secret, or give it another value. Raises: StokerError `bad_secret` or `secret_key_unusable`."""
        return ask(endpoints.SET_SECRET, name, body=secret)

    @Declared
    def delete_secret(self, name: str, query: SecretQuery | None = None) -> Steps[SecretView]:
        """Take a secret away. Raises: StokerError `secret_unknown`."""
        return ask(endpoints.DELETE_SECRET, name, query=query)

    @Declared
    def gpus(self) -> Steps[GpuListView]:
        """List the GPUs of every node, and who holds them."""
        return ask(endpoints.GPUS)

    @Declared
    def usage(self, query: UsageReportQuery | None = None) -> Steps[UsageView]:
        """Sum up what was used, by tenant, user, job or node; the last seven days unless the query says otherwise."""
        return ask(endpoints.USAGE, query=query)

    @Declared
    def audit(self, query: AuditListQuery | None = None) -> Steps[AuditListView]:
        """List what people told the cluster, newest first. Raises: StokerError `not_allowed` but for admins."""
        return ask(endpoints.AUDIT, query=query)

    @Declared
    def status(self) -> Steps[ClusterView]:
        """Show the cluster in numbers."""
        return ask(endpoints.STATUS)

    @Declared
    def health(self) -> Steps[HealthView]:
        """Show who serves, in which version."""
        return ask(endpoints.HEALTH)
