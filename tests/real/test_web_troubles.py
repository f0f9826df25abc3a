"""What befalls pages that are left open: cut and dead connections, hidden and frozen pages, wrong clocks, much text."""

import json
import re
import selectors
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from playwright.sync_api import Browser, Page, expect

from stoker.wire.client import Client, JobBody
from tests.real.pages import PATIENCE_MS, SHAPES, Visitor, shown_cluster
from tests.real.up_process import UpProcess

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]
COUNTING = "i=0; while sleep 0.1; do i=$((i + 1)); echo line $i; done"
HIDE = """(on) => {
  Object.defineProperty(document, "hidden", { configurable: true, get: () => on });
  document.dispatchEvent(new Event("visibilitychange"));
}"""
LONGEST_FRAME = """() => {
  window.longest = 0;
  let last = performance.now();
  const frame = (at) => {
    window.longest = Math.max(window.longest, at - last);
    last = at;
    requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
}"""
HEAP_MIB_MAX = 64
"""Of a page that was shown any amount of output."""

expect.set_options(timeout=PATIENCE_MS)


class Wire(threading.Thread):
    """A proxy before a server, whose connections can be cut, or die without a word as when a machine sleeps."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._server = socket.create_server(("127.0.0.1", 0))
        self._to = port
        self._lock = threading.Lock()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._server, selectors.EVENT_READ)
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._dead: list[socket.socket] = []
        self._stops = False
        self.url = f"http://127.0.0.1:{self._server.getsockname()[1]}"

    def run(self) -> None:
        while not self._stops:
            for key, _ in self._selector.select(0.05):
                with self._lock, suppress(OSError, KeyError):
                    self._forward(key.fileobj)  # type: ignore[arg-type]  # only sockets are registered

    def _forward(self, ready: socket.socket) -> None:
        if ready is self._server:
            near, _ = ready.accept()
            far = socket.create_connection(("127.0.0.1", self._to))
            for one, other in ((near, far), (far, near)):
                self._pairs[one] = other
                self._selector.register(one, selectors.EVENT_READ)
            return
        other = self._pairs[ready]
        try:
            data = ready.recv(65_536)
            if data:
                other.sendall(data)
                return
        except OSError:
            pass
        for each in (ready, other):
            self._selector.unregister(each)
            del self._pairs[each]
            each.close()

    def cut(self) -> None:
        """End every connection there is; new ones are made."""
        self._drop(keep_open=False)

    def die(self) -> None:
        """Nothing comes through the connections there are, and nobody is told; new ones are made."""
        self._drop(keep_open=True)

    def _drop(self, *, keep_open: bool) -> None:
        with self._lock:
            for each in list(self._pairs):
                self._selector.unregister(each)
                if keep_open:
                    self._dead.append(each)
                else:
                    each.close()
            self._pairs.clear()

    def close(self) -> None:
        self._stops = True
        self.join(10)
        for each in (*self._pairs, *self._dead, self._server):
            each.close()
        self._selector.close()


@contextmanager
def wire(port: int) -> Iterator[Wire]:
    made = Wire(port)
    made.start()
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def cluster(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    with shown_cluster(tmp_path_factory.mktemp("up"), 1) as up:
        yield up


@pytest.fixture(scope="module")
def client(cluster: UpProcess) -> Iterator[Client]:
    with Client(cluster.url) as made:
        yield made


@pytest.fixture
def proxy(cluster: UpProcess) -> Iterator[Wire]:
    with wire(cluster.http_port) as made:
        yield made


@pytest.fixture
def visitor(browser: Browser, proxy: Wire) -> Iterator[Visitor]:
    made = Visitor(browser, proxy.url, **SHAPES["wide"])
    yield made
    made.close()
    assert [each for each in made.complaints if "ERR_" not in each] == []


def numbers(page: Page) -> list[int]:
    """Of the lines that a counting job wrote."""
    return [int(line.split()[1]) for line in page.locator("#log").inner_text().splitlines() if line.startswith("line ")]


def test_a_page_whose_connections_died_without_a_word_goes_on_by_itself(
    browser: Browser, visitor: Visitor, proxy: Wire, client: Client
) -> None:
    page = visitor.goto("/queue")
    expect(page.locator("#pulse")).not_to_have_class("pulse off")
    page.evaluate("window.kept = 1")
    other = Visitor(browser, proxy.url, **SHAPES["wide"])
    events = other.goto("/activity")
    expect(events.locator("#events li").first).to_be_attached()
    proxy.die()
    expect(page.locator("#stale")).to_contain_text("No word from the control plane")
    job = client.submit(JobBody(name="meanwhile", command="true", hold=True)).id
    expect(page.locator(f"#job-{job}")).to_be_visible(timeout=6 * PATIENCE_MS)
    expect(page.locator("#stale")).to_be_hidden(timeout=6 * PATIENCE_MS)
    assert page.evaluate("window.kept") == 1, "it was never loaded anew"
    expect(events.locator("#events")).to_contain_text(f"job {job}", timeout=6 * PATIENCE_MS)
    other.close()
    client.cancel(job)


def test_output_goes_on_where_it_was_after_a_cut_a_dead_connection_and_a_hidden_page(
    visitor: Visitor, proxy: Wire, client: Client
) -> None:
    job = client.submit(JobBody(name="counts", command=COUNTING)).id
    page = visitor.goto(f"/jobs/{job}")
    expect(page.locator("#log")).to_contain_text("line 5\n")
    page.evaluate("window.first = document.querySelector('#log span')")
    for trouble in (proxy.cut, lambda: page.evaluate(HIDE, arg=True), proxy.die):
        trouble()
        page.wait_for_timeout(1_500)
        page.evaluate(HIDE, arg=False)
        seen = numbers(page)[-1]
        expect(page.locator("#log")).to_contain_text(f"line {seen + 10}\n", timeout=3 * PATIENCE_MS)
    assert page.evaluate("window.first.isConnected"), "what was there stayed there"
    told = numbers(page)
    assert told == list(range(1, len(told) + 1)), "no line is missing, none came twice"
    client.cancel(job)
    expect(page.locator("#log-about")).to_contain_text("It has ended.")


def test_who_reads_further_up_keeps_the_place_while_more_comes(visitor: Visitor, client: Client) -> None:
    command = f"seq -f 'old %g' 2000; {COUNTING}"
    job = client.submit(JobBody(name="counts", command=command)).id
    page = visitor.goto(f"/jobs/{job}")
    expect(page.locator("#log span", has_text="line 2").first).to_be_attached()
    log = page.locator("#log")
    log.evaluate("(log) => { log.scrollTop = 300; }")
    page.wait_for_timeout(500)
    begun = log.locator("span").count()
    expect(log.locator("span").nth(begun + 10)).to_be_attached()
    assert log.evaluate("(log) => log.scrollTop") == 300
    client.cancel(job)


def test_the_end_of_output_is_in_sight_however_long_its_lines_are(visitor: Visitor, client: Client) -> None:
    command = "printf '%08d' $(seq 3000); echo; seq 50; printf '%08d' $(seq 3000); echo; echo THE END; sleep 600"
    job = client.submit(JobBody(name="long-lines", command=command)).id
    page = visitor.goto(f"/jobs/{job}")
    expect(page.locator("#log > div:last-child > span:last-child")).to_contain_text("THE END")
    log = page.locator("#log")
    for _ in range(60):
        if log.evaluate("(log) => log.scrollHeight - log.scrollTop - log.clientHeight < 40"):
            break
        page.wait_for_timeout(100)
    else:
        pytest.fail("it doesn't follow")
    client.cancel(job)


def test_a_page_goes_on_though_the_one_with_the_stream_passes_nothing_on(visitor: Visitor, client: Client) -> None:
    """As one that the browser has frozen, since nobody looked at it for long."""
    visitor.page.add_init_script("BroadcastChannel.prototype.postMessage = () => {};")
    holder = visitor.goto("/queue")
    expect(holder.locator("#pulse")).not_to_have_class("pulse off")
    page = visitor.opened()
    page.goto(f"{visitor.url}/queue")
    page.evaluate("document.addEventListener('tick', () => window.ticks++)")
    page.bring_to_front()
    page.wait_for_timeout(1_000)
    page.evaluate("window.ticks = 0")
    for _ in range(int(3 * PATIENCE_MS / 500)):
        page.wait_for_timeout(500)
        if page.evaluate("window.ticks") >= 3:
            break
    assert page.evaluate("window.ticks") >= 3, "beats come to it though nobody passes them on"
    job = client.submit(JobBody(name="while-frozen", command="true", hold=True)).id
    expect(page.locator(f"#job-{job}")).to_be_visible(timeout=3 * PATIENCE_MS)
    expect(page.locator("#stale")).to_be_hidden(timeout=3 * PATIENCE_MS)
    client.cancel(job)


@pytest.mark.parametrize(("hours", "words"), [(3, "3 h 0 min ahead of"), (-3, "3 h 0 min behind")])
def test_a_wrong_clock_is_said_and_ages_are_right_in_spite_of_it(
    visitor: Visitor, client: Client, hours: int, words: str
) -> None:
    visitor.context.add_init_script(f"const real = Date.now; Date.now = () => real() + {hours} * 3600e3;")
    job = client.submit(JobBody(name="just-now", command="true", hold=True)).id
    page = visitor.goto("/queue?name=just-now")
    expect(page.locator("#stale")).to_contain_text(f"This machine's clock is {words} the control plane's.")
    expect(page.locator(f"#job-{job} time")).to_have_text(re.compile(r"^\d+ s ago$"))
    client.cancel(job)


def test_a_job_that_is_forgotten_while_its_page_is_open_is_said_steadily(visitor: Visitor, client: Client) -> None:
    """Where another cluster answers at the same address, which has no such job."""
    job = client.submit(JobBody(name="soon-gone", command="true", hold=True)).id
    page = visitor.goto(f"/jobs/{job}")
    page.route(f"**/jobs/{job}", lambda route: route.fulfill(status=404, body=f"there is no job {job}"))
    client.release(job)
    expect(page.locator("#stale")).to_contain_text("This can't be shown any more")
    page.evaluate("""() => { window.changes = 0; new MutationObserver(() => window.changes++)
        .observe(document.getElementById("stale"), {attributes: true, childList: true}); }""")
    page.wait_for_timeout(11_000)  # two beats
    assert page.evaluate("window.changes") == 0, "it doesn't come and go"
    expect(page.locator("h1")).to_contain_text("soon-gone")


@pytest.mark.parametrize("megabytes", [100, 1_000])
def test_much_output_freezes_no_page_and_fills_no_memory(visitor: Visitor, client: Client, megabytes: int) -> None:
    """As fast as the machine writes it, while somebody looks."""
    line = "a line of output that is as long as lines are, with \\033[32mcolours\\033[0m and some more words in it"
    words = f"sleep 1; yes \"$(printf '{line}')\" | head -c {megabytes}000000; echo; echo THE END; sleep 600"
    job = client.submit(JobBody(name="writes-much", command=words)).id
    page = visitor.goto(f"/jobs/{job}")
    page.evaluate(LONGEST_FRAME)
    expect(page.locator("#log > div:last-child > span:last-child")).to_contain_text("THE END", timeout=240_000)
    expect(page.locator("#log-about")).to_contain_text(re.compile(r"of \d+\.\d MiB"))
    session = visitor.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    session.send("Performance.enable")
    measured = {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}
    print(megabytes, page.inner_text("#log-about"), page.evaluate("longest"), measured["JSHeapUsedSize"] / 2**20)
    assert measured["JSHeapUsedSize"] < HEAP_MIB_MAX * 2**20
    assert page.locator("#log div > span").count() <= 20_400
    page.click("#change")
    expect(page.locator("#ask")).to_be_visible()
    client.cancel(job)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [("version", "99.0", "Stoker is now version 99.0"), ("cluster", "another", "Another cluster answers here now")],
)
def test_a_page_says_that_it_is_of_an_older_version_or_of_another_cluster(
    visitor: Visitor, field: str, value: str, words: str
) -> None:
    page = visitor.goto("/queue")
    known = page.evaluate("({...document.querySelector('meta[name=stoker]').dataset})")
    tick = {"topics": [], "ended": False, **{name: known[name] for name in ("now", "version", "cluster")}, field: value}
    body = f"data: {json.dumps(tick)}\n\n"
    page.route("**/live", lambda route: route.fulfill(content_type="text/event-stream", body=body))
    page.reload()
    expect(page.locator("#stale")).to_contain_text(words)
    expect(page.locator("#stale a")).to_have_text("Reload")
    page.unroute("**/live")
    page.click("#stale a")
    expect(page.locator("#pulse")).not_to_have_class("pulse off")
    expect(page.locator("#stale")).to_be_hidden()
