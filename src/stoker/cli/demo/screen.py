"""How does a person watch the demo: a live picture on a terminal, plain lines elsewhere?"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol

import click

from stoker.cli.display.safe_text import visible
from stoker.cli.display.table import COLOURS
from stoker.cli.polling import mono_s
from stoker.wire.rest.gpu import GpuListView
from stoker.wire.rest.job import JobView

if TYPE_CHECKING:
    from rich.console import Group
    from rich.text import Text

NOTES_MAX: Final = 6


class Screen(Protocol):
    def note(self, text: str) -> None:
        """Something happened."""
        ...

    def show(self, jobs: Sequence[JobView], gpus: GpuListView | None) -> None:
        """How it stands, oldest job first."""
        ...


@contextmanager
def open_screen() -> Iterator[Screen]:
    """The screen that fits where stdout goes."""
    if not sys.stdout.isatty():
        yield LineScreen()
        return
    from rich.live import Live

    screen = LiveScreen()
    with Live(get_renderable=screen.picture, refresh_per_second=8, transient=True):
        yield screen


class LineScreen:
    """A line for each thing that happens and each change of a job's state."""

    def __init__(self) -> None:
        self._began_s = mono_s()
        self._states: dict[str, str] = {}

    def note(self, text: str) -> None:
        click.echo(f"[{mono_s() - self._began_s:5.1f}s] {visible(text)}")

    def show(self, jobs: Sequence[JobView], gpus: GpuListView | None) -> None:
        for job in jobs:
            if self._states.get(job.id) != job.state:
                self._states[job.id] = job.state
                self.note(f"job {job.id} {job.name}: {job.state.value}{where(job)}")


def where(job: JobView) -> str:
    """` on demo-1, demo-2 (2 x 4 GPUs)` while an attempt lives."""
    if job.state.value not in ("starting", "running"):
        return ""
    nodes = ", ".join(dict.fromkeys(task.node for task in job.attempts[-1].tasks))
    gang = f"{job.tasks} x " if job.tasks > 1 else ""
    return f" on {nodes} ({gang}{job.gpu_count} GPU{'s' * (job.gpu_count != 1)})"


class LiveScreen:
    """Jobs, GPUs and the last notes, drawn anew several times a second."""

    def __init__(self) -> None:
        self._began_s = mono_s()
        self._jobs: Sequence[JobView] = ()
        self._gpus: GpuListView | None = None
        self._notes: list[str] = []

    def note(self, text: str) -> None:
        self._notes = [*self._notes, f"{mono_s() - self._began_s:5.1f}s  {visible(text)}"][-NOTES_MAX:]

    def show(self, jobs: Sequence[JobView], gpus: GpuListView | None) -> None:
        self._jobs, self._gpus = jobs, gpus or self._gpus

    def picture(self) -> "Group":
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, header_style="bold", expand=False)
        for title in ("ID", "NAME", "STATE", "WHERE"):
            table.add_column(title, no_wrap=True)
        for job in self._jobs:
            state = job.state.value
            table.add_row(
                job.id, Text(visible(job.name)), Text(state, COLOURS.get(state, "red")), Text(where(job).strip())
            )
        head = Text(f"Stoker demo, {mono_s() - self._began_s:.0f}s  ", "bold").append_text(self._devices())
        return Group(head, table, Text("\n".join(self._notes), "dim"))

    def _devices(self) -> "Text":
        """One square per GPU: filled while a job holds it."""
        from rich.text import Text

        line = Text()
        shown = ""
        for gpu in self._gpus.gpus if self._gpus else ():
            line.append(f" {visible(gpu.node)} " if gpu.node != shown else "", "default")
            shown = gpu.node
            line.append("■" if gpu.status == "busy" else "□", "cyan" if gpu.status == "busy" else "bright_black")
        return line
