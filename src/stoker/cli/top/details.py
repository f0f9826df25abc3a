"""Panes above the picture: details of one thing, a text, or a question.

Keys that were typed quickly may arrive when what they were meant for is closed: nothing is closed twice.
"""

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.events import Key
from textual.screen import ModalScreen, Screen
from textual.widgets import Static

from stoker.cli.top.row_list import Line


class Page(Screen[None]):
    """One thing close up; `write` is called again and again, so that it stays fresh."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter", "back", show=False),
        Binding("c", "app.order('cancel')", show=False),
        Binding("h", "app.order('hold')", show=False),
        Binding("r", "app.order('release')", show=False),
        Binding("down,j", "scroll(1)", show=False),
        Binding("up,k", "scroll(-1)", show=False),
        Binding("pagedown,space", "scroll(15)", show=False),
        Binding("pageup", "scroll(-15)", show=False),
        Binding("home,g", "scroll(-1000000)", show=False),
        Binding("end,G", "scroll(1000000)", show=False),
    ]

    def __init__(self, title: str, keys: str, job: str | None) -> None:
        """`job`: what orders are given to."""
        super().__init__()
        self._title = title
        self.keys = keys
        self._shown_title = ""
        self._text: str | None = None
        self._log: tuple[str, ...] = ()
        self.job = job

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="page", classes="" if self.job else "alone", can_focus=False) as page:
            page.border_title = Text(f" {self._title} ")
            yield Static("", id="body")
        log = Line(id="log")
        log.border_title = Text(" what rank 0 wrote last ")
        log.display = False
        yield log
        keys = Line(classes="keys")
        keys.say(self.keys)
        yield keys

    def warn(self, trouble: str) -> None:
        """Say beside the title that what is seen may be old; empty = it isn't."""
        title = f" {self._title} " if not trouble else f" {self._title} ({trouble}) "
        page = self.query_one("#page")
        if title != self._shown_title:
            self._shown_title = title
            page.border_title = Text(title)

    def write(self, text: str, log: Sequence[str] | None = None) -> None:
        """Draw what has changed. Of the log the last lines are seen that there is room for."""
        if not self.is_mounted:
            return
        if text != self._text:
            self._text = text
            self.query_one("#body", Static).update(Text.from_ansi(text))
        if log is not None:
            self._log = tuple(log)
            self.query_one("#log").display = True
            self.call_after_refresh(self._write_log)

    def on_resize(self) -> None:
        self.call_after_refresh(self._write_log)

    def _write_log(self) -> None:
        pane = self.query_one("#log", Line)
        pane.say("\n".join(self._log[-max(1, pane.size.height) :]) or "(nothing yet)")

    def action_scroll(self, by: int) -> None:
        self.query_one("#page", VerticalScroll).scroll_relative(y=by, animate=False)

    def action_back(self) -> None:
        if self.is_current:
            self.dismiss()


class _Box(ModalScreen[bool]):
    """A box in the middle of the screen, which is closed by an answer."""

    def __init__(self, content: Text, *, title: str = "", keys: str, classes: str = "box") -> None:
        super().__init__()
        self._box = Static(content, classes=classes)
        self._box.border_subtitle = Text(keys)
        if title:
            self._box.border_title = Text(title)

    def compose(self) -> ComposeResult:
        yield self._box

    def action_answer(self, is_yes: bool) -> None:
        if self.is_current:
            self.dismiss(is_yes)


class TextPane(_Box):
    """A few words in the middle of the screen; any key closes them."""

    def __init__(self, title: str, text: str) -> None:
        super().__init__(Text.from_ansi(text), title=title, keys="any key closes this")

    def on_key(self, event: Key) -> None:
        event.stop()  # `q` closes this, and not what lies below
        self.action_answer(True)


class Question(_Box):
    """Yes or no; only `y` is yes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y,Y", "answer(True)", show=False),
        Binding("n,N,escape,q,enter", "answer(False)", show=False),
    ]

    def __init__(self, question: str) -> None:
        super().__init__(Text(question), keys="y yes  n no", classes="box question")
