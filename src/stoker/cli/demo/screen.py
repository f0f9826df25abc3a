"""Progress of the demo, as a live picture on a terminal and plain lines elsewhere, and its report at the end."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from stoker.cli.clock import mono_s
from stoker.cli.display.canvas import Canvas, open_canvas
from stoker.cli.display.job_details import job_columns
from stoker.cli.display.safe_text import visible
from stoker.cli.display.table import Column, show_table, table_lines
from stoker.cli.display.terminal import is_dumb, is_terminal, paints, size
from stoker.cli.display.timeline import Timeline, job_order, plain, text_lines
from stoker.cli.display.timeline_svg import svg
from stoker.wire.rest.job import JobView
from stoker.wire.rest.node import GpuListView

if TYPE_CHECKING:
    from stoker.cli.demo.run import DemoCheck, Evidence

NOTES_MAX: Final = 6
PICTURE: Final = "stoker-demo.svg"
WIDTH_MAX: Final = 120
WIDTH_PLAIN: Final = 80
_COLOURS: Final = ("blue", "yellow", "green", "magenta", "cyan", "bright_yellow", "bright_blue", "bright_magenta")


@contextmanager
def open_screen() -> Iterator["Screen"]:
    """Open the screen that suits stdout; a live picture is gone when it closes."""
    if not is_terminal() or is_dumb():
        yield Screen()
        return
    with open_canvas(keep=False) as canvas:
        yield Screen(canvas)


class Screen:
    """Jobs, GPUs and notes: drawn anew at each change on a canvas, without one a line for each change."""

    def __init__(self, canvas: Canvas | None = None) -> None:
        self._canvas = canvas
        self._began_s = mono_s()
        self._states: dict[str, str] = {}
        self._jobs: Sequence[JobView] = ()
        self._gpus: GpuListView | None = None
        self._notes: list[str] = []
        self._draw()

    def note(self, text: str) -> None:
        """Tell of something that happened."""
        line = f"[{mono_s() - self._began_s:5.1f}s] {visible(text)}"
        if self._canvas is None:
            click.echo(line)
        self._notes = [*self._notes, line][-NOTES_MAX:]
        self._draw()

    def show(self, jobs: Sequence[JobView], gpus: GpuListView) -> None:
        """Show the jobs, oldest first, and who holds the GPUs."""
        self._jobs, self._gpus = jobs, gpus
        self._draw()
        for job in jobs if self._canvas is None else ():
            if self._states.get(job.id) != job.state:
                self._states[job.id] = job.state
                self.note(f"job {job.id} {job.name}: {' on '.join(filter(None, (job.state.value, _place(job))))}")

    def _draw(self) -> None:
        if self._canvas is not None:
            head = f"{click.style(f'Stoker demo, {mono_s() - self._began_s:.0f}s', bold=True)}  {self._devices()}"
            table = table_lines(_columns(), self._jobs, wide=False, room=size().columns, paint=paints())
            notes = [click.style(line, dim=True) for line in self._notes]
            lines = [head, *table, *notes]
            self._canvas.draw(lines if paints() else [click.unstyle(line) for line in lines])

    def _devices(self) -> str:
        """One square per GPU: filled while a job holds it."""
        line = shown = ""
        for gpu in self._gpus.gpus if self._gpus else ():
            line += f" {visible(gpu.node)} " if gpu.node != shown else ""
            shown = gpu.node
            line += click.style("■", fg="cyan") if gpu.status == "busy" else click.style("□", fg="bright_black")
        return line


def _columns() -> list[Column[JobView]]:
    return [
        Column("ID", lambda job: job.id),
        Column("NAME", lambda job: job.name),
        Column("STATE", lambda job: job.state.value, coloured=True),
        Column("WHERE", _place),
    ]


def _place(job: JobView) -> str:
    """`demo-1, demo-2 (2 x 4 GPUs)` while an attempt lives; empty without one."""
    if job.state.value not in ("starting", "running"):
        return ""
    nodes = ", ".join(dict.fromkeys(task.node for task in job.attempts[-1].tasks))
    gang = f"{job.tasks} x " if job.tasks > 1 else ""
    return f"{nodes} ({gang}{job.gpu_count} GPU{'s' * (job.gpu_count != 1)})"


def write_picture(out: Path, timeline: Timeline, title: str) -> Path:
    """Write the timeline as an SVG file into `out`, and return its path."""
    path = out / PICTURE
    path.write_text(svg(timeline, title), encoding="utf-8")
    return path


def print_report(jobs: Sequence[JobView], seen: "Evidence", found: "Sequence[DemoCheck]", picture: Path) -> None:
    """Print the timeline, the jobs, the checks, and where the picture is."""
    click.echo("\nWho held which GPU when (a number is a job, ✗ an attempt without success):\n")
    _show_timeline(seen.timeline)
    click.echo()
    titles = ("ID", "NAME", "STATE", "GPUS", "WAITED", "RAN", "EXIT", "REASON")
    show_table(job_columns(0, titles), jobs, wide=False)  # every job has ended, so nothing is measured to now
    if seen.why is not None:
        click.echo(f"\nWhile job {seen.why.id} waited, `stoker why {seen.why.id}` said: {seen.why.message}")
    click.echo()
    for held, says in found:
        click.echo(f"{'ok  ' if held else 'FAILED'} {says}")
    good = sum(held for held, _ in found)
    click.echo(f"\n{good} of {len(found)} checks held. The same timeline as a picture: {picture}")


def _show_timeline(timeline: Timeline) -> None:
    lines = text_lines(timeline, min(WIDTH_MAX, size().columns) if is_terminal() else WIDTH_PLAIN)
    if not paints():
        click.echo(plain(lines))
        return
    colours = {job: _COLOURS[place % len(_COLOURS)] for place, job in enumerate(job_order(timeline))}
    for line in lines:
        click.echo("".join(click.style(piece.text, fg=colours.get(piece.job)) for piece in line))
