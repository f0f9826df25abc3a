"""May a page that somebody looks at submit jobs to a control plane on his machine? Tried in a real browser.

Each attempt is made twice: on a control plane, and on a server that lets everything in and so shows that the browser
does send it.
"""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from stoker.brain.domain.access import Role
from stoker.wire.client import Client
from stoker.wire.local_socket import SOCKET_NAME, is_served
from stoker.wire.rest.token import NewTokenBody
from tests.real.browser import Site, find_browser, site, visited
from tests.real.control_process import ControlProcess, free_port
from tests.real.tokens import token_in
from tests.real.up_process import UpProcess, environment, stoker, until

JOB: Final = {"command": "id", "comment": "="}
NAME: Final = "evil.example"
ATTEMPTS: Final = """
const job = JSON.stringify(JOB), report = {};
const frame = (with_) => document.body.appendChild(Object.assign(document.createElement("iframe"), with_));
const loaded = (node) => new Promise((done) => { node.onload = () => done("loaded"); });

const ways = {
  simple: (at) => fetch(at, {method: "POST", mode: "no-cors", headers: {"content-type": "text/plain"}, body: job})
    .then((answer) => answer.type),
  silent: (at) => fetch(at, {method: "POST", mode: "no-cors", referrerPolicy: "no-referrer", body: job})
    .then((answer) => answer.type),
  beacon: async (at) => navigator.sendBeacon(at, job),
  form: async (at) => {
    const target = frame({name: "f" + Math.random()});
    const form = document.createElement("form"), field = document.createElement("input");
    Object.assign(form, {method: "POST", action: at, enctype: "text/plain", target: target.name});
    [field.name, field.value] = job.split("=");
    document.body.appendChild(form).appendChild(field);
    const done = loaded(target);
    form.submit();
    return done;
  },
  sandboxed: (at) => {
    const inner = frame({sandbox: "allow-scripts"});
    const asks = `fetch("${at}", {method: "POST", mode: "no-cors", body: ${JSON.stringify(job)}})`;
    const said = new Promise((done) => addEventListener("message", (event) => done(event.data), {once: true}));
    inner.srcdoc = `<script>${asks}.then(() => "sent", String).then((x) => parent.postMessage(x, "*"))<\\/script>`;
    return said;
  },
  preflighted: (at) => fetch(at, {method: "POST", headers: {"content-type": "application/json"}, body: job})
    .then((answer) => answer.text()),
  order: (at) => fetch(at + "/1", {method: "DELETE"}).then((answer) => answer.text()),
  read: (at) => fetch(at).then((answer) => answer.text()),
  told: (at) => fetch(at, {headers: {authorization: "Bearer TOKEN"}}).then((answer) => answer.text()),
};

(async () => {
  for (const [name, at] of Object.entries(TARGETS))
    for (const [way, attempt] of Object.entries(ways))
      report[name + "." + way] = await attempt(at + "/api/v1/jobs").catch((fault) => "failed: " + fault.message);
  await fetch("/report", {method: "POST", body: JSON.stringify(report)});
})();
"""


def page(token: str = "none", **targets: str) -> str:
    script = ATTEMPTS.replace("JOB", json.dumps(JOB)).replace("TARGETS", json.dumps(targets)).replace("TOKEN", token)
    return f"<!doctype html><title>kittens</title><body><script>{script}</script></body>"


@pytest.fixture(scope="module", autouse=True)
def browser() -> str:
    return find_browser()


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    with UpProcess(tmp_path_factory.mktemp("up"), "--nodes", "1", "--gpus-per-node", "1") as cluster:
        yield cluster


@pytest.fixture
def control(tmp_path: Path) -> Iterator[ControlProcess]:
    with ControlProcess(tmp_path / "data") as started:
        yield started


def shown(folder: Path, target: str, token: str = "none") -> tuple[dict[str, Any], Site]:
    """What a page of another origin reports, and the server that lets everything in."""
    with site() as open_to_all, site(page(token, stoker=target, other=open_to_all.url)) as evil:
        return visited(folder, evil.url + "/", evil), open_to_all


def assert_nothing_came_through(report: dict[str, Any], open_to_all: Site) -> None:
    sent = [(got.method, got.body) for got in open_to_all.got if got.path == "/api/v1/jobs"]
    submits = [body for method, body in sent if method == "POST" and json.loads(body) == JOB]
    assert len(submits) == 5, "simple, silent, beacon, form and sandboxed are sent, whoever is asked"
    for way in ("preflighted", "order", "read", "told"):
        assert str(report[f"stoker.{way}"]).startswith("failed: "), (way, report)


def test_a_page_of_another_origin_submits_reads_and_orders_nothing_where_no_token_is_wanted(
    up: UpProcess, tmp_path: Path
) -> None:
    report, open_to_all = shown(tmp_path, up.url)
    assert_nothing_came_through(report, open_to_all)
    with Client(up.url) as client:
        assert client.jobs().total == 0


def test_it_does_not_where_tokens_are_wanted_either_even_if_it_knows_one(
    control: ControlProcess, tmp_path: Path
) -> None:
    report, open_to_all = shown(tmp_path, control.url, control.tokens.admin)
    assert_nothing_came_through(report, open_to_all)
    with control.client() as client:
        assert client.jobs().total == 0


LOADS: Final = """
const report = {};
const load = (tag, with_) => new Promise((done) => {
  const node = Object.assign(document.createElement(tag), with_);
  [node.onload, node.onerror] = [() => done("loaded"), () => done("failed")];
  document.body.appendChild(node);
});
(async () => {
  for (const [name, at] of Object.entries(TARGETS))
    report[name] = await load("object", {data: at}) + " " + await load("img", {src: at});
  await fetch("/report", {method: "POST", body: JSON.stringify(report)});
})();
"""


def test_a_page_of_another_origin_can_not_find_out_what_there_is(tmp_path: Path, up: UpProcess) -> None:
    """What is loaded into a page comes without an `Origin`, and the page learns whether it loaded."""
    targets = {"there": f"{up.url}/api/v1/nodes/node-1", "nowhere": f"{up.url}/api/v1/nodes/none-such"}
    script = LOADS.replace("TARGETS", json.dumps(targets))
    with site(f"<!doctype html><title>kittens</title><body><script>{script}</script></body>") as evil:
        report = visited(tmp_path, evil.url + "/", evil)
    assert report["there"] == report["nowhere"]


@pytest.mark.parametrize("wants_tokens", [False, True], ids=["up", "control"])
def test_a_page_that_rebinds_its_own_name_to_this_machine_submits_and_reads_nothing(
    up: UpProcess, control: ControlProcess, tmp_path: Path, wants_tokens: bool
) -> None:
    """To the browser it is the page's own server, so everything is sent and every answer can be read."""
    port = control.http_port if wants_tokens else up.http_port
    with site(page(stoker=f"http://{NAME}"), rebound=port) as evil:
        report = visited(tmp_path, f"http://{NAME}/", evil, f"--proxy-server={evil.url}")
    code = "token_missing" if wants_tokens else "foreign_origin"
    for way in ("preflighted", "order", "read"):
        assert json.loads(report[f"stoker.{way}"])["code"] == code, (way, report)
    with control.client() if wants_tokens else Client(up.url) as client:
        assert client.jobs().total == 0


def test_a_page_of_a_listed_origin_may_ask_with_a_token_and_not_without(tmp_path: Path) -> None:
    data, port = tmp_path / "data", free_port()
    text = token_in(data, NewTokenBody(role=Role.ADMIN))
    with site(page(text, stoker=f"http://127.0.0.1:{port}")) as portal:
        settings = (f"data_dir={data}", f"http.port={port}", "grpc.port=0", f"http.cors_origins={portal.url}")
        words = stoker("control", *(word for setting in settings for word in ("--set", setting)))
        with (tmp_path / "control.log").open("wb") as log:
            daemon = subprocess.Popen(words, stdout=log, stderr=log, env=environment(tmp_path))
        try:
            until(lambda: is_served(data / SOCKET_NAME), 30, "the control plane")
            report = visited(tmp_path, portal.url + "/", portal)
        finally:
            daemon.terminate()
            daemon.wait(20)
    assert json.loads(report["stoker.told"])["total"] == 0, report
    for way in ("preflighted", "order", "read"):
        assert json.loads(report[f"stoker.{way}"])["code"] == "token_missing", (way, report)
