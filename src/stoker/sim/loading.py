"""Loading experiment: pods arrive one by one at a cluster, stay for ever, and fill it until nothing more fits.

Rules: L1  a fault is one error with file, line, field and a hint; nothing of faulty lists is run
       L2  the list's pods arrive once each in an order that the seed draws, and after them pods drawn with replacement,
           until those that arrived ask for `load` times the GPUs of the cluster; so arrivals depend on the seed and on
           nothing else
       L3  a pod is placed by the look that follows its arrival, or it is dropped: nothing waits, so that nothing is
           reserved either
       L4  a pod that no node could hold, were it empty, is dropped like others, and counted by itself. One that wants
           more GPUs than any node has is a fault of the list
       L5  what is allocated at x percent is what placed pods had asked for, as a part of the cluster's GPUs, when those
           that arrived so far had asked for x percent of them
Units: thousandths of a GPU and of a CPU, MiB.
Source: Weng et al., Beware of Fragmentation, USENIX ATC 2023, whose lists `openb` are in `benchmarks/traces`.
"""

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from stoker.brain.domain.array import JobRef
from stoker.brain.domain.demand import Demand
from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.gpu import Gpu
from stoker.brain.domain.ids import CONTROL, Epoch, GpuUuid, JobId, NodeName, Principal
from stoker.brain.domain.job import JobSpec
from stoker.brain.domain.node import Inventory
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.quota import Pools
from stoker.brain.domain.units import Instant
from stoker.brain.domain.where import ANYWHERE, Where, make_where
from stoker.brain.state import commands
from stoker.brain.state.cluster import ClusterState
from stoker.sim.cluster_run import BEGINS, GPU_MEMORY_MB, PRIORITY
from stoker.sim.draws import uniform
from stoker.sim.outcome import Progress
from stoker.sim.trace import COUNT_MAX, Record, records, trace_fault
from stoker.sim.virtual_cluster import VirtualCluster

GPUS_MAX: Final = 200_000
"""GPUs of all nodes: each takes half a kilobyte or more."""
GPUS_PER_NODE_MAX: Final = 999
_MILLI: Final = 1_000
_NODE_COLUMNS: Final = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
_POD_COLUMNS: Final = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
_MODEL_LABEL: Final = "model"
_PERSON: Final = Principal("user:list")
_MARK_STEP: Final = 10
"""Percent of the cluster's GPUs between two figures."""


class ListedNode(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a list of nodes."""

    name: str
    line: int
    cpu_milli: int
    memory_mb: int
    gpus: int
    model: str


class ListedPod(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a list of pods: what it asks for, and the GPU models that it allows (empty = any)."""

    name: str
    line: int
    cpu_milli: int
    memory_mb: int
    gpus: int
    gpu_milli: int
    """Of each of its GPUs; below 1,000 only of one."""
    where: Where

    @property
    def total_milli(self) -> int:
        return self.gpus * self.gpu_milli


class Lists(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes and pods, and the files that they are from."""

    nodes_path: str
    nodes: tuple[ListedNode, ...]
    pods_path: str
    pods: tuple[ListedPod, ...]

    @property
    def gpus(self) -> int:
        return sum(node.gpus for node in self.nodes)


class LoadingSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one experiment."""

    policy: str = "engine"
    nodes: int
    gpus: int
    pods: int
    """Those that arrived."""
    placed: int
    dropped: int
    never_fit: int
    """Of the dropped ones those that an empty cluster wouldn't hold either (L4)."""
    allocated_percent: dict[str, float]
    """GPUs that are allocated, in percent of all, by the demand that had arrived, in percent of all (L5)."""
    decisions_per_s: int
    """Pods by second of processor time, records of the state included."""


def read_lists(nodes: Path, pods: Path) -> Lists:
    """Read a list of nodes and one of pods in the form of openb, plain or gzip.

    Raises: StokerError `bad_trace` (L1).
    """
    listed = tuple(_nodes(nodes))
    gpus = sum(node.gpus for node in listed)
    if not gpus:
        raise trace_fault(str(nodes), 0, "gpu", "none of its nodes has a GPU", "name a list of nodes with GPUs")
    if gpus > GPUS_MAX:
        message = f"its nodes have {gpus} GPUs, and up to {GPUS_MAX} in all are simulated"
        raise trace_fault(str(nodes), 0, "gpu", message, "name a shorter list")
    most = max(node.gpus for node in listed)
    wanted = tuple(_pods(pods, most))
    if not any(pod.total_milli for pod in wanted):
        message, hint = "none of its pods asks for a GPU, so that the load never rises", "name a list of pods with GPUs"
        raise trace_fault(str(pods), 0, "num_gpu", message, hint)
    return Lists(nodes_path=str(nodes), nodes=listed, pods_path=str(pods), pods=wanted)


def _nodes(path: Path) -> Iterator[ListedNode]:
    seen: dict[str, int] = {}
    for record in records(path, _NODE_COLUMNS):
        node = ListedNode(
            name=_named(record, "sn", seen),
            line=record.line,
            cpu_milli=record.count("cpu_milli", 1),
            memory_mb=record.count("memory_mib", 1),
            gpus=record.count("gpu"),
            model=record.text("model"),
        )
        if node.gpus > GPUS_PER_NODE_MAX:
            record.fail("gpu", f"{node.gpus} GPUs, and a node has up to {GPUS_PER_NODE_MAX}", "correct the line")
        if node.gpus and not node.model:
            record.fail("model", "it is empty, and the node has GPUs", "name the model of the GPUs")
        yield node


def _pods(path: Path, gpus_max: int) -> Iterator[ListedPod]:
    seen: dict[str, int] = {}
    for record in records(path, _POD_COLUMNS):
        name = _named(record, "name", seen)
        gpus = record.count("num_gpu")
        if gpus > gpus_max:
            message = f"{name} wants {gpus} GPUs, and no node has more than {gpus_max}"
            record.fail("num_gpu", message, "name larger nodes with --nodes, or take the pod out of the file")
        milli = record.count("gpu_milli")
        if gpus and not 1 <= milli <= _MILLI:
            record.fail("gpu_milli", f"{milli} isn't from 1 to {_MILLI}", "1000 is a whole GPU: correct the line")
        if gpus > 1 and milli < _MILLI:
            message = f"{milli} of each of {gpus} GPUs: only of one GPU there are shares"
            record.fail("gpu_milli", message, "write 1000, or num_gpu 1")
        yield ListedPod(
            name=name,
            line=record.line,
            cpu_milli=max(1, record.count("cpu_milli")),
            memory_mb=record.count("memory_mib"),
            gpus=gpus,
            gpu_milli=milli if gpus else 0,
            where=_where(record) if gpus else ANYWHERE,
        )


def _named(record: Record, field: str, seen: dict[str, int]) -> str:
    name = record.text(field) or record.fail(field, "it is empty", "give each line a name of its own")
    if name in seen:
        record.fail(field, f"{name!r} is already on line {seen[name]}", "give each line a name of its own")
    seen[name] = record.line
    return name


def _where(record: Record) -> Where:
    models = [model.strip() for model in record.text("gpu_spec").split("|")]
    if models == [""]:
        return ANYWHERE
    try:
        return make_where(f"{_MODEL_LABEL} in ({','.join(models)})")
    except StokerError as fault:
        message = f"{record.text('gpu_spec')!r} isn't a list of GPU models ({fault.refusal.message})"
        record.fail("gpu_spec", message, "write models as V100M16|V100M32, or leave it empty")


class _Mark(NamedTuple):
    """A demand at which the allocation is noted."""

    percent: int
    milli: int


def load_cluster(
    lists: Lists, policy: Policy, load: float, seed: int, cpu_s: Callable[[], float], progress: Progress
) -> LoadingSummary:
    """Let pods arrive until they ask for `load` times the GPUs, and return what was placed.

    `cpu_s` reads the processor time of this process. Raises: StokerError `bad_trace`.
    """
    return _Loading(lists, policy, load, seed).run(cpu_s, progress)


class _Loading:
    """A cluster that fills, and what became of each pod."""

    def __init__(self, lists: Lists, policy: Policy, load: float, seed: int) -> None:
        self._lists = lists
        self._load_percent = round(100 * load)
        self._arrivals = tuple(arrivals(lists, round(load * lists.gpus * _MILLI), seed))
        self._cluster = cluster = VirtualCluster(ClusterState(), BEGINS, seed, lambda *_: None, lambda *_: None)
        self._number = self._placed = self._never_fit = self._arrived_milli = self._allocated_milli = 0
        self._waits: tuple[JobId, ListedPod] | None = None
        self._allocated: dict[str, float] = {}
        policy = replace(
            policy,
            cpus_per_task_max=COUNT_MAX,  # a CPU counts as 1,000 here
            memory_mb_max=max(policy.memory_mb_max, COUNT_MAX),
            gpu_sharers_max=_MILLI,  # the published runs bound shares by their sum only
            reservations_max=0,  # nothing waits
            pending_jobs_max=max(policy.pending_jobs_max, len(self._arrivals)),
        )
        pools = Pools(online=0, batch=0)
        cluster.give(commands.BeginEpoch(by=CONTROL, epoch=Epoch(1), policy=policy, pools=pools))
        for node in lists.nodes:
            try:
                cluster.join(NodeName(node.name), _inventory(node))
            except StokerError as fault:
                raise _told(lists.nodes_path, node.line, fault) from fault
        self._marks = [
            _Mark(percent, percent * lists.gpus * _MILLI // 100)
            for percent in sorted({*range(_MARK_STEP, self._load_percent, _MARK_STEP), self._load_percent})
        ]

    def run(self, cpu_s: Callable[[], float], progress: Progress) -> LoadingSummary:
        begun = cpu_s()
        self._progress = progress
        self._expect_next()
        self._cluster.run(lambda: self._number == len(self._arrivals))
        self._judge()
        used_s = max(cpu_s() - begun, 1e-9)
        self._allocated.setdefault(str(self._load_percent), self._percent())
        return LoadingSummary(
            nodes=len(self._lists.nodes),
            gpus=self._lists.gpus,
            pods=len(self._arrivals),
            placed=self._placed,
            dropped=len(self._arrivals) - self._placed,
            never_fit=self._never_fit,
            allocated_percent=self._allocated,
            decisions_per_s=round(len(self._arrivals) / used_s),
        )

    def _arrive(self) -> None:
        self._judge()
        pod = self._arrivals[self._number]
        self._number += 1
        if self._number < len(self._arrivals):
            self._expect_next()
        self._progress(pod.total_milli)
        self._arrived_milli += pod.total_milli
        job = self._cluster.state.next_job_id
        try:
            self._cluster.give(commands.Submit(by=_PERSON, specs=(_spec(pod),)))
        except StokerError as fault:
            if fault.refusal.code != "demand_unsatisfiable":
                raise _told(self._lists.pods_path, pod.line, fault) from fault
            self._never_fit += 1
        else:
            self._waits = job, pod

    def _expect_next(self) -> None:
        """Let the next pod arrive a millisecond from now, after the look at the one before."""
        self._cluster.at(Instant(self._cluster.now + 1), self._arrive)

    def _judge(self) -> None:
        """See what the look made of the pod that arrived last, and drop it if it was left (L3)."""
        if self._waits is not None:
            job, pod = self._waits
            self._waits = None
            if self._cluster.state.jobs[job].live_attempt is None:
                self._cluster.give(commands.Cancel(by=CONTROL, target=JobRef(job)))
            else:
                self._placed += 1
                self._allocated_milli += pod.total_milli
        while self._marks and self._arrived_milli >= self._marks[0].milli:
            self._allocated[str(self._marks.pop(0).percent)] = self._percent()

    def _percent(self) -> float:
        return round(100 * self._allocated_milli / (self._lists.gpus * _MILLI), 2)


def arrivals(lists: Lists, wanted_milli: int, seed: int) -> Iterator[ListedPod]:
    """Yield pods in the order in which they arrive, until they ask for `wanted_milli` together (L2)."""
    pods, arrived = lists.pods, 0
    shuffled = sorted(range(len(pods)), key=lambda at: (uniform(seed, "order", at), at))
    for place in count():
        at = shuffled[place] if place < len(pods) else int(uniform(seed, "again", place) * len(pods))
        yield pods[at]
        arrived += pods[at].total_milli
        if arrived >= wanted_milli:
            return


def _spec(pod: ListedPod) -> JobSpec:
    return JobSpec(
        name=pod.name,
        demand=Demand(
            gpu_count=pod.gpus,
            gpu_share=pod.gpu_milli if pod.gpus else _MILLI,
            cpus=pod.cpu_milli,
            memory_mb=pod.memory_mb,
        ),
        command=("true",),
        priority=PRIORITY,
        time_limit_ms=0,
        where=pod.where,
    )


def _inventory(node: ListedNode) -> Inventory:
    return Inventory(
        boot_id="simulated",
        address=node.name,
        gpus=tuple(
            Gpu(uuid=GpuUuid(f"{node.name}-{at}"), index=at, model=node.model, memory_mb=GPU_MEMORY_MB)
            for at in range(node.gpus)
        ),
        cpus=node.cpu_milli,
        memory_mb=node.memory_mb,
        labels={_MODEL_LABEL: node.model} if node.model else {},
        simulated=True,
    )


def _told(path: str, line: int, fault: StokerError) -> StokerError:
    """Return a refusal as the fault of the line that it is about (L1)."""
    refusal = fault.refusal
    return trace_fault(
        path, line, str(refusal.facts.get("field", "")), f"{refusal.message} ({refusal.code})", refusal.hint
    )
