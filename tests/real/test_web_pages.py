"""Pages of a real cluster in a real browser: they are alive, do what they say, and run nobody's text."""

import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, expect

from stoker.brain.domain.access import Role
from stoker.wire.client import Client, JobBody
from stoker.wire.rest.token import NewTokenBody
from tests.real.control_process import ControlProcess
from tests.real.pages import PATIENCE_MS, SHAPES, Visitor, findings, shown_cluster, visiting
from tests.real.pair_process import Pair, until
from tests.real.up_process import UpProcess
from tools.web_tasks import CLICKS_MAX, PAGE, table, tried

EVIL = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>"
EVERY = (
    *("/", "/queue", "/jobs/{job}", "/submit", "/nodes", "/nodes/node-1"),
    *("/tenants", "/timeline", "/activity", "/control"),
)
READS_FORWARD = """() => {
  const id = document.querySelector("h1 > .faint").firstChild;
  const left = (at) => {
    const range = document.createRange();
    range.setStart(id, at);
    range.setEnd(id, at + 1);
    return range.getBoundingClientRect().left;
  };
  return left(0) < left(1);
}"""
COLOURS = "printf '\\033[1;31mred\\033[0m plain\\n'; echo \"$1\"; sleep 600"

expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(scope="module")
def cluster(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    with shown_cluster(tmp_path_factory.mktemp("up"), 2) as up:
        yield up


@pytest.fixture(scope="module")
def client(cluster: UpProcess) -> Iterator[Client]:
    with Client(cluster.url) as made:
        yield made


@pytest.fixture(scope="module")
def running(client: Client) -> str:
    """A job that writes colours and hostile text, and goes on."""
    words = ["sh", "-c", COLOURS, "sh", EVIL]
    return client.submit(JobBody(name=EVIL, command=words, gpu_count=1, env={"X": EVIL}, comment=EVIL)).id


@pytest.fixture
def visitor(browser: Browser, cluster: UpProcess) -> Iterator[Visitor]:
    with visiting(browser, cluster.url) as made:
        yield made
    assert b"stoker_csp_reports_total" not in urllib.request.urlopen(f"{cluster.url}/metrics").read()


def test_the_queue_draws_what_happens_and_shows_what_an_order_means_before_it_is_given(
    visitor: Visitor, client: Client
) -> None:
    page = visitor.goto("/queue")
    expect(page.locator("#pulse")).not_to_have_class("off")
    page.evaluate("window.kept = 1")
    first = client.submit(JobBody(name="first", command="true", hold=True)).id
    second = client.submit(JobBody(name="second", command="true", hold=True)).id
    for job in (first, second):
        page.locator(f"#job-{job} input[type=checkbox]").check()
    page.click("#bulk [data-order=cancel]")
    expect(page.locator("#ask li")).to_have_count(2)
    expect(page.locator("#ask")).to_contain_text("second")
    page.click("#ask button.danger")
    expect(page.locator(f"#job-{first} .state")).to_have_text("cancelled")
    expect(page.locator(f"#job-{second} .state")).to_have_text("cancelled")
    page.fill("[name=name]", "sec*")
    expect(page.locator("tbody tr")).to_have_count(1)
    assert page.url.endswith("?name=sec*")
    assert page.evaluate("window.kept") == 1, "the page was never loaded anew"
    times = page.locator(f"#job-{second} time").inner_text()
    assert "UTC" not in times, "times are told as here"


def test_hostile_text_is_text_on_every_page_and_breaks_no_layout(
    visitor: Visitor, client: Client, running: str
) -> None:
    """Names, labels, comments, variables, folders, output, reasons of drains, of queries and of refusals."""
    wide = "W" * 120 + "\u202e" + EVIL
    held = client.submit(
        JobBody(
            name=wide,
            command=[EVIL],
            labels={"team": "a" * 60},
            hold=True,
            comment=wide,
            env={"EVIL": wide},
            workdir=f"/{EVIL}",
            cpus=1,
        )
    ).id
    client.drain("node-2", wide)
    asked = quote(EVIL)
    other = (f"/jobs/{held}", f"/queue?name={asked}&user={asked}", f"/activity?by={asked}", f"/jobs/{asked}")
    shown = 0
    for path in (*EVERY, *other, "/nodes/node-2", f"/login?next={asked}", f"/nodes/{asked}"):
        page = visitor.goto(path.format(job=running))
        page.wait_for_load_state("load")
        page.wait_for_timeout(400)
        assert page.evaluate("window.hacked") is None, path
        assert page.evaluate("document.querySelectorAll('img[onerror], main script').length") == 0, path
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{path} is wider than its window"
        shown += page.content().count("&lt;script&gt;")
        if path == f"/jobs/{held}":
            assert page.evaluate(READS_FORWARD), "what follows the name isn't turned round by it"
    assert shown > 10, "it was there to be seen"
    client.resume("node-2")
    client.cancel(held)


def test_times_in_sentences_are_told_in_the_readers_zone(visitor: Visitor, client: Client) -> None:
    """Nine hours east of UTC."""
    begin = f"{datetime.now(UTC).date() + timedelta(days=30)}T04:05:06Z"
    job = client.submit(JobBody(name="at-its-time", command="true", begin=begin)).id
    for path in ("/queue?name=at-its-time", f"/jobs/{job}"):
        page = visitor.goto(path)
        expect(page.get_by_text(re.compile(r"told to begin at \d+ \w+ \d{4}, 13:05:06$")).first).to_be_visible()
    client.cancel(job)


def test_output_follows_in_colours_and_nobodys_text_runs(visitor: Visitor, running: str) -> None:
    page = visitor.goto(f"/jobs/{running}")
    expect(page.locator("#log")).to_contain_text("red plain")
    expect(page.locator("#log")).to_contain_text(EVIL)
    expect(page.locator("#log .a-b.a-f1")).to_have_text("red")
    expect(page.locator("h1")).to_contain_text(EVIL)
    for path in ("/", "/queue", "/activity", "/timeline"):
        visitor.goto(path)
        page.wait_for_selector("#pulse:not(.off)")
    assert page.evaluate("window.hacked") is None


def test_a_job_shows_all_its_ranks_the_hour_of_its_gpus_and_a_form_to_change_it(
    visitor: Visitor, client: Client
) -> None:
    words = ["sh", "-c", "echo I am rank $RANK; sleep 600"]
    env = {"HF_TOKEN": "hf-not-to-be-seen", "MODE": "fast"}
    job = client.submit(JobBody(name="gang", command=words, gpu_count=1, tasks=2, env=env, time_limit="2h")).id
    page = visitor.goto(f"/jobs/{job}")
    expect(page.locator("#live")).to_have_attribute("data-state", "running")
    page.select_option("#log-rank", "all")
    expect(page.locator("#log")).to_contain_text("I am rank 0")
    expect(page.locator("#log")).to_contain_text("I am rank 1")
    page.fill("#log-find", "rank 1")
    expect(page.locator("#log span.rank:visible")).to_have_count(1)
    page.locator("[data-hour]").first.click()
    expect(page.locator("#hour")).to_contain_text("its last hour, simulated")
    page.get_by_text("Environment (2)").click()
    expect(page.get_by_text("fast")).to_be_visible()
    expect(page.get_by_text("hf-not-to-be-seen")).to_be_hidden()
    page.click("#change")
    page.fill("#ask [name=time_limit]", "3h")
    page.fill("#ask [name=name]", "gang-2")
    page.click("#ask button.primary")
    expect(page.locator("h1")).to_contain_text("gang-2")
    changed = client.job(job)
    assert (changed.time_limit_ms, changed.comment) == (3 * 3_600_000, "")
    client.cancel(job)


def test_a_terminal_runs_beside_the_job_and_says_how_it_ended(visitor: Visitor, running: str) -> None:
    page = visitor.goto(f"/jobs/{running}")
    expect(page.locator("#live")).to_have_attribute("data-state", "running")
    page.fill("#terminal-command", "sh")
    page.click("#terminal-open")
    expect(page.locator("#terminal-said")).to_have_text("")
    page.keyboard.type("echo job-$STOKER_JOB_ID-$((40 + 2))\n")
    expect(page.locator(".xterm-rows")).to_contain_text(f"job-{running}-42")
    page.keyboard.type("exit 5\n")
    expect(page.locator("#terminal-said")).to_have_text("It ended with exit code 5.")


def test_a_node_is_drained_with_a_reason_and_takes_work_again(visitor: Visitor, client: Client) -> None:
    page = visitor.goto("/nodes")
    page.click("[data-drain='node-2']")
    page.fill("#ask input", "new fans")
    page.keyboard.press("Enter")
    expect(page.locator("#node-node-2")).to_contain_text("new fans")
    assert client.node("node-2").drain == "new fans"
    page.click("[data-resume='node-2']")
    page.click("#ask button.primary")
    expect(page.locator("#node-node-2 [data-drain]")).to_be_visible()


def test_the_form_submits_the_job_that_it_shows_as_command_line_and_body(visitor: Visitor, client: Client) -> None:
    page = visitor.goto("/submit")
    page.fill("[name=command]", "echo it's here")
    page.fill("[name=name]", "formed")
    page.fill("[name=gpus]", "2")
    page.fill("[name=tasks]", "9")
    expect(page.locator("#become")).to_contain_text("It would be refused")
    page.fill("[name=tasks]", "1")
    page.fill("[name=gpus]", "0")
    expect(page.locator("#become")).to_contain_text("it would start now on node-")
    page.fill("[name=time]", "5m")
    line = page.locator("#as-cli").inner_text()
    assert line == """stoker submit --export NONE --name formed --tenant default --time 5m -- 'echo it'"'"'s here'"""
    body = page.locator("#as-rest").inner_text()
    assert '"time_limit":"5m"' in body
    page.click("#submit button.primary")
    page.wait_for_url("**/jobs/*")
    job = client.job(page.url.rpartition("/")[2])
    assert (job.name, job.command, job.time_limit_ms) == ("formed", "echo it's here", 300_000)


def test_keys_reach_pages_and_rows(visitor: Visitor, running: str) -> None:
    page = visitor.goto("/nodes")
    page.keyboard.press("g")
    page.keyboard.press("q")
    page.wait_for_url("**/queue")
    page.keyboard.press("?")
    expect(page.locator("#keys")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    page.keyboard.type(f"{running}\n")
    page.wait_for_url(f"**/jobs/{running}")


@pytest.mark.heavy
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_is_without_grave_faults_of_access_and_fits(
    browser: Browser, cluster: UpProcess, running: str, shape: str, scheme: str
) -> None:
    made = Visitor(browser, cluster.url, color_scheme=scheme, **SHAPES[shape])
    grave = {}
    for path in EVERY:
        page = made.goto(path.format(job=running))
        page.wait_for_selector("#pulse:not(.off)")
        page.wait_for_timeout(300)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{path} is wider than its window"
        if found := findings(page):
            grave[path] = found
    made.close()
    assert grave == {}
    assert made.complaints == []


@pytest.mark.heavy
def test_ten_tasks_take_three_clicks_each_at_most_as_the_table_says(browser: Browser) -> None:
    tasks = tried(browser)
    assert all(task.clicks <= CLICKS_MAX for task in tasks)
    assert table(tasks) == PAGE.read_text(), "`python -m tools.web_tasks` writes it anew"


@pytest.mark.heavy
def test_fifty_open_pages_go_on_through_a_take_over_without_being_loaded_anew(browser: Browser, tmp_path: Path) -> None:
    """Half of them look at the active one, which comes back as the standby, the others at the standby."""
    with Pair(tmp_path / "pair", profile="default") as pair:
        pair.start()
        active, standby = pair.active, pair.standby
        visitors, pages = [], []
        for half in (active, standby):
            for _ in range(5):
                made = Visitor(browser, active.url, **SHAPES["wide"])
                made.sign_in(pair.token)
                visitors.append(made)
                opened = [made.page, *(made.opened() for _ in range(4))]
                for page in opened:
                    page.goto(f"{half.url}/queue")
                    page.evaluate("window.kept = 1")
                pages += opened
        active.kill()
        pair.until_active(standby)
        active.start()
        with pair.client() as client:
            client.submit(JobBody(name="after-the-take-over", command="true", hold=True))
        for page in pages:
            page.bring_to_front()
            expect(page.locator("tbody")).to_contain_text("after-the-take-over", timeout=90_000)
            assert page.evaluate("window.kept") == 1, "it was never loaded anew"
        assert len(pages) == 50
        for made in visitors:
            made.close()
            assert [each for each in made.complaints if "ERR_" not in each] == []


@pytest.mark.heavy
def test_pages_survive_a_killed_control_plane_with_their_session_and_end_with_its_token(
    browser: Browser, tmp_path: Path
) -> None:
    with ControlProcess(tmp_path / "control") as control:
        with control.client() as client:
            shown = client.create_token(NewTokenBody(role=Role.ADMIN, user="ada"))
        made = Visitor(browser, control.url, **SHAPES["wide"])
        made.sign_in(shown.token)
        pages = [made.page, *(made.opened() for _ in range(3))]
        for page in pages:
            page.goto(f"{control.url}/queue")
            page.evaluate("window.kept = 1")
        control.kill()
        front = pages[-1]
        front.bring_to_front()
        expect(front.locator("#stale")).to_contain_text("No word from the control plane")
        control.start()
        expect(front.locator("#stale")).to_be_hidden()
        with control.client() as client:
            job = client.submit(JobBody(name="after-it", command="true", hold=True)).id
        for page in pages:
            page.bring_to_front()
            expect(page.locator("tbody")).to_contain_text("after-it")
            assert page.evaluate("window.kept") == 1
        assert job
        with control.client() as client:
            client.revoke_token(shown.id)
        expect(pages[-1].locator("#stale")).to_contain_text("Your session is over")
        made.close()
        assert [each for each in made.complaints if "ERR_" not in each] == []


@pytest.mark.heavy
def test_login_gets_a_token_from_the_browser_in_which_somebody_is_signed_in(browser: Browser, tmp_path: Path) -> None:
    with ControlProcess(tmp_path / "control") as control:
        with control.client() as client:
            shown = client.create_token(NewTokenBody(role=Role.USER, tenant="default", user="ada"))
        made = Visitor(browser, control.url, **SHAPES["wide"])
        made.sign_in(shown.token)
        opener = tmp_path / "opener"
        opener.write_text(f'#!/bin/sh\nprintf %s "$1" > {tmp_path}/part && mv {tmp_path}/part {tmp_path}/address\n')
        opener.chmod(0o755)
        environ = {**os.environ, "BROWSER": f"{opener} %s", "XDG_CONFIG_HOME": str(tmp_path)}
        words = [sys.executable, "-m", "stoker"]
        login = subprocess.Popen([*words, "login", control.url, "--browser"], env=environ, stderr=subprocess.PIPE)
        until((tmp_path / "address").exists, lambda: "no browser was opened")
        page = made.page
        page.goto((tmp_path / "address").read_text())
        page.click("#yes")
        expect(page.locator("body")).to_contain_text("Commands are signed in")
        _, said = login.communicate(timeout=60)
        assert login.returncode == 0, said
        whoami = [*words, "status"]
        assert subprocess.run(whoami, env=environ, capture_output=True, timeout=60, check=False).returncode == 0
        with control.client() as client:
            client.revoke_token(shown.id)
        done = subprocess.run(whoami, env=environ, capture_output=True, timeout=60, check=False)
        assert b"token_unknown" in done.stderr
        made.close()
