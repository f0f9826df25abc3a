"""Widgets of `stoker top`: a list in which one row is chosen, a page on one thing, a text, and a question.

Keys that were typed quickly may arrive when what they were meant for is closed: nothing is closed twice.

Rules: R1  only cells that changed are drawn again
       R2  the chosen row is remembered by what it stands for, so it stays chosen when others come and go
       R3  the titles stay where they are while rows scroll
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import takewhile
from typing import ClassVar, Final

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.events import Key
from textual.geometry import Region, Size
from textual.message import Message
from textual.screen import ModalScreen, Screen
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import Static

from stoker.cli.top.picture import Sheet

_CHOSEN: Final = Style(reverse=True)
_CHOSEN_ELSEWHERE: Final = Style(bold=True)
_HEAD: Final = Style(bold=True, dim=True)


class Line(Static):
    """One line that is drawn again only when it says something else."""

    said = ""

    def say(self, text: str) -> None:
        """`text` may hold colours; nothing else that acts on a terminal."""
        if text != self.said:
            self.said = text
            self.update(Text.from_ansi(text), layout=False)


class RowList(ScrollView, can_focus=True):
    """A sheet. Posts `Opened` when the chosen row is opened, and `Moved` when another is chosen or scrolled to."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("home,g", "move(-1000000)", show=False),
        Binding("end,G", "move(1000000)", show=False),
        Binding("enter", "open", show=False),
    ]

    class Opened(Message):
        """A person wants to see more of this."""

        def __init__(self, key: str) -> None:
            super().__init__()
            self.key = key

    class Moved(Message):
        """The rows in sight, or the chosen one, have changed."""

    def __init__(self, empty: str, id: str) -> None:
        """`empty` is said where there is no row."""
        super().__init__(id=id)
        self._sheet = Sheet("", [])
        self._empty = empty
        self._chosen = 0
        self._title = ""

    @property
    def key(self) -> str | None:
        """The key of the chosen row."""
        return self._sheet.rows[self._chosen][0] if self._sheet.rows else None

    @property
    def sight(self) -> tuple[int, int]:
        """The first and the last row in sight, counted from 1."""
        first = self.scroll_offset.y
        return first + 1, min(len(self._sheet.rows), first + self._room)

    @property
    def _room(self) -> int:
        return max(1, self.size.height - 1)

    def entitle(self, title: str) -> None:
        """Say above it what it is."""
        if self._title != title:
            self._title = title
            self.border_title = Text(f" {title} ")

    def show(self, sheet: Sheet, empty: str = "") -> None:
        """Replace what is shown."""
        before, key = self._sheet, self.key
        self._sheet, self._empty = sheet, empty or self._empty
        keys = [each for each, _ in sheet.rows]
        self._chosen = keys.index(key) if key in keys else max(0, min(self._chosen, len(keys) - 1))
        if len(before.rows) != len(keys) or before.head != sheet.head or not keys or key != self.key:
            self.virtual_size = Size(self.size.width, len(keys) + 1)
            self.refresh()
        else:
            self._refresh_changed(before)
        self._keep_in_sight()

    def _refresh_changed(self, before: Sheet) -> None:
        """Draw again only the cells that changed (R1)."""
        top = self.scroll_offset.y
        seen = slice(top, top + self._room)
        for at, ((_, was), (_, now)) in enumerate(zip(before.rows[seen], self._sheet.rows[seen], strict=True)):
            if was != now:
                first, last = _difference(_text(was), _text(now))
                self.refresh(Region(first, at + 1, last - first, 1))

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        if y == 0:
            return self._strip(_text(self._sheet.head), width, _HEAD)
        at = self.scroll_offset.y + y - 1
        rows = self._sheet.rows
        if at >= len(rows):
            return self._strip(Text(f" {self._empty}" if y == 1 and not rows else ""), width, Style(dim=True))
        chosen = _CHOSEN if self.has_focus else _CHOSEN_ELSEWHERE
        return self._strip(_text(rows[at][1]), width, chosen if at == self._chosen else Style())

    def _strip(self, text: Text, width: int, over: Style) -> Strip:
        """One line of exactly `width` cells; `over` lies over its own colours."""
        segments = [
            Segment(segment.text, (segment.style or Style()) + over)
            for segment in text.render(self.app.console)
            if segment.text
        ]
        return Strip(segments).adjust_cell_length(width, over)

    def action_move(self, by: int) -> None:
        chosen = max(0, min(self._chosen + by, len(self._sheet.rows) - 1))
        top = self.scroll_offset.y
        for at in (self._chosen, chosen):
            self.refresh(Region(0, at - top + 1, self.size.width, 1))
        self._chosen = chosen
        self._keep_in_sight()
        self.post_message(self.Moved())

    def action_page(self, by: int) -> None:
        self.action_move(by * self._room)

    def action_open(self) -> None:
        if self.key is not None:
            self.post_message(self.Opened(self.key))

    def _keep_in_sight(self) -> None:
        top = self.scroll_offset.y
        wanted = min(max(top, self._chosen - self._room + 1), self._chosen)
        wanted = max(0, min(wanted, len(self._sheet.rows) - self._room))
        if wanted != top:
            self.scroll_to(y=wanted, animate=False, force=True, immediate=True)

    def on_resize(self) -> None:
        self.virtual_size = Size(self.size.width, len(self._sheet.rows) + 1)
        self._keep_in_sight()

    def on_focus(self) -> None:
        self.refresh()

    def on_blur(self) -> None:
        self.refresh()


@lru_cache(maxsize=1_024)
def _text(line: str) -> Text:
    """A line with its colours. Only those in sight are taken apart."""
    return Text.from_ansi(line)


def _difference(was: Text, now: Text) -> tuple[int, int]:
    """From the first to behind the last cell in which two lines differ; whole lines where colours do."""
    if was.spans != now.spans:
        return 0, max(was.cell_len, now.cell_len)
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(was.plain, now.plain, strict=False)))
    rest = zip(reversed(was.plain[same:]), reversed(now.plain[same:]), strict=False)
    end = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], rest)) if was.cell_len == now.cell_len else 0
    tail = now[len(now.plain) - end :].cell_len if end else 0
    return now[:same].cell_len if same else 0, max(was.cell_len, now.cell_len) - tail


class Page(Screen[None]):
    """One thing close up; `write` is called again and again, so that it stays fresh."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter", "back", show=False),
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
        if not self.is_mounted or not self.query("#body"):  # a page that closes loses its widgets first
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
        if not self.query("#log"):
            return
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
