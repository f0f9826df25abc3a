"""How does a Python program, such as our own command line, ask a control plane?

    client = Client("http://127.0.0.1:8080")
    job = client.submit(JobBody(command=["python", "train.py"], gpu_count=4))
    job = client.wait(job.id, pause=time.sleep)

Every method raises StokerError with the server's code, message and hint, or `no_server` when none answers.
"""

from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Final, NamedTuple, Self, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from stoker.brain.domain.lifecycle import FINAL
from stoker.wire.rest.cluster import ClusterView, HealthView
from stoker.wire.rest.gpu import GpuListView
from stoker.wire.rest.job import (
    LIST_MAX,
    JobListQuery,
    JobListView,
    JobsSubmittedView,
    JobsToldView,
    JobView,
    WhyView,
)
from stoker.wire.rest.log import ENDED_HEADER, OFFSET_HEADER, SIZE_HEADER, LogQuery
from stoker.wire.rest.node import DrainBody, LabelsBody, NodeListView, NodeView, TaintsBody
from stoker.wire.rest.partition import NewPartitionBody, PartitionBody, PartitionListView, PartitionView
from stoker.wire.rest.submit import JobBody, JobsBody
from stoker.wire.rest.task import TaskListQuery, TaskListView, TaskView
from stoker.wire.transport import DEFAULT_SERVER, Reply, Transport, bad_answer
from stoker.wire.versions import API_PREFIX

__all__ = ["DEFAULT_SERVER", "Client", "JobBody", "JobListQuery", "LogPart", "LogQuery", "TaskListQuery"]

IDEMPOTENCY_HEADER: Final = "Idempotency-Key"
POLL_FIRST_S: Final = 0.05
POLL_MAX_S: Final = 2.0

View = TypeVar("View", bound=msgspec.Struct)


class LogPart(NamedTuple):
    """Bytes of a task's output. The next part begins at `end`."""

    data: bytes
    offset: int
    size: int
    ended: bool
    """No more will be written."""

    @property
    def end(self) -> int:
        return self.offset + len(self.data)


class Client:
    """One user's way to one cluster. Not for use by several threads at once."""

    def __init__(self, servers: str = DEFAULT_SERVER) -> None:
        """`servers` has commas between several. Raises: StokerError `bad_server`."""
        self._transport = Transport(servers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._transport.close()

    @property
    def server(self) -> str:
        """The address that is asked first."""
        return self._transport.server

    def submit(self, job: JobBody, *, key: str = "") -> JobView:
        """With a `key` of the caller's own the same request may be sent again: it is answered with the same job."""
        headers = {IDEMPOTENCY_HEADER: key} if key else {}
        return _decoded(JobView, self._transport.ask("POST", f"{API_PREFIX}/jobs", msgspec.json.encode(job), headers))

    def submit_many(self, jobs: Sequence[JobBody]) -> list[JobView]:
        """All or none."""
        return self._ask(JobsSubmittedView, "POST", "/jobs", JobsBody(jobs=list(jobs))).jobs

    def job(self, job_id: str) -> JobView:
        return self._ask(JobView, "GET", f"/jobs/{quote(job_id, safe='')}")

    def jobs(self, query: JobListQuery | None = None) -> JobListView:
        """One page, newest first."""
        return self._ask(JobListView, "GET", "/jobs" + _query(query))

    def each_job(self, query: JobListQuery | None = None) -> Iterator[JobView]:
        """Every job that matches, newest first, page by page; `query.limit` and `query.after` are ours to set."""
        asked = msgspec.structs.replace(query or JobListQuery(), limit=LIST_MAX, after="")
        while True:
            page = self.jobs(asked)
            yield from page.jobs
            if page.next is None:
                return
            asked = msgspec.structs.replace(asked, after=page.next)

    def cancel(self, job_id: str) -> JobView:
        return self._ask(JobView, "DELETE", f"/jobs/{quote(job_id, safe='')}")

    def cancel_all(self, jobs: str) -> JobsToldView:
        """`jobs` is a job, an array, a member of one, or several: `7_[0-4,9]`."""
        return self._ask_jobs("DELETE", f"/jobs/{quote(jobs, safe='')}")

    def hold(self, jobs: str) -> JobsToldView:
        """Keep what waits from starting. `jobs` as in `cancel_all`."""
        return self._ask_jobs("POST", f"/jobs/{quote(jobs, safe='')}/hold")

    def release(self, jobs: str) -> JobsToldView:
        """Let what is held start."""
        return self._ask_jobs("POST", f"/jobs/{quote(jobs, safe='')}/release")

    def requeue(self, jobs: str) -> JobsToldView:
        """Run it once more: what is live is stopped first, what has ended waits again."""
        return self._ask_jobs("POST", f"/jobs/{quote(jobs, safe='')}/requeue")

    def signal(self, jobs: str, signal: str) -> JobsToldView:
        """Send a signal, `USR1` or `10`, to the processes of what runs."""
        return self._ask_jobs("POST", f"/jobs/{quote(jobs, safe='')}/signal", {"signal": signal})

    def why(self, job_id: str) -> WhyView:
        return self._ask(WhyView, "GET", f"/jobs/{quote(job_id, safe='')}/why")

    def logs(self, job_id: str, query: LogQuery | None = None) -> LogPart:
        """One part of a task's output."""
        reply = self._transport.ask("GET", f"{API_PREFIX}/jobs/{quote(job_id, safe='')}/logs{_query(query)}")
        try:
            offset, size = (int(reply.headers[name.lower()]) for name in (OFFSET_HEADER, SIZE_HEADER))
            ended = reply.headers[ENDED_HEADER.lower()] == "true"
        except (KeyError, ValueError) as fault:
            raise bad_answer(reply) from fault
        return LogPart(reply.body, offset, size, ended)

    def wait(self, job_id: str, pause: Callable[[float], object], *, at_most_s: float = float("inf")) -> JobView:
        """The job once it is final, or as it is when `at_most_s` of pauses are over. `pause` blocks for seconds."""
        waited_s, poll_s = 0.0, POLL_FIRST_S
        while True:
            job = self.job(job_id)
            if job.state in FINAL or waited_s >= at_most_s:
                return job
            pause(poll_s)
            waited_s, poll_s = waited_s + poll_s, min(poll_s * 1.5, POLL_MAX_S)

    def task(self, task_id: str) -> TaskView:
        """A job in the dgpu dialect."""
        return self._ask(TaskView, "GET", f"/tasks/{quote(task_id, safe='')}")

    def tasks(self, query: TaskListQuery | None = None) -> TaskListView:
        return self._ask(TaskListView, "GET", "/tasks" + _query(query))

    def nodes(self) -> list[NodeView]:
        return self._ask(NodeListView, "GET", "/nodes").nodes

    def node(self, name: str) -> NodeView:
        return self._ask(NodeView, "GET", f"/nodes/{quote(name, safe='')}")

    def drain(self, name: str, reason: str = "") -> NodeView:
        return self._ask(NodeView, "POST", f"/nodes/{quote(name, safe='')}/drain", DrainBody(reason=reason))

    def resume(self, name: str) -> NodeView:
        return self._ask(NodeView, "POST", f"/nodes/{quote(name, safe='')}/resume")

    def forget(self, name: str, *, force: bool = False) -> NodeView:
        return self._ask(NodeView, "DELETE", f"/nodes/{quote(name, safe='')}?force={str(force).lower()}")

    def label(self, name: str, labels: dict[str, str], remove: Sequence[str] = ()) -> NodeView:
        """Set labels on a node and take others off, by key."""
        body = LabelsBody(labels=labels, remove=list(remove))
        return self._ask(NodeView, "POST", f"/nodes/{quote(name, safe='')}/labels", body)

    def taint(self, name: str, taints: Sequence[str], remove: Sequence[str] = ()) -> NodeView:
        """Put taints on a node and take others off, by key."""
        body = TaintsBody(taints=list(taints), remove=list(remove))
        return self._ask(NodeView, "POST", f"/nodes/{quote(name, safe='')}/taints", body)

    def partitions(self) -> list[PartitionView]:
        return self._ask(PartitionListView, "GET", "/partitions").partitions

    def partition(self, name: str) -> PartitionView:
        return self._ask(PartitionView, "GET", f"/partitions/{quote(name, safe='')}")

    def create_partition(self, partition: NewPartitionBody) -> PartitionView:
        return self._ask(PartitionView, "POST", "/partitions", partition)

    def put_partition(self, name: str, partition: PartitionBody) -> PartitionView:
        """Replace it whole, or make it."""
        return self._ask(PartitionView, "PUT", f"/partitions/{quote(name, safe='')}", partition)

    def delete_partition(self, name: str) -> PartitionView:
        return self._ask(PartitionView, "DELETE", f"/partitions/{quote(name, safe='')}")

    def gpus(self) -> GpuListView:
        return self._ask(GpuListView, "GET", "/gpus")

    def status(self) -> ClusterView:
        return self._ask(ClusterView, "GET", "/cluster/status")

    def health(self) -> HealthView:
        return self._ask(HealthView, "GET", "/health")

    def _ask_jobs(self, method: str, path: str, body: dict[str, str] | None = None) -> JobsToldView:
        """The answer about several jobs; one about one has no count, for it would have been refused."""
        data = None if body is None else msgspec.json.encode(body)
        reply = self._transport.ask(method, API_PREFIX + path, data)
        if reply.body.startswith(b'{"jobs":'):
            return _decoded(JobsToldView, reply)
        return JobsToldView(jobs=[_decoded(JobView, reply)], total=1, changed=1)

    def _ask(self, shape: type[View], method: str, path: str, body: msgspec.Struct | None = None) -> View:
        data = None if body is None else msgspec.json.encode(body)
        return _decoded(shape, self._transport.ask(method, API_PREFIX + path, data))


def _query(query: msgspec.Struct | None) -> str:
    """Only what differs from the defaults travels, so that a newer client can ask an older server."""
    if query is None:
        return ""
    fields = msgspec.structs.fields(query)
    given = {field.encode_name: getattr(query, field.name) for field in fields}
    defaults = {field.encode_name: field.default for field in fields}
    changed = {name: value for name, value in given.items() if value != defaults[name]}
    return f"?{urlencode(changed)}" if changed else ""


def _decoded(shape: type[View], reply: Reply) -> View:
    try:
        return msgspec.json.decode(reply.body, type=shape)
    except msgspec.MsgspecError as fault:
        raise bad_answer(reply) from fault
