"""Report at the end of the demo: the timeline, the jobs, the checks, and the picture as a file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from stoker.cli.demo.jobs import GPUS_PER_NODE, NODES, DemoCheck, Evidence
from stoker.cli.display.formatting import ran, reason_line, waited
from stoker.cli.display.table import Column, show_table
from stoker.cli.display.terminal import is_terminal, paints, size
from stoker.cli.display.timeline import Timeline, job_order, plain, text_lines
from stoker.cli.display.timeline_svg import svg
from stoker.wire.rest.job import JobView

PICTURE: Final = "stoker-demo.svg"
WIDTH_MAX: Final = 120
WIDTH_PLAIN: Final = 80
_COLOURS: Final = ("blue", "yellow", "green", "magenta", "cyan", "bright_yellow", "bright_blue", "bright_magenta")


def write_picture(out: Path, timeline: Timeline) -> Path:
    """Write the timeline as an SVG file into `out`, and return its path."""
    path = out / PICTURE
    path.write_text(svg(timeline, f"Stoker demo: {NODES} nodes of {GPUS_PER_NODE} simulated GPUs"), encoding="utf-8")
    return path


def print_report(jobs: Sequence[JobView], seen: Evidence, found: Sequence[DemoCheck], picture: Path) -> None:
    """Print the timeline, the jobs, the checks, and where the picture is."""
    click.echo("\nWho held which GPU when (a number is a job, ✗ an attempt without success):\n")
    _show_timeline(seen.timeline)
    click.echo()
    show_table(_columns(), jobs, wide=False)
    if seen.why is not None:
        click.echo(f"\nWhile job {seen.why.id} waited, `stoker why {seen.why.id}` said: {seen.why.message}")
    click.echo()
    for held, says in found:
        click.echo(f"{'ok  ' if held else 'FAILED'} {says}")
    good = sum(held for held, _ in found)
    click.echo(f"\n{good} of {len(found)} checks held. The same timeline as a picture: {picture}")


def _columns() -> list[Column[JobView]]:
    now_ms = 0  # every job has ended, so nothing is measured to now
    return [
        Column("ID", lambda job: job.id, right=True),
        Column("NAME", lambda job: job.name, elastic=True),
        Column("STATE", lambda job: job.state.value, coloured=True),
        Column("GPUS", lambda job: job.total_gpus, right=True),
        Column("WAITED", lambda job: waited(job, now_ms), right=True),
        Column("RAN", lambda job: ran(job, now_ms), right=True),
        Column("EXIT", lambda job: job.exit_code, right=True),
        Column("REASON", lambda job: reason_line(job.reason), elastic=True),
    ]


def _show_timeline(timeline: Timeline) -> None:
    lines = text_lines(timeline, min(WIDTH_MAX, size().columns) if is_terminal() else WIDTH_PLAIN)
    if not paints():
        click.echo(plain(lines))
        return
    colours = {job: _COLOURS[place % len(_COLOURS)] for place, job in enumerate(job_order(timeline))}
    for line in lines:
        click.echo("".join(click.style(piece.text, fg=colours.get(piece.job)) for piece in line))
