"""What does a scenario file say, and what does the engine answer to it?

A file is prose with blocks in it. A block begins with one of the words below and a colon at the start of a line; its
lines are indented. Blocks act in the order in which they stand:

    cluster:    nodes that register (or change): `a: gpus=4 cpus=32`, `b: models=A100,V100 unreachable`
    jobs:       jobs that are submitted: `1: gpus=2 tasks=4`, `5-9: gpus=1`, `3: gpus=2 on=a[0,1]` (runs already)
    policy:     numbers that differ from the default: `budget=3 port_min=20000`
    end:        jobs that end: `1 2`
    plan:       what the engine answers now; it is carried out before the next block

`pytest tests/scenarios --rewrite` writes the answers into the files, for review.
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from stoker.brain.domain.demand import Shape
from stoker.brain.domain.job import Job
from stoker.brain.domain.node import Node
from stoker.brain.domain.plan import Place, Plan
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.reason import describe
from tests.builders import A100, H100, V100, Cluster, cluster, job, node, running_on, where

FOLDER: Final = Path(__file__).parent
_MODELS: Final = {"A100": A100, "V100": V100, "H100": H100}
_BLOCK: Final = re.compile(r"(cluster|jobs|policy|end|plan):(.*)")
_NODE_WORDS: Final = frozenset(
    {"gpus", "models", "gpu_memory_mb", "cpus", "memory_mb", "address", "unreachable", "drained", "forgotten"}
)
_JOB_WORDS: Final = frozenset(
    {"gpus", "tasks", "model", "gpu_memory_mb", "cpus", "memory_mb", "priority", "tries", "on"}
)
_POLICY_WORDS: Final = frozenset({"budget", "port_min", "port_max"})
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
        elif word == "end":
            self.cluster = self.cluster.without(*(int(id_) for id_ in text.split()))
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
    return node(
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
    )


def _read_jobs(text: str) -> list[Job]:
    ids, _, rest = text.partition(":")
    first, _, last = ids.strip().partition("-")
    said = _settings(rest, _JOB_WORDS)
    numbers = {key: int(value) for key, value in said.items() if key not in ("model", "on")}
    made = [
        job(
            id_,
            gpus=numbers.get("gpus", 0),
            tasks=numbers.get("tasks", 1),
            model=said.get("model", ""),
            gpu_memory_mb=numbers.get("gpu_memory_mb", 0),
            cpus=numbers.get("cpus", 1),
            memory_mb=numbers.get("memory_mb", 0),
            priority=numbers.get("priority", 500),
            tries=numbers.get("tries", 0),
        )
        for id_ in range(int(first), int(last or first) + 1)
    ]
    return [running_on(one, *_read_places(said["on"])) for one in made] if "on" in said else made


def _read_places(text: str) -> list[tuple[str, list[int]]]:
    """`a[0,1];b[2,3]`: one place per rank."""
    places = []
    for part in text.split(";"):
        name, _, indexes = part.rstrip("]").partition("[")
        places.append((name, [int(index) for index in indexes.split(",") if index]))
    return places


def _answer(here: Cluster, plan: Plan) -> list[str]:
    lines = [f"  {_placed(place, ranks)}" for place, ranks in zip(plan.actions, where(plan).values(), strict=True)]
    lines += _waits(here.after(plan), plan)
    if plan.more:
        lines.append("  the next pass goes on")
    return lines or ["  nothing to do"]


def _waits(after: Cluster, plan: Plan) -> Iterator[str]:
    """Whoever waits, by the first of each shape."""
    by_shape: dict[Shape, list[int]] = {}
    for each in after.waiting():
        by_shape.setdefault(each.spec.shape, []).append(each.id)
    for shape, ids in by_shape.items():
        yield f"  {_ranges(ids)} waits, {plan.reasons[shape].code}:"
        yield from _wrapped(describe(plan.reasons[shape]))


def _placed(place: Place, ranks: list[tuple[str, list[int]]]) -> str:
    told = " ".join(f"{name}[{','.join(str(index) for index in indexes)}]" for name, indexes in ranks)
    attempt = f" (attempt {place.attempt})" if place.attempt > 1 else ""
    meet = f" meet at {place.master_addr}:{place.master_port}" if place.master_port else ""
    return f"{place.job}{attempt} -> {told}{meet}"


def _ranges(ids: list[int]) -> str:
    """`1-3,7` for 1, 2, 3 and 7."""
    runs: list[tuple[int, int]] = []
    for id_ in ids:
        if runs and id_ == runs[-1][1] + 1:
            runs[-1] = runs[-1][0], id_
        else:
            runs.append((id_, id_))
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _wrapped(sentence: str) -> list[str]:
    lines = [""]
    for word in sentence.split():
        if len(lines[-1]) + len(word) > _WIDTH:
            lines.append("")
        lines[-1] += f" {word}"
    return [f"     {line}" for line in lines]
