"""What do open web pages cost the control plane, and how soon do they show what happened?

The control plane runs as a process of its own, 200 nodes x 8 GPUs in another one, each over a real gRPC stream that
tells figures every second; they start what they are told to, and run nothing. 10,000 jobs of 1,000 shapes wait. Pages
are looked at in a real Chromium on loopback, by admins with a token each. First paint is the browser's own, of a page
that was never there before; how much of that the control plane took is told too. A fact is a submit: the time from its
answer until the row is in the page, of facts two seconds apart, and of ten a second. A figure's age is told by its
value, which is the second at which it was read. CPU is what the kernel charged to the control plane's process, less
what it takes with nobody looking, while two facts a second happen. The page's heap is taken after collections, before,
amid and after as many facts as an hour has.

Run: PYTHONPATH=src python -m benchmarks.web [--nodes 200] [--jobs 10000] [--seconds 20] [--facts 1800] [--viewers 20]
Must: first paint 300 ms, facts 100 ms, figures 6 s, one viewer 2 % of a core, 20 viewers 5 %, heap flat.
"""

import argparse
import asyncio
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from playwright.sync_api import Browser, BrowserContext, Page

from benchmarks.cluster import free_port, machine
from benchmarks.idle_agents import registration
from benchmarks.sharing import Access, first_tokens, make_alone
from stoker.agent.link_grpc import GrpcLink
from stoker.agent.ports import LinkSession
from stoker.brain.domain.access import Role
from stoker.brain.domain.gpu_telemetry import GpuReading
from stoker.brain.domain.instruction import Start
from stoker.brain.domain.report import Beat, Started, TaskInventory
from stoker.brain.domain.units import Instant
from stoker.control.settings import GrpcSettings, HttpSettings, TlsSettings
from stoker.live.main import run_control
from stoker.live.settings.control import AgentsSettings, ControlSettings
from stoker.wire.client import Client, JobBody
from stoker.wire.rest.token import NewTokenBody
from tools.web_screenshots import browser_program, chromium

SHAPES: Final = 1_000
BULK: Final = 1_000
PAINTS: Final = 5
START_S: Final = 300.0
LONE_FACTS: Final = 15
MUST: Final = {"paint": 300.0, "fact": 100.0, "figure": 6_000.0, "one": 2.0, "many": 5.0}
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_WATCH: Final = """
window.seen = {};
new MutationObserver(() => {
  for (const row of document.querySelectorAll("tr[data-job]")) {
    window.seen[row.dataset.job] ??= performance.timeOrigin + performance.now();
  }
}).observe(document, { childList: true, subtree: true });
window.ages = [];
const plain = window.fetch;
window.fetch = async (...given) => {
  const answer = await plain(...given);
  if (String(given[0]) === "/map") {
    answer.clone().json().then((told) => {
      const second = (performance.timeOrigin + performance.now()) / 1000;
      for (const use of told.use) if (use !== null) window.ages.push((((second % 100) - use) + 100) % 100);
    });
  }
  return answer;
};
"""


# -- the cluster -------------------------------------------------------------------------------------------------------


async def serve(folder: str, port: int, http_port: int) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    plain, grpc = TlsSettings(mode="off"), GrpcSettings(port=port)
    http = HttpSettings(port=http_port, rate_per_principal=0)
    agents = AgentsSettings(heartbeat_s=1.0)
    settings = ControlSettings(data_dir=Path(folder), http=http, grpc=grpc, tls=plain, agents=agents)
    await run_control(settings, stop=stop, on_ready=lambda: print("READY", flush=True), open_to_owner=False)


async def nodes(count: int, port: int, token: str) -> None:
    """Nodes that start what they are told to, and tell the second of the clock as the use of each GPU."""
    joined = [asyncio.Event() for _ in range(count)]
    running = [asyncio.create_task(_node(number, port, token, joined[number])) for number in range(count)]
    await asyncio.gather(*(each.wait() for each in joined))
    print("READY", flush=True)
    await asyncio.gather(*running)


async def _node(number: int, port: int, token: str, joined: asyncio.Event) -> None:
    link = GrpcLink([f"127.0.0.1:{port}"], token=lambda: token)
    known = registration(number)
    session = await link.connect(known)
    await session.send(TaskInventory(boot_id="boot", tasks=()))
    one_at_a_time = asyncio.Lock()
    async with asyncio.TaskGroup() as duties:
        duties.create_task(_start_all(session, one_at_a_time))
        joined.set()
        await asyncio.sleep(number % 100 / 100)
        sequence = 0
        while True:
            sequence += 1
            now = time.time()
            read = tuple(
                GpuReading(uuid=gpu.uuid, utilization_percent=int(now) % 100, temperature_c=60, memory_used_mb=40_000)
                for gpu in known.inventory.gpus
            )
            async with one_at_a_time:
                await session.send(Beat(sequence=sequence, at=Instant(int(now * 1_000)), gpus=read))
            await asyncio.sleep(session.heartbeat_s)


async def _start_all(session: LinkSession, one_at_a_time: asyncio.Lock) -> None:
    async for told in session.instructions():
        if isinstance(told, Start):
            async with one_at_a_time:
                await session.send(Started(key=told.key, at=Instant(int(time.time() * 1_000)), pid=1))


def body(number: int, **more: Any) -> JobBody:  # noqa: ANN401  # fields
    shape = number % SHAPES
    return JobBody(name=f"job-{number}", command=["true"], gpu_count=8, cpus=1 + shape % 60, memory_mb=shape, **more)


def fill(url: str, token: str, count: int, running: int) -> None:
    make_alone(url, token)
    with Client(url, token=token) as client:
        client.submit_many([JobBody(name="runs", command=["true"], gpu_count=8) for _ in range(running)])
        until = time.monotonic() + START_S
        while client.status().running_jobs < running:
            assert time.monotonic() < until, f"{client.status()} and not {running} jobs that run"
            time.sleep(0.5)
        for first in range(0, count, BULK):
            client.submit_many([body(first + each) for each in range(min(BULK, count - first))])


class Cluster(NamedTuple):
    """The cluster that is looked at."""

    url: str
    pid: int
    access: Access


@contextmanager
def cluster(node_count: int, jobs: int) -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="stoker-bench-") as folder:
        access, port, http_port = first_tokens(Path(folder)), free_port(), free_port()
        words = [sys.executable, "-m", "benchmarks.web", "--port", str(port), "--http-port", str(http_port)]
        control = _started([*words, "--serve", folder])
        agents = _started([*words, "--as-nodes", str(node_count), "--token", access.agent])
        try:
            made = Cluster(f"http://127.0.0.1:{http_port}", control.pid, access)
            fill(made.url, access.admin, jobs, node_count)
            yield made
        finally:
            for each in (agents, control):
                each.terminate()
                each.wait(60)


def _started(words: list[str]) -> "subprocess.Popen[bytes]":
    made = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert made.stdout is not None, "its output is a pipe"
    while (line := made.stdout.readline()) != b"READY\n":
        assert line, f"{words[3:]} did not start"
    threading.Thread(target=made.stdout.read, daemon=True).start()
    return made


# -- what is measured --------------------------------------------------------------------------------------------------


class Trickle:
    """Facts at a rate, from a thread of its own: a held job, which is cancelled by the next one."""

    def __init__(self, seen: Cluster) -> None:
        self._seen = seen
        self._stop = threading.Event()

    @contextmanager
    def at(self, per_s: float) -> Iterator[dict[str, float]]:
        """By job, when its submit was answered."""
        told: dict[str, float] = {}
        self._stop.clear()
        thread = threading.Thread(target=self._run, args=(per_s, told), daemon=True)
        thread.start()
        yield told
        self._stop.set()
        thread.join(60)

    def _run(self, per_s: float, told: dict[str, float]) -> None:
        with Client(self._seen.url, token=self._seen.access.admin) as client:
            last = ""
            while not self._stop.wait(1 / per_s):
                job = client.submit(body(len(told), hold=True)).id
                told[job] = time.time() * 1_000
                if last and per_s < 5:
                    client.cancel(last)
                last = job


def signed_in(browser: Browser, seen: Cluster, token: str) -> BrowserContext:
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    context.add_init_script(_WATCH)
    page = context.new_page()
    page.goto(f"{seen.url}/login")
    page.fill("#token", token)
    page.click("#sign-in button")
    page.wait_for_url(f"{seen.url}/")
    page.close()
    return context


def first_paints(browser: Browser, seen: Cluster, path: str, count: int) -> list[tuple[float, float]]:
    """Of each the paint and the first byte, in a browser profile that has been at no page but the start page."""
    found = []
    for _ in range(count):
        context = signed_in(browser, seen, seen.access.admin)
        page = context.new_page()
        page.goto(seen.url + path)
        page.wait_for_selector("main h1", state="attached")
        page.wait_for_function("performance.getEntriesByName('first-contentful-paint').length")
        paint = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
        found.append(tuple(page.evaluate(f"[{paint}, performance.getEntriesByType('navigation')[0].responseStart]")))
        context.close()
    return found


def delays(page: Page, told: dict[str, float]) -> list[float]:
    """Milliseconds from the answer of each submit until its row was in the page."""
    page.wait_for_timeout(2_500)
    seen = page.evaluate("window.seen")
    assert isinstance(seen, dict), "the page keeps what it has seen"
    found = [seen[job] - at for job, at in told.items() if job in seen]
    assert len(found) > len(told) // 2, f"{len(found)} of {len(told)} facts were seen"
    return [max(0.0, each) for each in found]


def cpu_percent(pid: int, seconds: float) -> float:
    before, began = _cpu_s(pid), time.monotonic()
    time.sleep(seconds)
    return 100 * (_cpu_s(pid) - before) / (time.monotonic() - began)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def heap_mib(page: Page) -> float:
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    used = session.send("Runtime.getHeapUsage")["usedSize"]
    session.detach()
    return float(used) / (1 << 20)


def high(values: list[float]) -> float:
    """The 95th percentile."""
    return sorted(values)[int(0.95 * (len(values) - 1))]


QUEUE: Final = "/queue?state=pending,held"


def measure(seen: Cluster, browser: Browser, chosen: argparse.Namespace) -> Iterator[tuple[str, str, str, bool]]:
    """Rows of the table: what, measured, must, whether it holds."""
    for name, path in (("the queue", QUEUE), ("the cluster", "/")):
        paints, bytes_at = zip(*first_paints(browser, seen, path, chosen.paints), strict=True)
        paint = statistics.median(paints)
        shown = f"{paint:.0f} ms, first byte {statistics.median(bytes_at):.0f} ms"
        yield f"first paint of {name}, median", shown, "300 ms", paint <= MUST["paint"]
    trickle, context = Trickle(seen), signed_in(browser, seen, seen.access.admin)
    page = context.new_page()
    page.goto(seen.url + QUEUE)
    page.wait_for_selector("#pulse:not(.off)")
    for label, rate, count in (("2 s apart", 0.5, chosen.lone), ("ten a second", 10.0, 10 * chosen.lone)):
        with trickle.at(rate) as told:
            page.wait_for_timeout(1_000 * count / rate)
        found = delays(page, told)
        must = "100 ms" if rate < 1 else "-"
        shown = f"{statistics.median(found):.0f} ms, 95 % {high(found):.0f} ms"
        yield f"facts {label} on screen, median", shown, must, rate > 1 or statistics.median(found) <= MUST["fact"]
    page.goto(seen.url)
    page.wait_for_timeout(1_000 * chosen.seconds / 2)
    ages = page.evaluate("window.ages")
    yield "figures on the map, oldest", f"{max(ages):.1f} s", "6 s", max(ages) * 1_000 <= MUST["figure"]
    yield from _costs(seen, browser, context, trickle, chosen)
    yield from _heap(seen, context, trickle, chosen)
    context.close()


def _costs(
    seen: Cluster, browser: Browser, context: BrowserContext, trickle: Trickle, chosen: argparse.Namespace
) -> Iterator[tuple[str, str, str, bool]]:
    for page in context.pages:
        page.close()
    with trickle.at(2.0):
        floor = cpu_percent(seen.pid, chosen.seconds)
        yield "CPU with nobody looking", f"{floor:.1f} %", "-", True
        for name, path in (("the queue", QUEUE), ("the cluster", "/"), ("a node", "/nodes/node-001")):
            page = context.new_page()
            page.goto(seen.url + path)
            page.wait_for_timeout(3_000)
            cost = cpu_percent(seen.pid, chosen.seconds) - floor
            yield f"one viewer of {name}", f"{cost:.1f} %", "2 %", cost <= MUST["one"]
            page.close()
        with Client(seen.url, token=seen.access.admin) as client:
            made = [
                client.create_token(NewTokenBody(role=Role.ADMIN, user=f"u{each}")).token
                for each in range(chosen.viewers)
            ]
        others = [signed_in(browser, seen, token) for token in made]
        for number, other in enumerate(others):
            other.new_page().goto(seen.url + (QUEUE if number % 2 else "/"))
        time.sleep(3)
        cost = cpu_percent(seen.pid, chosen.seconds) - floor
        for other in others:
            other.close()
    yield (
        f"{chosen.viewers} viewers, half of the queue, half of the cluster",
        f"{cost:.1f} %",
        "5 %",
        cost <= MUST["many"],
    )


def _heap(
    seen: Cluster, context: BrowserContext, trickle: Trickle, chosen: argparse.Namespace
) -> Iterator[tuple[str, str, str, bool]]:
    per_s = chosen.facts / chosen.play
    for name, path in (("the queue", QUEUE), ("activity", "/activity")):
        page = context.new_page()
        page.goto(seen.url + path)
        page.wait_for_timeout(5_000)
        before = heap_mib(page)
        with trickle.at(per_s) as told:
            page.wait_for_timeout(chosen.play * 500)
            middle = heap_mib(page)
            page.wait_for_timeout(chosen.play * 500)
        after = heap_mib(page)
        page.close()
        flat = after <= 1.3 * max(before, middle) + 1
        yield (
            f"heap of {name}: before, amid, after {len(told)} facts",
            f"{before:.1f}, {middle:.1f}, {after:.1f} MiB",
            "flat",
            flat,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=20, help="of each measurement of CPU")
    parser.add_argument("--paints", type=int, default=PAINTS)
    parser.add_argument("--lone", type=int, default=LONE_FACTS, help="facts of each measurement of delays")
    parser.add_argument("--facts", type=int, default=1_800, help="as many as an hour has")
    parser.add_argument("--play", type=float, default=120, help="seconds in which those happen")
    parser.add_argument("--lenient", action="store_true", help="end well although something was missed")
    parser.add_argument("--viewers", type=int, default=20)
    for name in ("--serve", "--token"):
        parser.add_argument(name, default="", help="(used by itself)")
    for name in ("--as-nodes", "--port", "--http-port"):
        parser.add_argument(name, type=int, default=0, help="(used by itself)")
    chosen = parser.parse_args()
    if chosen.serve:
        asyncio.run(serve(chosen.serve, chosen.port, chosen.http_port))
        return 0
    if chosen.as_nodes:
        asyncio.run(nodes(chosen.as_nodes, chosen.port, chosen.token))
        return 0
    program = browser_program()
    print(machine())
    print(f"{chosen.nodes} nodes x 8 GPUs at 1 Hz, {chosen.jobs} jobs wait\n")
    print("| what | measured | must |\n| --- | --- | --- |", flush=True)
    missed = 0
    with cluster(chosen.nodes, chosen.jobs) as seen, chromium(program) as browser:
        for what, measured, must, holds in measure(seen, browser, chosen):
            missed += not holds
            print(f"| {what} | {measured}{'' if holds else ' (missed)'} | {must} |", flush=True)
    return 1 if missed and not chosen.lenient else 0


if __name__ == "__main__":
    sys.exit(main())
