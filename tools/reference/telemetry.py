"""Which log lines and metrics does Stoker write, and where?

Read from the calls in the source: a name that isn't written out at its call can't be looked up by an operator.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tools.reference.markdown import code, page, table

ROOT: Final = Path(__file__).resolve().parents[2]
_KINDS: Final = {"event": "info", "warn": "warning", "count": "counter", "gauge": "gauge", "observe": "histogram"}
_ANNOUNCER: Final = "live/announce.py"
_METERS: Final = "live/http/meters.py"
_METER_ARGUMENTS_MIN: Final = 3


class Spoken(NamedTuple):
    """One name at one place. `words`: the fields of a line, or the labels of a metric."""

    kind: str
    name: str
    words: tuple[str, ...]
    file: str


def telemetry() -> str:
    """The page of log lines and metrics."""
    said = spoken(ROOT)
    lines = [one for one in said if one.kind in ("info", "warning")]
    metrics = [one._replace(name=_metric(one)) for one in said if one.kind not in ("info", "warning")]
    return page(
        "Log lines and metrics",
        "Log lines go to standard output, one JSON object each (`log.format: text` for people), with `event` as named "
        "here. Metrics are at `/metrics`, with the process's own beside them.",
        "## Log lines",
        table(("event", "level", "fields", "written by"), _merged(lines)),
        "## Metrics",
        table(("name", "kind", "labels", "counted by"), _merged(metrics)),
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
        found += _announced(tree, file) if file == _ANNOUNCER else []
    return sorted(found)


def _call(node: ast.AST, file: str) -> list[Spoken]:
    if not isinstance(node, ast.Call):
        return []
    if file == _METERS and isinstance(node.func, ast.Name) and node.func.id in ("_family", "_single"):
        return _meter(node, file)
    if not (isinstance(node.func, ast.Attribute) and node.func.attr in _KINDS):
        return []
    owner = getattr(node.func.value, "attr", getattr(node.func.value, "id", ""))
    if not str(owner).endswith("telemetry") or not node.args or not isinstance(node.args[0], ast.Constant):
        return []
    words = sorted(keyword.arg for keyword in node.keywords if keyword.arg and keyword.arg != "by")
    return [Spoken(_KINDS[node.func.attr], str(node.args[0].value), tuple(words), file)]


def _announced(tree: ast.Module, file: str) -> Iterator[Spoken]:
    """The announcer's table: each durable fact of such a kind becomes a line and is counted."""
    fields = {node.name: _keys(node) for node in tree.body if isinstance(node, ast.FunctionDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") == "_LINES":
            assert isinstance(node.value, ast.Dict)
            for row in node.value.values:
                assert isinstance(row, ast.Tuple)
                name, function = row.elts
                assert isinstance(name, ast.Constant)
                yield Spoken("info", str(name.value), fields[getattr(function, "id", "")], file)
                yield Spoken("counter", str(name.value), (), file)


def _keys(function: ast.FunctionDef) -> tuple[str, ...]:
    returned = [node.value for node in ast.walk(function) if isinstance(node, ast.Return)]
    keys = [key for value in returned if isinstance(value, ast.Dict) for key in value.keys]
    return tuple(sorted(str(key.value) for key in keys if isinstance(key, ast.Constant)))


def _meter(node: ast.Call, file: str) -> list[Spoken]:
    """A gauge that is read from the state at each scrape: name, words, and for a family its label."""
    written = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
    if len(node.args) < _METER_ARGUMENTS_MIN or not written:
        return []
    return [Spoken("gauge", str(written[0]), tuple(map(str, written[2:3])), file)]


def _metric(one: Spoken) -> str:
    """Rule M1 of `adapters/metrics.py`."""
    full = f"stoker_{one.name.removeprefix('stoker_')}"
    if one.kind == "counter":
        return f"{full.removesuffix('_total')}_total"
    return f"{full.removesuffix('_seconds')}_seconds" if one.kind == "histogram" else full


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
