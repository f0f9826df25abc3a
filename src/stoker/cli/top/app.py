"""`stoker top`: the application that watches a cluster and acts on it, in one terminal.

Rules: A1  a look is taken every second, unless the last one isn't back; the picture stays while none comes
       A2  a server that doesn't answer is said to be away, and asked again; a picture that comes from a standby is
           said to be one
       A3  nothing is ended before a person said yes
       A4  `q`, Ctrl-C and every signal that asks to end leave the terminal as it was, whatever is being asked
       L1  what runs comes first, the newest on top; then what waits, in about the order in which it will be looked at;
           then, if wanted, what ended
       L2  a look costs four or five requests, however long the queue is: of what waits the first are shown, and how
           many aren't is said
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import ClassVar, Final, TypeVar

import click
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Input

from stoker.brain.domain.errors import StokerError
from stoker.cli.clock import clock_text, now_ms
from stoker.cli.display.job_details import why_lines
from stoker.cli.display.messages import NoticeBuffer
from stoker.cli.display.safe_text import visible
from stoker.cli.server import LOOK_PATIENCE_S
from stoker.cli.top.picture import (
    job_page,
    job_sheet,
    log_lines,
    matching,
    node_page,
    node_sheet,
    rule_title,
    summary_line,
)
from stoker.cli.top.widgets import Line, Page, Question, RowList, TextPane
from stoker.wire.client import AsyncClient, JobListQuery, LogQuery
from stoker.wire.client.trust import Credentials
from stoker.wire.rest.cluster import ClusterView
from stoker.wire.rest.job import JobView
from stoker.wire.rest.node import NodeView
from stoker.wire.rest.why import WhyView

Answer = TypeVar("Answer")

LOOK_S: Final = 1.0
ANSWER_S: Final = 5.0
"""After that a person is told that what is seen is old."""
MESSAGE_S: Final = 4.0
SHOWN_MAX: Final = 200
"""Jobs of each kind."""
OFFSET_MAX: Final = 100_000
"""A server skips no more."""
LOG_LINES: Final = 200
_LIVE: Final = "running,starting,stopping"
_WAITING: Final = "pending,held"
_ENDED: Final = "succeeded,failed,cancelled,timeout,out_of_memory,node_failed"
KEYS: Final = "enter open  c cancel  h hold  r release  w why  / filter  ? help  q quit"
NODE_KEYS: Final = "esc back  up/down scroll"
PAGE_KEYS: Final = "esc back  up/down scroll  c cancel  h hold  r release"
HELP: Final = """\
up, down, home, end   choose a row         tab  nodes or jobs
enter  open a job with its last output, or a node
c      cancel the job, after a question
h      hold it, while it waits             r    release it
w      why it waits, or how it ended
/      show only jobs with these words     esc  show all again
a      show jobs that have ended too       q    quit

■ a GPU in use   □ a free one   ✗ one that can't be used"""


@dataclass(frozen=True, slots=True)
class Look:
    cluster: ClusterView
    nodes: list[NodeView]
    jobs: list[JobView]
    left_out: int
    """Jobs that run or wait and aren't shown."""


@dataclass(frozen=True, slots=True)
class JobLook:
    """One job, close up."""

    job: JobView
    why: WhyView
    log: str
    """Its last lines, with line ends, or why there are none. Holds control characters."""


class TopApp(App[int]):
    """The picture. Its return value is the exit status."""

    ENABLE_COMMAND_PALETTE = False
    CSS_PATH = "top.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "leave(0)", show=False),
        Binding("ctrl+c,ctrl+q", "leave(0)", show=False, priority=True),
        Binding("ctrl+z", "suspend_process", show=False, priority=True),
        Binding("question_mark", "help", show=False),
        Binding("slash", "filter", show=False),
        Binding("escape", "unfilter", show=False),
        Binding("a", "toggle_ended", show=False),
        Binding("w", "why", show=False),
        Binding("c", "order('cancel')", show=False),
        Binding("h", "order('hold')", show=False),
        Binding("r", "order('release')", show=False),
    ]

    def __init__(
        self,
        client: AsyncClient,
        *,
        orders: AsyncClient | None = None,
        told: Callable[[], str] = str,
        every_s: float = LOOK_S,
    ) -> None:
        """`orders` is the client that gives them, if it isn't the one that looks. `told` says what that one has noticed
        about its answers since it was asked last."""
        super().__init__(ansi_color=True)
        self._client = client
        self._orders = orders or client
        self._told = told
        self._every_s = every_s
        self._looks = False
        self._seen: Look | None = None
        self._ended = False
        self._words = ""
        self._trouble = ""
        self._away = False
        self._summary_line, self._trouble_line = Line(id="summary"), Line(id="trouble")
        self._node_list = RowList("asking for nodes", id="nodes")
        self._job_list = RowList("asking for jobs", id="jobs")
        prompt = "words that a job must have; esc shows all"
        self._filter = Input(placeholder=prompt, id="filter", compact=True, select_on_focus=False)
        self._trouble_line.display = self._filter.display = False

    def compose(self) -> ComposeResult:
        yield from (self._summary_line, self._trouble_line, self._node_list, self._job_list, self._filter)
        yield Line(classes="keys")

    async def on_mount(self) -> None:
        self.theme = "ansi-dark"
        self._job_list.focus()
        self._say()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self.action_leave, 128 + number)
        self.set_interval(self._every_s, self._look)
        self._look()

    async def on_unmount(self) -> None:
        await self._client.close()
        await self._orders.close()

    def action_leave(self, status: int) -> None:
        self.exit(status)

    def _look(self) -> None:
        if not self._looks:  # A1
            self._looks = True
            self.run_worker(self._look_once(), group="look")

    async def _look_once(self) -> None:
        try:
            async with asyncio.timeout(ANSWER_S):
                self._seen = await take_look(self._client, ended=self._ended)
            self._trouble, self._away = visible(self._told()), False
        except TimeoutError:
            self._away = True
            self._trouble = f"waiting: the control plane gives no answer for {ANSWER_S:g} s"
        except StokerError as fault:
            self._away = True
            self._trouble = f"waiting: {visible(fault.refusal.message)}"
        finally:
            self._looks = False
        self._draw()
        if isinstance(self.screen, Page):
            await self._look_closely(self.screen)

    async def _look_closely(self, page: Page) -> None:
        page.warn(self._trouble)
        if page.job is None or self._away:
            return
        try:
            seen = await look_at_job(self._client, page.job)
        except StokerError as fault:
            page.warn(visible(fault.refusal.message))
        else:
            page.write(job_page(seen, self._room, now_ms()), log_lines(seen.log))

    def _draw(self) -> None:
        """Everything, as far as it has changed."""
        self._trouble_line.say(self._trouble)
        if self._trouble_line.display != bool(self._trouble):
            self._trouble_line.display = bool(self._trouble)
        if self._seen is not None:
            self._draw_look(self._seen)

    def _draw_look(self, look: Look) -> None:
        room, nodes = self._room, self._node_list
        self._summary_line.say(summary_line(look.cluster, room, clock_text()))
        # A third of the window at most, so that the queue keeps the most of it.
        height = min(max(1, len(look.nodes)), max(3, self.size.height // 3 - 2)) + 2
        if nodes.size.height != height - 1:
            nodes.styles.height = height
        nodes.show(node_sheet(look.nodes, room), "no node has joined: `stoker agent` runs on each")
        found = matching(look.jobs, self._words)
        self._job_list.show(job_sheet(found, room, now_ms()), self._nothing(look))
        self._entitle(look, len(found))

    @property
    def _room(self) -> int:
        """Cells of a line between the margins."""
        return self.size.width - 2

    def _nothing(self, look: Look) -> str:
        if self._words and look.jobs:
            return f"no job here has the words: {visible(self._words)}"
        return "nothing runs or waits: `stoker submit` makes a job" if not self._ended else "there are no jobs"

    def _entitle(self, look: Look, found: int) -> None:
        """What is in sight, of how much."""
        self._node_list.entitle(rule_title("nodes", self._node_list.sight, len(look.nodes)))
        more = f", {look.left_out} more wait" if look.left_out else ""
        words = f" with: {visible(self._words)}" if self._words else ""
        self._job_list.entitle(f"{rule_title('jobs', self._job_list.sight, found)}{more}{words}")

    def on_row_list_moved(self) -> None:
        if self._seen is not None:
            self._entitle(self._seen, len(matching(self._seen.jobs, self._words)))

    def on_resize(self) -> None:
        if self._seen is not None:
            self.call_after_refresh(self._draw_look, self._seen)

    def on_row_list_opened(self, opened: RowList.Opened) -> None:
        look = self._seen
        if look is None:
            return
        if self._node_list.has_focus:
            node = next(each for each in look.nodes if each.name == opened.key)
            self._show(Page(f"node {node.name}", NODE_KEYS, None), node_page(node, self._room))
            return
        self._show(Page(f"job {opened.key}", PAGE_KEYS, opened.key), "asking")
        self._look()

    def _show(self, page: Page, text: str) -> None:
        self.push_screen(page)
        page.call_after_refresh(page.write, text)

    def _chosen(self) -> JobView | None:
        """The job that a key is about."""
        jobs = self._seen.jobs if self._seen else []
        page = self.screen
        key = page.job if isinstance(page, Page) else self._job_list.key
        return next((job for job in jobs if job.id == key), None)

    def action_help(self) -> None:
        self.push_screen(TextPane("keys", HELP))

    def action_toggle_ended(self) -> None:
        self._ended = not self._ended
        self._say("what has ended is shown too" if self._ended else "what has ended isn't shown")
        self._look()

    def action_filter(self) -> None:
        self._filter.display = True
        self._filter.focus()

    def action_unfilter(self) -> None:
        self._filter.value = ""
        self._close_filter()

    def on_input_changed(self, changed: Input.Changed) -> None:
        self._words = changed.value
        self._draw()

    def on_input_submitted(self) -> None:
        self._close_filter()

    def _close_filter(self) -> None:
        self._filter.display = False
        self._job_list.focus()

    async def action_why(self) -> None:
        job = self._chosen()
        if job is None:
            self._say("no job is chosen")
            return
        answer = await self._try(self._client.why(job.id))
        if answer is not None:
            self.push_screen(TextPane(f"why {job.id}", "\n".join(why_lines(answer, whole=True))))

    def action_order(self, verb: str) -> None:
        job = self._chosen()
        if job is None:
            self._say("no job is chosen")
        elif verb == "cancel":
            where = f", {job.state.value} on {job.total_gpus} GPUs" if job.started_at else ""
            question = f"Cancel job {job.id} ({visible(job.name)}){where}?"
            self.push_screen(Question(question), lambda is_yes: self._order(job.id, verb) if is_yes else None)
        else:
            self._order(job.id, verb)

    def _order(self, job_id: str, verb: str) -> None:
        self.run_worker(self._give(job_id, verb), group="orders")

    async def _give(self, job_id: str, verb: str) -> None:
        orders = {"cancel": self._orders.cancel, "hold": self._orders.hold, "release": self._orders.release}
        told = await self._try(orders[verb](job_id))
        if told is not None:
            self._say(", ".join(f"job {job.id} is {job.state.value}" for job in told.jobs[:1]))
            self._look()

    async def _try(self, answer: Awaitable[Answer]) -> Answer | None:
        """None when it was refused, which is said."""
        try:
            return await answer
        except StokerError as fault:
            self._say(f"{fault.refusal.message} [{fault.refusal.code}]")
            return None

    def _say(self, text: str = "") -> None:
        """A message in place of the keys, for a while."""
        lines = self.screen.query(".keys").results(Line)
        keys = self.screen.keys if isinstance(self.screen, Page) else KEYS
        for line in lines:  # one, or none above which a question is asked
            line.say(click.style(visible(text), bold=True) if text else keys)
        if text:
            self.set_timer(MESSAGE_S, self._say)


async def take_look(client: AsyncClient, *, ended: bool) -> Look:
    """Raises: StokerError."""
    live = await client.jobs(JobListQuery(state=_LIVE, limit=SHOWN_MAX))
    waiting = await client.jobs(JobListQuery(state=_WAITING, limit=SHOWN_MAX))
    if waiting.total > len(waiting.jobs):
        # A list is newest first, and those that wait longest are at its end.
        skipped = min(waiting.total - SHOWN_MAX, OFFSET_MAX)
        waiting = await client.jobs(JobListQuery(state=_WAITING, limit=SHOWN_MAX, offset=skipped))
    done = (await client.jobs(JobListQuery(state=_ENDED, limit=SHOWN_MAX))).jobs if ended else []
    in_line = sorted(waiting.jobs, key=lambda job: (job.state != "pending", -job.priority, int(job.id.split("_")[0])))
    # One that moved between two answers is in both.
    jobs = {job.id: job for job in (*done, *in_line, *live.jobs)}
    order = dict.fromkeys(job.id for job in (*live.jobs, *in_line, *done))
    shown = len(live.jobs) + len(waiting.jobs)
    return Look(
        cluster=await client.status(),
        nodes=await client.nodes(),
        jobs=[jobs[job_id] for job_id in order],
        left_out=max(0, live.total + waiting.total - shown),
    )


async def look_at_job(client: AsyncClient, job_id: str) -> JobLook:
    """Raises: StokerError."""
    return JobLook(job=await client.job(job_id), why=await client.why(job_id), log=await _log_of(client, job_id))


async def _log_of(client: AsyncClient, job_id: str) -> str:
    try:
        return (await client.logs(job_id, LogQuery(tail=LOG_LINES))).data.decode(errors="replace")
    except StokerError as fault:
        return f"({visible(fault.refusal.message)})\n"


def run_top(servers: str, credentials: Credentials) -> int:
    """Run until a person leaves; the exit status. Raises: StokerError `bad_server`."""
    kept = NoticeBuffer()
    token, ca_file, insecure, _ = credentials
    looks = AsyncClient(
        servers, token=token, ca_file=ca_file, insecure=insecure, patience_s=LOOK_PATIENCE_S, notify=kept
    )
    orders = AsyncClient(servers, token=token, ca_file=ca_file, insecure=insecure)
    return TopApp(looks, orders=orders, told=kept.take).run(mouse=False) or 0
