"""Lines that `stoker top` draws of the cluster.

Pure: views in, texts out, coloured by escape sequences as on any other terminal. Widths are terminal cells.

Rules: P1  every line fits the room that it was asked for
       P2  a wide window shows more columns, a narrow one shortens names and reasons
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from stoker.cli.display.formatting import note_line, ran, user_of, waited
from stoker.cli.display.gpu_figures import mean_utilization
from stoker.cli.display.job_details import job_columns, job_pairs, nodes_of, short_name, why_lines
from stoker.cli.display.node_details import models_of, node_pairs, note_of
from stoker.cli.display.output import pair_lines
from stoker.cli.display.safe_text import visible, width
from stoker.cli.display.table import Column, Row, painted, table_lines
from stoker.wire.rest.cluster import ClusterView
from stoker.wire.rest.job import JobView
from stoker.wire.rest.node import GpuView, NodeView

if TYPE_CHECKING:
    from stoker.cli.top.app import JobLook

BAR_MAX: Final = 16
"""Cells of a bar; beyond it each cell stands for several GPUs."""
USER_FROM: Final = 100
TENANT_FROM: Final = 120
_GLYPH: Final = {"busy": "■", "idle": "□", "offline": "✗", "quarantined": "?", "lost": "!"}
_COLOUR: Final = {"busy": "cyan", "idle": "bright_black", "offline": "red", "quarantined": "yellow", "lost": "red"}


class Sheet(NamedTuple):
    """A table: its titles, and its rows with what each stands for."""

    head: str
    rows: list[tuple[str, str]]


def summary_line(cluster: ClusterView, room: int, clock: str) -> str:
    """The whole cluster in one line."""
    simulated = " simulated" if cluster.simulated and room >= USER_FROM else ""
    parts = [
        click.style("stoker top", bold=True),
        f"{cluster.online_nodes}/{cluster.total_nodes} nodes",
        f"{cluster.busy_gpus}/{cluster.total_gpus}{simulated} GPUs busy",
        click.style(f"{cluster.jobs.get('running', 0)} running", fg="cyan"),
        click.style(f"{cluster.jobs.get('pending', 0)} pending", fg="yellow"),
    ]
    if cluster.quarantined_gpus:
        parts.insert(3, click.style(f"{cluster.quarantined_gpus} GPUs quarantined", fg="yellow"))
    if cluster.lost_gpus:
        parts.insert(3, click.style(f"{cluster.lost_gpus} GPUs lost", fg="red"))
    if cluster.offline_gpus:
        parts.insert(3, click.style(f"{cluster.offline_gpus} GPUs offline", fg="red"))
    if cluster.jobs.get("held", 0):
        parts.append(click.style(f"{cluster.jobs['held']} held", fg="magenta"))
    while len(parts) > 1 and _cells(parts) + len(clock) + 2 > room:
        parts.pop()
    line = "  ".join(parts)
    return f"{line}{' ' * (room - _cells(parts) - len(clock))}{clock}"


def _cells(parts: Sequence[str]) -> int:
    return width(click.unstyle("  ".join(parts)))


def gpu_bar(gpus: Sequence[GpuView]) -> str:
    """A cell for each GPU, or for each few of them: busy ones first where cells are shared."""
    statuses = [gpu.status for gpu in gpus]
    if len(statuses) > BAR_MAX:
        statuses = sorted(statuses)[:: -(-len(statuses) // BAR_MAX)]
    return "".join(click.style(_GLYPH[status], fg=_COLOUR[status]) for status in statuses)


def node_sheet(nodes: Iterable[NodeView], room: int) -> Sheet:
    wide = room >= TENANT_FROM
    columns: list[Column[NodeView]] = [
        Column("NODE", lambda node: node.name, elastic=True),
        Column("STATE", lambda node: node.state.value, coloured=True),
        Column("GPUS", lambda node: f"{sum(gpu.status == 'busy' for gpu in node.gpus)}/{len(node.gpus)}", right=True),
        Column("USE", lambda node: mean_utilization(node.gpus), right=True),
        Column("CPUS", lambda node: f"{node.cpus - node.free.cpus}/{node.cpus}", right=True),
        Column(
            "MEMORY", lambda node: f"{(node.memory_mb - node.free.memory_mb) >> 10}/{node.memory_mb >> 10}G", right=True
        ),
        Column("JOBS", lambda node: len(node.jobs), right=True),
        Column("MODEL", models_of, elastic=True, wide=True),
        Column("NOTE", note_of, elastic=True),
    ]
    nodes = list(nodes)
    bars = [gpu_bar(node.gpus) for node in nodes]
    # The bar is drawn with colours of its own, which a cell can't hold: it stands before the columns.
    size = max((width(click.unstyle(bar)) for bar in bars), default=0)
    sheet = _sheet(columns, nodes, room - size - 2, wide=wide)
    rows = (
        (node.name, f"{bar}{' ' * (size - width(click.unstyle(bar)))}  {line}")
        for node, bar, (_, line) in zip(nodes, bars, sheet.rows, strict=True)
    )
    return Sheet(" " * (size + 2) + sheet.head, list(rows))


def job_sheet(jobs: Sequence[JobView], room: int, now_ms: int) -> Sheet:
    whose = [title for title, least in (("USER", USER_FROM), ("TENANT", TENANT_FROM)) if room >= least]
    columns = job_columns(now_ms, ("ID", "NAME", "STATE", "GPUS", "PRIO", *whose, "WAITED", "RAN"))
    return _sheet([*columns, Column("WHERE OR WHY", _where_or_why, elastic=True)], jobs, room, wide=True)


def _where_or_why(job: JobView) -> str | None:
    end = f"exit {job.exit_code}" if job.ended_at is not None and job.exit_code else ""
    place = nodes_of(job) if job.started_at is not None and job.ended_at is None else ""
    return "; ".join(filter(None, (place, end, note_line(job)))) or None


def _sheet(columns: Sequence[Column[Row]], rows: Sequence[Row], room: int, *, wide: bool) -> Sheet:
    head, *lines = table_lines(columns, rows, wide=wide, room=room, paint=True)
    key = columns[0].cell
    return Sheet(head, [(str(key(row)), line) for row, line in zip(rows, lines, strict=True)])


def matching(jobs: Iterable[JobView], words: str) -> list[JobView]:
    """Jobs in which each of the words occurs somewhere that a list shows."""
    wanted = words.lower().split()
    return [job for job in jobs if all(word in _haystack(job) for word in wanted)]


def _haystack(job: JobView) -> str:
    shown = (job.id, job.name, job.state.value, job.tenant, user_of(job), job.partition, nodes_of(job), note_line(job))
    return " ".join(filter(None, shown)).lower()


def job_page(look: "JobLook", room: int, now_ms: int) -> str:
    """One job: how it is in a line, why, and its story."""
    story = pair_lines(job_pairs(look.job, now_ms, whole=False), paint=True, room=room)
    why = [] if look.job.state in ("running", "succeeded") else list(why_lines(look.why))
    return "\n".join([_headline(look.job, now_ms), *why, "", *story])


def _headline(job: JobView, now_ms: int) -> str:
    place = f"on {nodes_of(job)}" if job.started_at is not None and job.ended_at is None and nodes_of(job) else ""
    waits, runs = waited(job, now_ms), ran(job, now_ms)
    parts = (
        f"{click.style(short_name(job.name), bold=True)}  {painted(job.state.value)}",
        place,
        f"{job.total_gpus} GPU{'s' * (job.total_gpus != 1)}",
        f"waited {waits}" if waits else "",
        f"ran {runs}" if runs else "",
        f"exit {job.exit_code}" if job.exit_code is not None else "",
    )
    return "  ".join(filter(None, parts))


def node_page(node: NodeView, room: int) -> str:
    return "\n".join(pair_lines(node_pairs(node), paint=True, room=room))


def log_lines(log: str) -> list[str]:
    """The end of what a job wrote, a text for each line."""
    lines = [log_line(line) for line in log.split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def log_line(line: str) -> str:
    """A line of a job's output as it looks in the end: without colours, and only what a progress bar said last."""
    return visible(click.unstyle(line).removesuffix("\r").rsplit("\r", 1)[-1].expandtabs())


def rule_title(name: str, sight: tuple[int, int], total: int) -> str:
    """Return the title of a list: which rows are in sight, of how many."""
    first, last = sight
    return f"{name} ({total})" if last - first + 1 >= total else f"{name} ({first} to {last} of {total})"
