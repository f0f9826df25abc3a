"""Progress of the demo as a person watches it: a live picture on a terminal, plain lines elsewhere."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import click

from stoker.cli.clock import mono_s
from stoker.cli.display.canvas import Canvas, open_canvas
from stoker.cli.display.safe_text import visible
from stoker.cli.display.table import Column, table_lines
from stoker.cli.display.terminal import is_dumb, is_terminal, paints, size
from stoker.wire.rest.job import JobView
from stoker.wire.rest.node import GpuListView

NOTES_MAX: Final = 6


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
