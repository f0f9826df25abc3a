"""What does a scenario file say, and what does the engine answer to it?

A file is prose with blocks in it. A block begins with one of the words below and a colon at the start of a line; its
lines are indented. Blocks act in the order in which they stand:

    cluster:    nodes that register (or change): `a: gpus=4 cpus=32`, `b: models=A100,V100 unreachable` (or `drained`,
                `forgotten`, `paused`, `returning`: it hasn't reported since a take-over),
                `c: gpus=8 labels=zone=a,disk=ssd taints=big:NoSchedule`, `d: gpus=4 quarantined=0,1` (two of its GPUs),
                `e: gpus=4 unread=3` (one that its driver hides)
    partitions: `long: where="zone=a" tolerate=big`
    jobs:       jobs that are submitted: `1: gpus=2 tasks=4`, `5-9: gpus=1`, `3: gpus=2 on=a[0,1]` (runs already),
                `7: gpus=1 share=250` (thousandths of a GPU),
                `4: gpus=1 where="zone in (a,b)" exclude=n1,n2 tolerate=big partition=long`, `10: array=0-9%3` (whose
                members have the ids 11 to 20), `5: waited_h=20 limit_h=2` (a day otherwise), `6: failed_on=a;b,c` (two
                attempts that failed to start, the last one on both `b` and `c`)
    tenants:    `ml: guaranteed=4 gpus=8`, `vision: parent=ml no_lend no_borrow jobs=3 nodes=a*,b1 weight=3 used=8` (its
                decayed usage: so many GPUs on average)
    pools:      shares of the classes: `online=0.7 batch=0.3 strict`; jobs take part with `class=online`, `tenant=ml`
    policy:     numbers that differ from the default: `budget=3 port_min=20000`
    end:        jobs that end, or are gone and wait again if they had to give way: `1 2 10_4`
    plan:       what the engine answers now; it is carried out before the next block

`pytest tests/scenarios --rewrite` writes the answers into the files, for review.
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from msgspec.structs import replace

from stoker.brain.domain.array import member_id, spans_of, spans_text
from stoker.brain.domain.demand import JobClass, Shape
from stoker.brain.domain.ids import JobId, PartitionName
from stoker.brain.domain.job import Job
from stoker.brain.domain.node import Node, NodePause, OrphanTask
from stoker.brain.domain.partition import Partition
from stoker.brain.domain.plan import Plan, Preempt
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.quota import WHOLE, Pools
from stoker.brain.domain.reason import describe
from stoker.brain.domain.tenant import Tenant
from stoker.brain.domain.units import MINUTE_MS, human_duration, later
from stoker.brain.domain.where import Where, make_where
from tests.builders import (
    A100,
    H100,
    NOW,
    V100,
    Cluster,
    cluster,
    job,
    node,
    refused_on,
    running_on,
    sharing_on,
    tenant,
    where,
)

FOLDER: Final = Path(__file__).parent
_MODELS: Final = {"A100": A100, "V100": V100, "H100": H100}
_BLOCK: Final = re.compile(r"(cluster|partitions|tenants|pools|jobs|policy|end|plan):(.*)")
_NODE_WORDS: Final = frozenset(
    {"gpus", "models", "gpu_memory_mb", "cpus", "memory_mb", "address", "unreachable", "drained", "forgotten"}
    | {"labels", "taints", "quarantined", "returning", "paused", "unread"}
)
_WHERE_WORDS: Final = frozenset({"where", "exclude", "tolerate"})
_JOB_NUMBERS: Final = frozenset(
    {"gpus", "tasks", "tasks_per_node", "gpu_memory_mb", "cpus", "memory_mb", "priority", "tries", "waited_h", "share"}
    | {"limit_h", "preemptions"}
)
_JOB_WORDS: Final = (
    _JOB_NUMBERS
    | _WHERE_WORDS
    | {"model", "on", "partition", "array", "tenant", "class", "failed_on", "preemptible", "no_requeue"}
)
_TENANT_NUMBERS: Final = frozenset({"guaranteed", "gpus", "gpu_memory_mb", "cpus", "memory_mb", "jobs", "weight"})
_TENANT_WORDS: Final = _TENANT_NUMBERS | {"parent", "no_lend", "no_borrow", "nodes", "used"}
_POOL_WORDS: Final = frozenset({"online", "batch", "strict"})
_POLICY_WORDS: Final = frozenset(
    {"budget", "port_min", "port_max", "aging_per_hour", "aging_max", "fair_share_points", "reservations_max"}
    | {"gpu_sharers_max", "preemptions_max"}
)
_WIDTH: Final = 110


class BadScenario(Exception):
    """The file and the line that can't be read, and why."""


class _Line(NamedTuple):
    number: int
    text: str


class _Story:
    """The cluster as it is after the blocks read so far."""

    def __init__(self) -> None:
        self.cluster = cluster()
        self.policy: dict[str, int] = {}
        self.budget = 1_024

    def tell(self, word: str, lines: list[_Line]) -> None:
        for line in lines:
            try:
                self._tell(word, line.text)
            except (ValueError, KeyError) as problem:
                raise BadScenario(f"line {line.number}: {line.text.strip()!r}: {problem}") from problem

    def _tell(self, word: str, text: str) -> None:
        if word == "cluster":
            self.cluster = self.cluster.plus(_read_node(text))
        elif word == "jobs":
            self.cluster = self.cluster.plus(*_read_jobs(text))
        elif word == "partitions":
            self.cluster = self.cluster.plus(_read_partition(text))
        elif word == "tenants":
            made, used = _read_tenant(text)
            self.cluster = self.cluster.plus(made)
            if used is not None:
                self.cluster = self.cluster.having_used(made.name, used)
        elif word == "pools":
            said = _settings(text, _POOL_WORDS)
            shares = {key: round(float(said[key]) * WHOLE) for key in ("online", "batch") if key in said}
            self.cluster = self.cluster.plus(Pools(**shares, strict="strict" in said))
        elif word == "end":
            self.cluster = self.cluster.without(*(_id_of(self.cluster, label) for label in text.split()))
        else:
            self.policy.update({key: int(value) for key, value in _settings(text, _POLICY_WORDS).items()})
            self.budget = self.policy.pop("budget", self.budget)

    def answer(self) -> list[str]:
        plan = self.cluster.plan(policy=Policy(**self.policy), budget=self.budget)
        lines = _answer(self.cluster, plan)
        self.cluster = self.cluster.after(plan)
        return lines


def answered(text: str) -> str:
    """The scenario with the engine's answers in its `plan` blocks. Equal to `text` when it says what it should."""
    story, out = _Story(), []
    for word, lines in _blocks(text):
        if word == "plan":
            out += ["plan:", *story.answer()]
        else:
            story.tell(word, [_Line(line.number, _BLOCK.sub(r"\2", line.text)) for line in lines if _tells(word, line)])
            out += [line.text for line in lines]
    return "\n".join(out) + "\n"


def _tells(word: str, line: _Line) -> bool:
    return bool(word) and bool(_BLOCK.sub(r"\2", line.text).strip())


def _blocks(text: str) -> Iterator[tuple[str, list[_Line]]]:
    """Each block with its lines, heading first; prose is a block without a word."""
    word, lines = "", list[_Line]()
    for number, line in enumerate(text.splitlines(), start=1):
        heading = _BLOCK.fullmatch(line)
        if heading or (word and not line.startswith(" ")):
            yield word, lines
            word, lines = heading.group(1) if heading else "", []
        lines.append(_Line(number, line))
    yield word, lines


def _settings(text: str, known: frozenset[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in shlex.split(text):
        key, _, value = part.partition("=")
        if key not in known:
            raise ValueError(f"unknown word {key!r}; known are {', '.join(sorted(known))}")
        found[key] = value
    return found


def _read_node(text: str) -> Node:
    name, _, rest = text.partition(":")
    said = _settings(rest, _NODE_WORDS)
    models = [_MODELS.get(model, model) for model in said.get("models", "").split(",") if model]
    made = node(
        name.strip(),
        gpus=int(said.get("gpus", 0)),
        models=models,
        gpu_memory_mb=int(said.get("gpu_memory_mb", 0)),
        cpus=int(said.get("cpus", 64)),
        memory_mb=int(said.get("memory_mb", 524_288)),
        address=said.get("address", ""),
        reachable="unreachable" not in said,
        drain="by hand" if "drained" in said else None,
        forgotten="forgotten" in said,
        returned="returning" not in said,
        pause=NodePause(until=later(NOW, MINUTE_MS), error="disk full") if "paused" in said else None,
        labels=dict(word.split("=") for word in _words(said, "labels")),
        taints=_words(said, "taints"),
    )
    hidden = _words(said, "unread")
    if hidden:
        gpus = made.inventory.gpus
        seen = replace(
            made.inventory, gpus=tuple(gpu for gpu in gpus if str(gpu.index) not in hidden), gpu_fault="lost"
        )
        made = replace(made, inventory=seen, unread=tuple(gpu for gpu in gpus if str(gpu.index) in hidden))
    kept = tuple(made.inventory.gpus[int(index)].uuid for index in _words(said, "quarantined"))
    return replace(
        made, strays=(OrphanTask(job=JobId(1), attempt=1, rank=0, gpus=kept, settled_at=NOW),) if kept else ()
    )


def _read_jobs(text: str) -> list[Job]:
    ids, _, rest = text.partition(":")
    first, _, last = ids.strip().partition("-")
    said = _settings(rest, _JOB_WORDS)
    numbers = {key: int(value) for key, value in said.items() if key in _JOB_NUMBERS}
    made = [
        job(
            id_,
            **numbers,  # type: ignore[arg-type]  # each word is the name of a field
            model=said.get("model", ""),
            where=_read_where(said),
            partition=said.get("partition", ""),
            array=said.get("array", ""),
            tenant=said.get("tenant", "default"),
            job_class=JobClass(said.get("class", "batch")),
            preemptible="preemptible" in said,
            requeue="no_requeue" not in said,
        )
        for id_ in range(int(first), int(last or first) + 1)
    ]
    failed = [tuple(names.split(",")) for names in said["failed_on"].split(";")] if "failed_on" in said else []
    made = [refused_on(one, *failed) for one in made]
    places = _read_places(said["on"]) if "on" in said else []
    if places and "share" in said:
        return [sharing_on(one, *[(name, indexes[0]) for name, indexes in places]) for one in made]
    return [running_on(one, *places) for one in made] if places else made


def _read_tenant(text: str) -> tuple[Tenant, int | None]:
    """The tenant and, where it is said, how many GPUs it has used."""
    name, _, rest = text.partition(":")
    said = _settings(rest, _TENANT_WORDS)
    numbers = {key: int(value) for key, value in said.items() if key in _TENANT_NUMBERS}
    made = tenant(
        name.strip(),
        parent=said.get("parent", ""),
        borrow="no_borrow" not in said,
        lend="no_lend" not in said,
        nodes=_words(said, "nodes"),
        **numbers,
    )
    return made, int(said["used"]) if "used" in said else None


def _read_where(said: dict[str, str]) -> Where:
    return make_where(said.get("where", ""), said.get("exclude", "").split(","), _words(said, "tolerate"))


def _words(said: dict[str, str], key: str) -> list[str]:
    return [word for word in said.get(key, "").split(",") if word]


def _read_partition(text: str) -> Partition:
    name, _, rest = text.partition(":")
    return Partition(name=PartitionName(name.strip()), where=_read_where(_settings(rest, _WHERE_WORDS)))


def _id_of(here: Cluster, label: str) -> int:
    """`7`, or `7_2` for a member."""
    array, _, index = label.partition("_")
    if not index:
        return int(label)
    id_ = JobId(int(array))
    return member_id(id_, here.job(id_).as_array[0], int(index))


def _read_places(text: str) -> list[tuple[str, list[int]]]:
    """`a[0,1];b[2,3]`: one place per rank."""
    places = []
    for part in text.split(";"):
        name, _, indexes = part.rstrip("]").partition("[")
        places.append((name, [int(index) for index in indexes.split(",") if index]))
    return places


def _answer(here: Cluster, plan: Plan) -> list[str]:
    after = here.after(plan)
    lines = []
    for place, ranks in zip(plan.actions, where(plan).values(), strict=True):
        told = " ".join(f"{name}[{','.join(str(index) for index in indexes)}]" for name, indexes in ranks)
        if isinstance(place, Preempt):
            going = ",".join(after.job(victim.job).label for victim in place.victims)
            lines.append(f"  {going} {place.cause.value} for {after.job(place.job).label}, which gets {told}")
            continue
        attempt = f" (attempt {place.attempt})" if place.attempt > 1 else ""
        meet = f" meet at {place.master_addr}:{place.master_port}" if place.master_port else ""
        lines.append(f"  {after.job(place.job).label}{attempt} -> {told}{meet}")
    lines += _waits(after, plan)
    labels = {each.id: each.label for each in after.waiting()}
    for each in plan.reservations:
        lines.append(f"  {labels[each.job]} starts within {human_duration(each.at - NOW)} on {','.join(each.nodes)}")
    if plan.more:
        lines.append("  the next pass goes on")
    return lines or ["  nothing to do"]


def _waits(after: Cluster, plan: Plan) -> Iterator[str]:
    """Whoever waits, by the first of each shape; then what arrays hold back themselves."""
    by_shape: dict[Shape, list[Job]] = {}
    for each in after.waiting():
        by_shape.setdefault(each.spec.shape, []).append(each)
    for shape, jobs in by_shape.items():
        yield f"  {_labels(jobs)} waits, {plan.reasons[shape].code}:"
        yield from _wrapped(describe(plan.reasons[shape]))
    for array in after.jobs.values():
        if array.members is not None and array.members.lazy and after.array_slots(array.id) == 0:
            yield f"  {array.id}_[{spans_text(array.members.lazy)}] waits for others of its array to end"


def _labels(jobs: list[Job]) -> str:
    """`1-3,7,9_[0-4]`."""
    said = spans_text(spans_of([each.id for each in jobs if not each.array_of]))
    parts = [said] if said else []
    for array in dict.fromkeys(each.array_of for each in jobs if each.array_of):
        indexes = [each.array_index for each in jobs if each.array_of == array]
        parts.append(f"{array}_[{spans_text(spans_of(sorted(indexes)))}]")
    return ",".join(parts)


def _wrapped(sentence: str) -> list[str]:
    lines = [""]
    for word in sentence.split():
        if len(lines[-1]) + len(word) > _WIDTH:
            lines.append("")
        lines[-1] += f" {word}"
    return [f"     {line}" for line in lines]
