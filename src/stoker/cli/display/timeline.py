"""Timeline of which job held which GPU when, and its drawing as rows of text.

Pure: answers of the API in, lines out. The same `Timeline` is drawn as a picture by `timeline_svg`.

Units: instants and durations are milliseconds, widths are terminal cells.
Rules: T1  a row is one GPU, a span is one attempt of one job on it; nothing is drawn that is not a span
       T2  every line fits the width it was asked for
       T3  a span however short is at least one cell, as long as its neighbour has a cell to spare
       T4  neighbouring runs of two jobs never share a fill
       T5  without colour each run that has room carries its job's id
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final

from stoker.brain.domain.gpu import index_text
from stoker.cli.display.formatting import instant_ms

if TYPE_CHECKING:
    from stoker.wire.rest.job import JobView
    from stoker.wire.rest.node import GpuListView

WIDTH_MIN: Final = 40
"""Below this nothing useful fits; lines are drawn this wide all the same."""
FREE: Final = "·"
BROKEN: Final = "✗"
"""Last cell of a run that didn't end well."""
_FILLS: Final = "█▓▒░"
_STEPS_MS: Final = (
    *(unit * factor for unit in (1, 10, 100, 1_000, 10_000) for factor in (1, 2, 5)),
    *(60_000 * minutes for minutes in (1, 2, 5, 10, 30)),
    *(3_600_000 * hours for hours in (1, 2, 6, 12, 24, 48, 168, 720, 8_760)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineRow:
    """One GPU: a row of the picture."""

    node: str
    index: int
    uuid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineSpan:
    """One attempt of one job on one GPU, from the moment it was given the GPU to the moment it gave it back."""

    gpu: str
    job: str
    name: str
    attempt: int
    outcome: str  # of the attempt; empty while it is live
    start_ms: int
    end_ms: int

    @property
    def broken(self) -> bool:
        return self.outcome not in ("", "succeeded")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Everything a drawing needs. Spans of GPUs without a row are not drawn."""

    rows: tuple[TimelineRow, ...]
    spans: tuple[TimelineSpan, ...]
    start_ms: int
    end_ms: int

    @property
    def length_ms(self) -> int:
        return max(1, self.end_ms - self.start_ms)


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of one line in one colour: that of `job`, or none."""

    text: str
    job: str = ""


def make_timeline(rows: Iterable[TimelineRow], spans: Iterable[TimelineSpan]) -> Timeline:
    """Order rows by node and index, and let time run from the first span to the last."""
    ordered = tuple(sorted(rows, key=lambda row: (row.node, row.index, row.uuid)))
    by_time = tuple(sorted(spans, key=lambda span: (span.start_ms, len(span.job), span.job, span.gpu, span.attempt)))
    start = min((span.start_ms for span in by_time), default=0)
    end = max((span.end_ms for span in by_time), default=start)
    return Timeline(rows=ordered, spans=by_time, start_ms=start, end_ms=end)


def gpu_timeline(gpus: "GpuListView", jobs: "Iterable[JobView]", now_ms: int) -> Timeline:
    """Return who held which GPU when, from the attempts of jobs. `now_ms`: until when live attempts are drawn.

    A GPU is held from the moment its task was placed until the end of that task was proved.
    """
    rows = [TimelineRow(node=gpu.node, index=gpu.device_index, uuid=gpu.uuid) for gpu in gpus.gpus]
    return make_timeline(rows, (span for job in jobs for span in _spans(job, now_ms)))


def _spans(job: "JobView", now_ms: int) -> Iterator[TimelineSpan]:
    for attempt in job.attempts:
        start_ms = instant_ms(attempt.placed_at)
        for task in attempt.tasks:
            end = task.ended_at or attempt.ended_at
            for uuid in task.gpus:
                yield TimelineSpan(
                    gpu=uuid,
                    job=job.id,
                    name=job.name,
                    attempt=attempt.number,
                    outcome=attempt.outcome.value if attempt.outcome else "",
                    start_ms=start_ms,
                    end_ms=max(start_ms, now_ms if end is None else instant_ms(end)),
                )


def job_order(timeline: Timeline) -> tuple[str, ...]:
    """Jobs in order of their first span: place in this order gives a job its fill and colour."""
    return tuple(dict.fromkeys(span.job for span in timeline.spans))


def tick_step_ms(length_ms: int, ticks_max: int) -> int:
    """The smallest round step that gives at most `ticks_max` ticks."""
    return next((step for step in _STEPS_MS if length_ms // step <= ticks_max), max(1, length_ms // max(1, ticks_max)))


def tick_label(at_ms: int) -> str:
    """`1.5s`, `20s`, `3m`, `2h`: as short as it stays exact."""
    if at_ms == 0:
        return "0"
    for unit_ms, name in ((3_600_000, "h"), (60_000, "m")):
        if at_ms % unit_ms == 0:
            return f"{at_ms // unit_ms}{name}"
    return f"{at_ms / 1_000:g}s"


def text_lines(timeline: Timeline, width: int) -> list[list[Piece]]:
    """The drawing, line by line: an axis, then one row per GPU.

    `width` is in cells. Lines are ragged on the right but never wider than `max(width, WIDTH_MIN)`.
    """
    width = max(width, WIDTH_MIN)
    labels = _row_labels(timeline.rows, width // 3)
    margin = max((len(label) for label in labels), default=0) + 2
    cells = width - margin
    fills = {job: _FILLS[place % len(_FILLS)] for place, job in enumerate(job_order(timeline))}
    lines = [[Piece(" " * margin + _axis(timeline, cells))]]
    for row, label in zip(timeline.rows, labels, strict=True):
        spans = [span for span in timeline.spans if span.gpu == row.uuid]
        lines.append([Piece(label.ljust(margin)), *_row(timeline, spans, cells, fills)])
    return lines


def plain(lines: Iterable[Sequence[Piece]]) -> str:
    """The drawing without colour."""
    return "\n".join("".join(piece.text for piece in line).rstrip() for line in lines)


def _row_labels(rows: Sequence[TimelineRow], longest: int) -> list[str]:
    """A node's name stands only beside its first GPU; a long name keeps its end, where names differ."""
    labels = []
    shown = None
    digits = max((len(index_text(row.index)) for row in rows), default=1)
    room = max(1, longest - digits - 5)
    column = min(room, max((len(row.node) for row in rows), default=0))
    for row in rows:
        node = row.node if len(row.node) <= room else "…" + row.node[1 - room :]
        labels.append(f"{node if row.node != shown else '':{column}} GPU{index_text(row.index):>{digits}}")
        shown = row.node
    return labels


def _axis(timeline: Timeline, cells: int) -> str:
    step = tick_step_ms(timeline.length_ms, max(1, cells // 8))
    axis = [" "] * cells
    for at_ms in range(0, timeline.length_ms + 1, step):
        label = "|" + tick_label(at_ms)
        column = at_ms * cells // timeline.length_ms
        if column + len(label) <= cells:
            axis[column : column + len(label)] = label
    return "".join(axis)


def _row(timeline: Timeline, spans: Sequence[TimelineSpan], cells: int, fills: dict[str, str]) -> list[Piece]:
    owners = _owners(timeline, spans, cells)
    pieces = []
    before = ""
    for owner, run in groupby(owners):
        length = len(list(run))
        if owner is None:
            pieces.append(Piece(FREE * length))
            before = ""
            continue
        fill = fills[owner.job]
        if fill == before:  # T4: two jobs of one fill happen to be neighbours
            fill = _FILLS[(_FILLS.index(fill) + 1) % len(_FILLS)]
        pieces.append(Piece(_run(owner, length, fill), owner.job))
        before = fill
    return pieces


def _owners(timeline: Timeline, spans: Sequence[TimelineSpan], cells: int) -> list[TimelineSpan | None]:
    """Who owns each cell: longer spans are laid first, so that a short one is seen beside or on top of them."""
    owners: list[TimelineSpan | None] = [None] * cells
    for span in sorted(spans, key=lambda s: (s.start_ms - s.end_ms, s.start_ms, s.job, s.attempt)):
        first = (span.start_ms - timeline.start_ms) * cells // timeline.length_ms
        last = (span.end_ms - timeline.start_ms) * cells // timeline.length_ms
        first = min(max(first, 0), cells - 1)
        last = min(max(last, first + 1), cells)
        _lay(owners, span, first, last)
    return owners


def _lay(owners: list[TimelineSpan | None], span: TimelineSpan, first: int, last: int) -> None:
    taken = [column for column in range(first, last) if owners[column] is None]
    if not taken and owners.count(owners[first]) > 1:  # T3
        taken = [first]
    for column in taken:
        owners[column] = span


def _run(span: TimelineSpan, length: int, fill: str) -> str:
    """A run of cells with the job's id in its middle (T5) and a mark at its end if it ended badly."""
    tail = BROKEN if span.broken and length > len(span.job) else ""
    room = length - len(tail)
    if room >= len(span.job) + 4:
        return f" {span.job} ".center(room, fill) + tail
    if room >= len(span.job):
        return span.job.center(room, fill) + tail
    return fill * room + tail
