"""Ten tasks of a person in the web pages, done in a real Chromium with every click counted.

`python -m tools.web_tasks [FILE]` starts `stoker up` with simulated GPUs and a mixed queue of real processes, does each
task from the start page on, sees that it was done, and writes the table, docs/explanation/web-tasks.md. A click is a
press of the mouse, into a field too; keys are named and aren't counted.
"""

import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from playwright.sync_api import Browser, Locator, Page, expect

from stoker.brain.domain.lifecycle import JobState
from stoker.wire.client import Client
from stoker.wire.rest.job import JobListQuery, JobView
from tools.web_screenshots import HTTP_PORT, browser_program, chromium, fill, small_cluster

PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "explanation" / "web-tasks.md"
CLICKS_MAX: Final = 3
PATIENCE_MS: Final = 30_000
_WIDE: Final = {"width": 1240, "height": 900}
_HEAD: Final = """# Ten tasks, in clicks

What people do most with the web pages, each from the start page on. `python -m tools.web_tasks` does them in a real
Chromium against a cluster with simulated GPUs, sees that each was done, and writes this table. A click is a press of
the mouse, into a field too; what is typed and the Enter key aren't counted.

| task | clicks | how |
|---|---|---|
"""


class Task(NamedTuple):
    """One task as it was done."""

    what: str
    clicks: int
    how: list[str]


class Hand:
    """Somebody's hand at the mouse and keys of one page, counting."""

    def __init__(self, page: Page, client: Client, waiting: str) -> None:
        self.page, self.client, self.waiting = page, client, waiting
        self.clicks = 0
        self.how: list[str] = []

    def click(self, place: str | Locator, word: str) -> None:
        self.page.wait_for_load_state()  # buttons do something once the page's scripts have run
        self._at(place).click()
        self.clicks += 1
        self.how.append(f"*{word}*")

    def type(self, place: str, text: str, word: str) -> None:
        """Type into a field, which is clicked first unless the keys go there already."""
        field = self._at(place)
        if not field.evaluate("each => each === document.activeElement"):
            self.click(field, word)
        field.fill(text)
        self.how.append(f"type `{text}`")

    def enter(self) -> None:
        self.page.keyboard.press("Enter")
        self.how.append("Enter")

    def see(self, place: str, text: str) -> None:
        expect(self.page.locator(place)).to_contain_text(text, timeout=PATIENCE_MS)

    def _at(self, place: str | Locator) -> Locator:
        return (self.page.locator(place) if isinstance(place, str) else place).first


def _failed(hand: Hand) -> None:
    hand.click("text=detector-eval >> xpath=ancestor::tr >> a.row", "Failed last: the job's id")
    hand.see("main", "its command exited with code 1")
    hand.see("#log", "CUDA out of memory")


def _why(hand: Hand) -> None:
    hand.type(".find input", hand.waiting, "Job id")
    hand.enter()
    hand.see("#why", "it needs 40 GPUs")
    hand.see("#why", "Planned start")


def _who(hand: Hand) -> None:
    hand.see("main", "Who uses it now")
    hand.see("main", "vision")


def _drain(hand: Hand) -> None:
    hand.click("nav >> text=Nodes", "Nodes")
    hand.click("[data-drain=node-5]", "Drain…")
    hand.type("#ask input", "bad cable", "Reason")
    hand.enter()
    hand.see("#node-node-5", "bad cable")
    assert hand.client.node("node-5").drain == "bad cable"


def _again(hand: Hand) -> None:
    hand.click("text=detector-eval >> xpath=ancestor::tr >> a.row", "Failed last: the job's id")
    hand.click("#again", "Submit again…")
    hand.type("[name=memory]", "16", "Memory, GiB")
    hand.enter()
    hand.page.wait_for_url("**/jobs/*")
    job = _newest(hand.client)
    assert (job.name, job.memory_mb) == ("detector-eval", 16 * 1_024)


def _cancel(hand: Hand) -> None:
    hand.click("a.tile:has-text('jobs wait')", "jobs wait")
    hand.click(f"#job-{hand.waiting} input", "the row's box")
    hand.click("#bulk [data-order=cancel]", "Cancel")
    hand.see("#ask", "pretrain-70b")
    hand.enter()
    hand.page.wait_for_selector(f"#job-{hand.waiting}", state="detached", timeout=PATIENCE_MS)
    assert _one(hand.client, hand.waiting).state is JobState.CANCELLED


def _hour(hand: Hand) -> None:
    box = hand.page.locator("#map").bounding_box()
    assert box is not None, "the map is drawn"
    hand.page.mouse.click(box["x"] + 12, box["y"] + 30)
    hand.clicks += 1
    hand.how.append("*the GPU's cell*")
    hand.see("#chosen-about", "node-1, GPU 0")
    hand.see("#hour", "its last hour")


def _month(hand: Hand) -> None:
    hand.click("nav >> text=Tenants", "Tenants")
    hand.click("main >> text=Month", "Month")
    hand.see("main", "vision")
    hand.see("#usage-time", "GPU hours")


def _planned(hand: Hand) -> None:
    hand.click("nav >> text=Timeline", "Timeline")
    hand.see("#live", "pretrain-70b")
    hand.see("#live", "node-1")


def _shell(hand: Hand) -> None:
    hand.click("a.tile:has-text('jobs run')", "jobs run")
    hand.click("text=pretrain-7b", "the job")
    hand.click("#terminal-open", "Open a terminal in it")
    expect(hand.page.locator("#terminal-said")).to_have_text("", timeout=PATIENCE_MS)
    hand.page.keyboard.type("echo here-$((6 * 7))\n")
    hand.see(".xterm-rows", "here-42")
    hand.how.append("type")


TASKS: Final[tuple[tuple[str, Callable[[Hand], None]], ...]] = (
    ("Find my job that failed, and its last error", _failed),
    ("Why does job 18 wait, and when does it start?", _why),
    ("Who uses the cluster now?", _who),
    ("How hot and how busy was this GPU in the last hour?", _hour),
    ("How much has my team used this month?", _month),
    ("What starts next, when, and where?", _planned),
    ("A shell inside a job that runs", _shell),
    ("Submit the failed job again with twice the memory", _again),
    ("Drain a node, and say why", _drain),
    ("Cancel what waits, and see first what is meant", _cancel),
)
"""In this order: the last ones change what the first ones look at."""


def done(browser: Browser, client: Client, waiting: str, url: str) -> Iterator[Task]:
    """Do each task from the start page on. Raises where one isn't done."""
    for what, do in TASKS:
        context = browser.new_context(viewport=_WIDE, locale="en-GB")  # type: ignore[arg-type]  # a size
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.goto(url)
        page.wait_for_selector("#pulse:not(.off)")
        expect(page.locator("#map-about")).to_contain_text("in use", timeout=PATIENCE_MS)
        hand = Hand(page, client, waiting)
        do(hand)
        context.close()
        yield Task(what, hand.clicks, hand.how)


def table(tasks: list[Task]) -> str:
    """Return the page with the table."""
    rows = [f"| {task.what} | {task.clicks} | {', '.join(task.how) or 'it stands there'} |" for task in tasks]
    return _HEAD + "\n".join(rows) + "\n"


def _newest(client: Client) -> JobView:
    return client.jobs(JobListQuery(limit=1)).jobs[0]


def _one(client: Client, job: str) -> JobView:
    found = client.job(job)
    assert isinstance(found, JobView), "one job was named"
    return found


def tried(browser: Browser) -> list[Task]:
    """Return the tasks as they were done in a browser, against a cluster of their own."""
    with tempfile.TemporaryDirectory() as place, small_cluster(Path(place)) as client:
        return list(done(browser, client, fill(client), f"http://127.0.0.1:{HTTP_PORT}"))


def main(path: Path) -> None:
    with chromium(browser_program()) as browser:
        tasks = tried(browser)
    path.write_text(table(tasks))
    print(f"{len(tasks)} tasks, {max(task.clicks for task in tasks)} clicks at most: {path}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE)
