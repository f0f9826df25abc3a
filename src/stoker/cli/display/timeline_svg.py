"""Timeline as an SVG picture.

Pure: a `Timeline` in, the text of one SVG file out. Nothing in it is loaded from elsewhere, and every text of a user
is escaped and free of the control characters that XML forbids.

Units: SVG user units, which are pixels at 100 %.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final
from xml.sax.saxutils import escape, quoteattr

from stoker.brain.domain.gpu import index_text
from stoker.cli.display.safe_text import visible
from stoker.cli.display.timeline import Timeline, TimelineRow, TimelineSpan, job_order, tick_label, tick_step_ms

_WIDTH: Final = 1_040
_LEFT: Final = 190
_RIGHT: Final = 24
_TOP: Final = 66
_ROW_HEIGHT: Final = 26
_BAR: Final = 20
_GAP: Final = 12
"""Between two nodes."""
_LEGEND_ROW: Final = 20
_LEGEND_COLUMNS: Final = 3
_LEGEND_MAX: Final = 60
"""Jobs in the legend; beyond it a line says how many more there are."""
_LETTER: Final = 6.6
"""Mean width of a letter at 11 pixels: an estimate, used only to leave out labels that wouldn't fit."""
_TICKS_MAX: Final = 12

# Tableau 10: told apart by most colour-blind readers, and white or black text is readable on each.
_COLOURS: Final = (
    ("#4e79a7", "#ffffff"),
    ("#f28e2b", "#000000"),
    ("#59a14f", "#ffffff"),
    ("#b07aa1", "#ffffff"),
    ("#76b7b2", "#000000"),
    ("#edc948", "#000000"),
    ("#9c755f", "#ffffff"),
    ("#ff9da7", "#000000"),
    ("#e15759", "#ffffff"),
    ("#bab0ac", "#000000"),
)

_STYLE: Final = (
    "text{font-family:system-ui,'DejaVu Sans',sans-serif;font-size:11px;fill:#333}"
    ".title{font-size:16px;font-weight:600}.node{font-weight:600}.small{fill:#666}"
    ".grid{stroke:#d8d8d8;stroke-width:1}.free{fill:#f3f3f3}.mark{stroke:#c00000;stroke-width:3}"
)


def svg(timeline: Timeline, title: str) -> str:
    """The whole file. GPUs run down, time runs right; a bar is one attempt on one GPU."""
    tops = _row_tops(timeline.rows)
    bottom = max(tops.values(), default=_TOP) + _ROW_HEIGHT
    jobs = job_order(timeline)
    rows = -(-min(len(jobs), _LEGEND_MAX) // _LEGEND_COLUMNS) + (len(jobs) > _LEGEND_MAX)
    height = bottom + 62 + rows * _LEGEND_ROW
    body = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}" role="img">',
        f"<title>{_text(title)}</title>",
        f"<style>{_STYLE}</style>",
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text class="title" x="16" y="28">{_text(title)}</text>',
        *_row_marks(timeline.rows, tops),
        *_axis(timeline, bottom),
        *_bars(timeline, tops, jobs),
        *_legend(timeline, jobs, bottom + 46),
        "</svg>",
    ]
    return "\n".join(body) + "\n"


def _text(text: str) -> str:
    return escape(visible(text))


def _row_tops(rows: Sequence[TimelineRow]) -> dict[str, int]:
    tops: dict[str, int] = {}
    y = _TOP - _GAP
    for _, members in groupby(rows, key=lambda row: row.node):
        y += _GAP
        for row in members:
            tops[row.uuid] = y
            y += _ROW_HEIGHT
    return tops


def _row_marks(rows: Sequence[TimelineRow], tops: dict[str, int]) -> Iterator[str]:
    shown = None
    for row in rows:
        y = tops[row.uuid]
        yield (
            f'<rect class="free" x="{_LEFT}" y="{y}" width="{_WIDTH - _LEFT - _RIGHT}" height="{_BAR}">'
            f"<title>{_text(row.uuid)}</title></rect>"
        )
        if row.node != shown:
            yield f'<text class="node" x="16" y="{y + 14}">{_text(_short(row.node, 16))}</text>'
            shown = row.node
        yield f'<text x="{_LEFT - 10}" y="{y + 14}" text-anchor="end">GPU {index_text(row.index)}</text>'


def _axis(timeline: Timeline, bottom: int) -> Iterator[str]:
    step = tick_step_ms(timeline.length_ms, _TICKS_MAX)
    for at_ms in range(0, timeline.length_ms + 1, step):
        x = _x(timeline, timeline.start_ms + at_ms)
        yield f'<line class="grid" x1="{x:.1f}" y1="{_TOP - 8}" x2="{x:.1f}" y2="{bottom}"/>'
        yield f'<text class="small" x="{x:.1f}" y="{_TOP - 14}" text-anchor="middle">{tick_label(at_ms)}</text>'
    yield (
        f'<text class="small" x="{_WIDTH - _RIGHT}" y="{bottom + 16}" text-anchor="end">'
        "time since the first job was given its GPUs</text>"
    )


def _x(timeline: Timeline, at_ms: int) -> float:
    inside = min(max(at_ms, timeline.start_ms), timeline.end_ms) - timeline.start_ms
    return _LEFT + inside * (_WIDTH - _LEFT - _RIGHT) / timeline.length_ms


def _bars(timeline: Timeline, tops: dict[str, int], jobs: Sequence[str]) -> Iterator[str]:
    place = {job: index for index, job in enumerate(jobs)}
    for span in timeline.spans:
        if span.gpu in tops:
            yield from _bar(timeline, span, tops[span.gpu], _COLOURS[place[span.job] % len(_COLOURS)])


def _bar(timeline: Timeline, span: TimelineSpan, y: int, colours: tuple[str, str]) -> Iterator[str]:
    x, right = _x(timeline, span.start_ms), _x(timeline, span.end_ms)
    width = max(2.0, right - x)
    story = f"job {span.job} {span.name}, attempt {span.attempt}: {span.outcome or 'running'}"
    yield (
        f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_BAR}" rx="3" fill="{colours[0]}" '
        f'stroke="#ffffff" stroke-width="1"><title>{_text(story)}, {(span.end_ms - span.start_ms) / 1_000:.2f} s'
        "</title></rect>"
    )
    if span.broken:
        yield f'<line class="mark" x1="{x + width - 2:.1f}" y1="{y}" x2="{x + width - 2:.1f}" y2="{y + _BAR}"/>'
    for label in (f"{span.job} {span.name}", span.job):
        if len(visible(label)) * _LETTER + 10 <= width:
            fill = quoteattr(colours[1])
            yield f'<text x="{x + 6:.1f}" y="{y + 14}" style="fill:{fill[1:-1]}">{_text(label)}</text>'
            return


def _legend(timeline: Timeline, jobs: Sequence[str], y: int) -> Iterator[str]:
    last = {span.job: span for span in timeline.spans}
    column_width = (_WIDTH - 32) // _LEGEND_COLUMNS
    for place, job in enumerate(jobs[:_LEGEND_MAX]):
        x = 16 + place % _LEGEND_COLUMNS * column_width
        row_y = y + place // _LEGEND_COLUMNS * _LEGEND_ROW
        yield f'<rect x="{x}" y="{row_y - 10}" width="12" height="12" rx="2" fill="{_COLOURS[place % 10][0]}"/>'
        label = _short(visible(f"{job} {last[job].name}"), 32)
        yield f'<text x="{x + 18}" y="{row_y}">{escape(label)}: {_text(last[job].outcome or "running")}</text>'
    row_y = y + -(-min(len(jobs), _LEGEND_MAX) // _LEGEND_COLUMNS) * _LEGEND_ROW
    if len(jobs) > _LEGEND_MAX:
        yield f'<text class="small" x="16" y="{row_y}">and {len(jobs) - _LEGEND_MAX} more jobs</text>'
    marks_y = y - 30
    yield f'<rect class="free" x="16" y="{marks_y - 10}" width="12" height="12" stroke="#cccccc"/>'
    yield f'<text class="small" x="34" y="{marks_y}">free GPU</text>'
    yield f'<line class="mark" x1="110" y1="{marks_y - 10}" x2="110" y2="{marks_y + 2}"/>'
    yield f'<text class="small" x="120" y="{marks_y}">the attempt ended without success</text>'


def _short(text: str, letters_max: int) -> str:
    return text if len(text) <= letters_max else text[: letters_max - 1] + "…"
