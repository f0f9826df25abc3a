"""What people do on the pages: jobs by the form in all its forms, by keyboard, by role, and with an ended session."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from playwright.sync_api import Browser, expect

from stoker.brain.domain.access import Role
from stoker.wire.client import Client, JobBody
from stoker.wire.rest.job import JobView
from stoker.wire.rest.tenant import NewTenantBody
from stoker.wire.rest.token import NewTokenBody
from tests.real.control_process import ControlProcess
from tests.real.forks import SRC
from tests.real.pages import PATIENCE_MS, SHAPES, Visitor, findings, shown_cluster, visiting
from tests.real.up_process import UpProcess, until

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]
SCRIPT = "#!/bin/sh\necho \"script of $1\" 'it''s'\nsleep 600\n"
ALL: dict[str, Any] = {
    "name": "-dash it's",
    "command": ["python3", "-c", "print('a b')", ""],
    "gpu_share": 0.5,
    "tasks": 2,
    "cpus": 2,
    "memory_mb": 1_536,
    "tasks_per_node": 2,
    "time_limit": "90m",
    "retries": 2,
    "priority": 77,
    "comment": '-x "$HOME" `id` \\ é',
    "labels": {"team": "nlp", "run": "3"},
    "env": {"MODE": "a b=c", "LINES_": "one\ntwo"},
    "where": "zone!=z",
    "exclude": ["node-2"],
    "tolerate": ["spot", "gpu=old"],
    "preemptible": True,
    "checkpoint": "10m",
    "signal": "USR1@90",
    "lost_after": "2h",
    "visible": "index",
    "workdir": "/tmp/a b",
    "output": "/tmp/%j out",
    "hold": True,
}
OF_ONE_SUBMIT = ("id", "job_id", "uid", "submitted_at", "reason", "state", "attempts", "notices", "planned_start")

expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(scope="module")
def cluster(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    with shown_cluster(tmp_path_factory.mktemp("up"), 2) as up:
        yield up


@pytest.fixture(scope="module")
def client(cluster: UpProcess) -> Iterator[Client]:
    with Client(cluster.url) as made:
        yield made


@pytest.fixture
def visitor(browser: Browser, cluster: UpProcess) -> Iterator[Visitor]:
    with visiting(browser, cluster.url) as made:
        yield made


@pytest.fixture(scope="module")
def guarded(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlProcess]:
    """A control plane that wants tokens, with jobs of two people in one tenant."""
    with ControlProcess(tmp_path_factory.mktemp("guarded") / "control") as control:
        yield control


def what_was_asked(job: JobView) -> dict[str, Any]:
    """All of a job but what tells one submit from the next."""
    return {name: value for name, value in msgspec.to_builtins(job).items() if name not in OF_ONE_SUBMIT}


def submitted(line: str, cluster: UpProcess, folder: Path) -> str:
    """The id that a shell's last word of a line prints."""
    folder.mkdir()
    (folder / "stoker").write_text(f'#!/bin/sh\nexec {sys.executable} -m stoker "$@"\n')
    (folder / "stoker").chmod(0o755)
    environ = {
        **os.environ,
        "PATH": f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(SRC),
        "STOKER_SERVER": cluster.url,
        "XDG_CONFIG_HOME": str(folder),
    }
    done = subprocess.run(["sh", "-c", line], env=environ, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr + line
    return done.stdout


@pytest.mark.parametrize(
    "body", [ALL, {"command": "echo it's; exit", "gpu_count": 0}, {"command": "id;pwd", "cpus": 1}]
)
def test_command_line_rest_and_python_submit_the_job_that_the_form_does(
    visitor: Visitor, cluster: UpProcess, client: Client, body: dict[str, Any], tmp_path: Path
) -> None:
    fields = {"job_class" if name == "class" else name: value for name, value in {"hold": True, **body}.items()}
    first = client.submit(JobBody(**fields)).id
    page = visitor.goto(f"/jobs/{first}")
    page.click("#again")
    page.wait_for_url(f"**/submit?again={first}")
    page.check("[name=hold]")
    line, curl, python = (page.locator(f"#as-{each}").inner_text() for each in ("cli", "rest", "python"))
    page.click("#submit button.primary")
    page.wait_for_url("**/jobs/*")
    ids = [page.url.rpartition("/")[2], submitted(line, cluster, tmp_path / "cli").split()[0]]
    ids.append(
        submitted(
            f"{sys.executable} -c '{python.replace(chr(39), chr(39) + chr(34) + chr(39) + chr(34) + chr(39))}'",
            cluster,
            tmp_path / "py",
        ).split()[0]
    )
    if shutil.which("curl"):
        ids.append(msgspec.json.decode(submitted(curl, cluster, tmp_path / "curl"))["id"])
    wanted = what_was_asked(client.job(first))
    for each in ids:
        told = what_was_asked(client.job(each))
        if body["command"] == "id;pwd":
            told["command"] = told["command"].strip()  # a blank makes it a line for the shell
        assert told == wanted, each
    for each in (first, *ids):
        client.cancel(each)


def test_a_job_with_a_script_is_submitted_again_with_it_and_twice_the_memory(
    visitor: Visitor, cluster: UpProcess, client: Client, tmp_path: Path
) -> None:
    first = client.submit(
        JobBody(name="train", command=["train.sh", "a b"], script=SCRIPT, memory_mb=512, hold=True)
    ).id
    page = visitor.goto(f"/jobs/{first}")
    expect(page.get_by_text('echo "script of $1"')).to_be_visible()
    page.click("#again")
    page.wait_for_url(f"**/submit?again={first}")
    expect(page.locator("#again-kept")).to_contain_text("script")
    page.fill("[name=memory]", "1")
    line = page.locator("#as-cli").inner_text()
    page.click("#submit button.primary")
    page.wait_for_url("**/jobs/*")
    ids = [page.url.rpartition("/")[2], submitted(line, cluster, tmp_path / "cli").split()[0]]
    for each in ids:
        assert (client.job(each).memory_mb, list(client.job(each).command)) == (1_024, ["train.sh", "a b"])
        assert client.script(each).script == SCRIPT
    visitor.goto(f"/jobs/{ids[0]}")
    expect(page.locator("#log")).to_contain_text("script of a b its")
    for each in (first, *ids):
        client.cancel(each)


def test_what_the_form_says_before_the_click_is_what_happens(visitor: Visitor, client: Client) -> None:
    page = visitor.goto("/submit")
    page.fill("[name=command]", "sleep 600")
    page.fill("[name=env]", "no variable")
    expect(page.locator("#become")).to_contain_text('Environment: "no variable" is no KEY=value')
    page.fill("[name=env]", "")
    page.fill("[name=gpus]", "2")
    expect(page.locator("#become")).to_contain_text("it would start now on node-")
    node = re.findall(r"node-\d", page.locator("#become").inner_text())[0]
    page.click("#submit button.primary")
    page.wait_for_url("**/jobs/*")
    expect(page.locator("#live")).to_have_attribute("data-state", "running")
    first = page.url.rpartition("/")[2]
    assert client.job(first).attempts[-1].tasks[0].node == node
    page = visitor.goto("/submit")
    page.fill("[name=command]", "true")
    page.fill("[name=gpus]", "2")
    page.fill("[name=tasks]", "2")
    expect(page.locator("#become")).to_contain_text("It would wait: ")
    page.click("#submit button.primary")
    page.wait_for_url("**/jobs/*")
    second = page.url.rpartition("/")[2]
    expect(page.locator("#why .hint")).to_contain_text("GPU")
    assert client.job(second).state == "pending"
    for each in (first, second):
        client.cancel(each)


def test_every_state_of_a_page_is_without_grave_faults_of_access(
    browser: Browser, cluster: UpProcess, client: Client
) -> None:
    """Open menus, questions, terminals, forms with faults, and what is selected; wide and on a phone."""
    job = client.submit(JobBody(name="stays", command="sleep 600", gpu_count=1)).id
    grave: dict[str, list[str]] = {}
    for shape, scheme in (("wide", "dark"), ("phone", "light")):
        made = Visitor(browser, cluster.url, color_scheme=scheme, reduced_motion="reduce", **SHAPES[shape])
        page = made.page

        def look(what: str, shape: str = shape, page: Any = page) -> None:  # noqa: ANN401  # a page
            if found := findings(page):
                grave[f"{shape}: {what}"] = found
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{what} is too wide"

        made.goto("/queue")
        page.click(".menu summary")
        look("menu")
        page.click("#show-keys")
        look("keys")
        page.keyboard.press("Escape")
        page.locator(f"#job-{job} input").check()
        look("selected")
        page.click("#bulk [data-order=cancel]")
        look("question")
        made.goto(f"/jobs/{job}")
        page.click("#change")
        look("change")
        page.keyboard.press("Escape")
        page.click("#terminal-open")
        expect(page.locator("#terminal-said")).to_have_text("")
        look("terminal")
        made.goto("/submit")
        page.fill("[name=command]", "true")
        page.fill("[name=gpus]", "99")
        expect(page.locator("#become")).to_contain_text("It would be refused")
        page.click("#submit button.primary")
        expect(page.locator("#submit-fault")).not_to_have_text("")
        look("refused form")
        made.goto("/")
        page.wait_for_selector("#legend span")
        page.locator("#map").focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Enter")
        expect(page.locator("#chosen")).to_be_visible()
        look("chosen GPU")
        made.goto("/nodes")
        page.click("[data-drain='node-1']")
        look("drain")
        made.goto("/command-login?port=1&challenge=x&state=y")
        look("command login")
        made.goto("/jobs/999999")
        look("refused")
        made.close()
    client.cancel(job)
    assert grave == {}


def test_the_timeline_is_read_and_its_jobs_are_opened_by_keyboard(visitor: Visitor, client: Client) -> None:
    job = client.submit(JobBody(name="by-keyboard", command="sleep 600", gpu_count=1)).id
    visitor.goto(f"/jobs/{job}")
    expect(visitor.page.locator("#live")).to_have_attribute("data-state", "running")
    page = visitor.goto("/timeline")
    page.wait_for_timeout(500)
    page.locator("#gantt").focus()
    page.keyboard.press("End")
    expect(page.locator("#gantt-said")).to_contain_text("by-keyboard")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/jobs/{job}")
    client.cancel(job)


def test_a_job_is_submitted_and_cancelled_by_keyboard_alone(visitor: Visitor, client: Client) -> None:
    page = visitor.goto("/submit")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # skip to the content
    page.keyboard.press("Tab")
    page.keyboard.type("sleep 600")
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "Submit":
            break
    page.keyboard.press("Enter")
    page.wait_for_url("**/jobs/*")
    job = page.url.rpartition("/")[2]
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.dataset.order") == "cancel":
            break
    page.keyboard.press("Enter")
    expect(page.locator("#ask")).to_contain_text(f"Cancel job {job}?")
    page.keyboard.press("Enter")
    expect(page.locator("#live")).to_have_attribute("data-state", "cancelled")
    assert client.job(job).state == "cancelled"


def test_who_may_not_do_it_is_shown_no_button_for_it(browser: Browser, guarded: ControlProcess) -> None:
    with guarded.client() as admin:
        admin.create_tenant(NewTenantBody(name="team"))
        tokens = {
            name: admin.create_token(NewTokenBody(role=role, tenant="team", user=name)).token
            for name, role in (("ada", Role.USER), ("bob", Role.USER), ("vic", Role.VIEWER))
        }
    with Client(guarded.url, token=tokens["ada"]) as ada:
        job = ada.submit(JobBody(name="adas", command="true", hold=True)).id
    for name, may in (("ada", True), ("bob", False), ("vic", False)):
        made = Visitor(browser, guarded.url, **SHAPES["wide"])
        made.sign_in(tokens[name])
        page = made.goto("/queue")
        expect(page.locator(f"#job-{job}")).to_be_visible()
        assert page.locator(f"#job-{job} input").count() == may
        page = made.goto(f"/jobs/{job}")
        expect(page.locator("h1")).to_contain_text("adas")
        for button in ("[data-order]", "#change", "#again", "#terminal-card"):
            assert bool(page.locator(button).count()) == may, (name, button)
        assert page.get_by_text(f"stoker cancel {job}").count() == may
        for path in ("/nodes", "/activity", "/tenants", "/submit"):
            page = made.goto(path)
            assert page.locator("[data-drain], [data-resume]").count() == 0
        assert page.locator("#submit").count() == (name != "vic")
        made.close()
        assert made.complaints == []


def test_the_page_that_signs_in_commands_is_without_grave_faults_with_its_yes_button(
    browser: Browser, guarded: ControlProcess
) -> None:
    with guarded.client() as admin:
        token = admin.create_token(NewTokenBody(role=Role.ADMIN, user="una")).token
    for shape, scheme in (("wide", "light"), ("phone", "dark")):
        made = Visitor(browser, guarded.url, color_scheme=scheme, **SHAPES[shape])
        made.sign_in(token)
        page = made.goto(f"/command-login?port=65000&challenge={'x' * 43}&state=y")
        expect(page.locator("#yes")).to_be_visible()
        assert findings(page) == []
        made.close()
        assert made.complaints == []


def test_a_page_that_stood_still_while_the_server_was_restarted_says_that_it_is_old_and_catches_up(
    browser: Browser, guarded: ControlProcess
) -> None:
    """As one that the browser froze: no script of it runs. (Chromium freezes none that is shown, and shows every page
    where it has no windows.) A minute passes for it meanwhile, by the clock that it has.
    """
    with guarded.client() as admin:
        token = admin.create_token(NewTokenBody(role=Role.ADMIN, user="fay")).token
    made = Visitor(browser, guarded.url, **SHAPES["wide"])
    made.sign_in(token)
    page = made.goto("/queue")
    expect(page.locator("#pulse")).not_to_have_class("pulse off")
    page.evaluate("""() => {
      const passed = performance.now.bind(performance);
      performance.now = () => passed() + (window.still_ms ?? 0);
      window.kept = 1;
    }""")
    page.route("**/live", lambda route: None)  # the new stream waits until the page has said what it says
    debugger, stands = made.context.new_cdp_session(page), list[object]()
    debugger.on("Debugger.paused", lambda told: stands.append(told))
    debugger.send("Debugger.enable")
    debugger.send("Debugger.pause")
    until(lambda: page.wait_for_timeout(20) or stands, what="its next script to stand still")
    guarded.kill()
    guarded.start()
    with guarded.client() as admin:
        job = admin.submit(JobBody(name="meanwhile", command="true", hold=True)).id
    debugger.send("Runtime.evaluate", {"expression": "window.still_ms = 60000"})
    debugger.send("Debugger.disable")
    expect(page.locator("#stale")).to_contain_text("No word from the control plane")
    page.unroute("**/live")  # streams that wait there go on
    expect(page.locator(f"#job-{job}")).to_be_visible(timeout=6 * PATIENCE_MS)
    expect(page.locator("#stale")).to_be_hidden(timeout=6 * PATIENCE_MS)
    assert page.evaluate("window.kept") == 1, "it was never loaded anew"
    made.close()
    assert [each for each in made.complaints if "ERR_" not in each] == []


def test_a_session_that_ends_is_said_and_the_page_is_back_as_it_was_after_a_sign_in_on_another(
    browser: Browser, guarded: ControlProcess
) -> None:
    with guarded.client() as admin:
        tokens = [admin.create_token(NewTokenBody(role=Role.ADMIN, user="eva")) for _ in range(2)]
    made = Visitor(browser, guarded.url, **SHAPES["wide"])
    made.sign_in(tokens[0].token)
    page = made.goto("/submit")
    page.fill("[name=command]", "a long command that nobody types twice")
    page.fill("[name=comment]", "kept")
    with guarded.client() as admin:
        admin.revoke_token(tokens[0].id)
    expect(page.locator("#stale")).to_contain_text("Your session is over")
    expect(page.locator("#stale a")).to_have_attribute("href", "/login?next=%2Fsubmit")
    other = made.opened()
    other.goto(f"{made.url}/login")
    other.fill("#token", tokens[1].token)
    other.click("#sign-in button")
    other.wait_for_url(f"{made.url}/")
    page.bring_to_front()
    expect(page.locator("#stale")).to_be_hidden()
    expect(page.locator("[name=command]")).to_have_value("a long command that nobody types twice")
    page.check("[name=hold]")
    page.click("#submit button.primary")
    page.wait_for_url("**/jobs/*")
    page.click(".menu summary")
    page.click("[data-post='/logout-everywhere']")
    page.wait_for_url("**/login")
    expect(other.locator("#stale")).to_contain_text("Your session is over")
    assert page.evaluate("sessionStorage.length") == 0
    made.close()
    assert made.complaints == []
