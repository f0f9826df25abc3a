"""The reference page of log lines and metrics, with where each is written.

Read from the calls in the source: a name that isn't written out at its call can't be looked up by an operator.
"""

import ast
import inspect
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple, get_args

from stoker.adapters.metrics import HELP, known_as
from stoker.api.http.state_metrics import METERS
from stoker.brain.state.events.row import Fields, LogLine
from stoker.brain.state.events.union import Event
from tools.reference.markdown import code, page, table

ROOT: Final = Path(__file__).resolve().parents[2]
_KINDS: Final = {"event": "info", "warn": "warning", "count": "counter", "gauge": "gauge", "observe": "histogram"}
_LINES: Final = ("info", "warning")
_LOG_LINES: Final = "control/log_lines.py"
_METERS: Final = "api/http/state_metrics.py"
_NO_DATA: Final = (
    "GPU utilisation, memory, temperature and power aren't here: each agent tells those of its node, as dcgm-exporter "
    "names them (`DCGM_FI_DEV_*`), on a page of its own, where its `metrics.address` says so."
)

_METER_WORDS: Final = {meter.name: meter.words for meter in METERS}


class Spoken(NamedTuple):
    """One name at one place. `words`: the fields of a line, or the labels of a metric."""

    kind: str
    name: str
    words: tuple[str, ...]
    file: str


def telemetry() -> str:
    """The page of log lines and metrics."""
    said = spoken(ROOT)
    lines = [one for one in said if one.kind in _LINES]
    metrics = [one for one in said if one.kind not in _LINES and _is_served(one)]
    return page(
        "Log lines and metrics",
        "Log lines go to standard output, one JSON object each (`log.format: text` for people), with `event` as named "
        "here; lines about a job have its `task_id` (`12_3` for a member of an array) and `priority`, lines about a "
        "node its `agent_id`. Metrics are at `/metrics`, with the process's own beside them; alert rules and a "
        "dashboard for them are in `deploy/`.",
        "## Log lines",
        table(("event", "level", "fields", "written by"), _merged(lines)),
        "## Metrics",
        table(("name", "kind", "labels", "meaning"), _metrics(metrics)),
        _NO_DATA,
    )


def spoken(root: Path) -> list[Spoken]:
    """Every call of the Telemetry port with its name written out."""
    found: list[Spoken] = []
    for path in sorted((root / "src" / "stoker").rglob("*.py")):
        if "gen" in path.parts:
            continue
        file = path.relative_to(root / "src" / "stoker").as_posix()
        tree = ast.parse(path.read_text())
        found += [one for node in ast.walk(tree) for one in _call(node, file)]
    found += _logged()
    found += [Spoken("gauge", meter.name, (meter.label,) * bool(meter.label), _METERS) for meter in METERS]
    return sorted(found)


def _call(node: ast.AST, file: str) -> list[Spoken]:
    if not isinstance(node, ast.Call):
        return []
    if not (isinstance(node.func, ast.Attribute) and node.func.attr in _KINDS):
        return []
    owner = getattr(node.func.value, "attr", getattr(node.func.value, "id", ""))
    if (
        not str(owner).endswith(("telemetry", "complaints"))
        or not node.args
        or not isinstance(node.args[0], ast.Constant)
    ):
        return []
    words = sorted(keyword.arg for keyword in node.keywords if keyword.arg and keyword.arg != "by")
    return [Spoken(_KINDS[node.func.attr], str(node.args[0].value), tuple(words), file)]


def _logged() -> Iterator[Spoken]:
    """The rows of event kinds: each durable event of a kind with a line becomes that line, and most are counted."""
    for kind in get_args(Event):
        line: LogLine[Any] | None = kind.row.log
        if line is None:
            continue
        fields = _keys(line.fields)
        yield Spoken("warning" if line.warning else "info", line.name, fields, _LOG_LINES)
        if line.name == "task_finished":
            yield Spoken("info", "task_failed", fields, _LOG_LINES)
        if line.counted:
            yield Spoken("counter", line.name, (), _LOG_LINES)


def _keys(fields: Callable[[Any], Fields]) -> tuple[str, ...]:
    """The names of the dictionary that a function returns, as its code has them."""
    begins = fields.__code__.co_firstlineno
    functions = _functions(inspect.getsourcefile(fields) or "")
    (function,) = [node for node in functions if node.lineno == begins]
    names = [key for node in ast.walk(function) if isinstance(node, ast.Dict) for key in node.keys]
    return tuple(sorted(str(key.value) for key in names if isinstance(key, ast.Constant)))


@cache
def _functions(file: str) -> list[ast.Lambda | ast.FunctionDef]:
    tree = ast.parse(Path(file).read_text())
    return [node for node in ast.walk(tree) if isinstance(node, ast.Lambda | ast.FunctionDef)]


def unexplained() -> list[str]:
    """Metrics that no sentence explains."""
    return [one.name for one in spoken(ROOT) if one.kind not in _LINES and _is_served(one) and not _meaning(one)]


def metric_names() -> list[str]:
    """Every metric of a control plane under the name that Prometheus shows; of a histogram its three."""
    names: list[str] = []
    for one in filter(_is_served, spoken(ROOT)):
        if one.kind in ("counter", "gauge"):
            names.append(_metric(one))
        elif one.kind == "histogram":
            names += [f"{_metric(one)}{part}" for part in ("_bucket", "_count", "_sum")]
    return sorted(set(names))


def _is_served(one: Spoken) -> bool:
    """An agent counts too, and shows it to nobody yet."""
    return not one.file.startswith("agent/")


def _meaning(one: Spoken) -> str:
    return _METER_WORDS[one.name] if one.file == _METERS else HELP.get(known_as(one.name), "")


def _metric(one: Spoken) -> str:
    """Rule M1 of `adapters/metrics.py`."""
    full = f"stoker_{one.name.removeprefix('stoker_')}"
    if one.kind == "counter":
        return f"{full.removesuffix('_total')}_total"
    return f"{full.removesuffix('_seconds')}_seconds" if one.kind == "histogram" else full


def _metrics(said: list[Spoken]) -> Iterator[tuple[str, str, str, str]]:
    """One row per metric, with all of its labels and what it means."""
    rows: dict[tuple[str, str], list[Spoken]] = defaultdict(list)
    for one in said:
        rows[_metric(one), one.kind].append(one)
    for (name, kind), ones in sorted(rows.items()):
        labels = ", ".join(sorted({word for one in ones for word in one.words}))
        yield code(name), kind, labels, _meaning(ones[0])


def _merged(said: list[Spoken]) -> list[tuple[str, str, str, str]]:
    """One row per name and kind, however many places say it."""
    places: dict[tuple[str, str], list[Spoken]] = defaultdict(list)
    for one in said:
        places[one.name, one.kind].append(one)
    return [
        (
            code(name),
            kind,
            ", ".join(sorted({word for one in ones for word in one.words})),
            ", ".join(code(file) for file in sorted({one.file for one in ones})),
        )
        for (name, kind), ones in sorted(places.items())
    ]
