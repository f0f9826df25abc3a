"""Every page, as its reader sees it: the rules of `web.site`, `web.cluster`, `web.job` and the templates.

A browser is met in `tests/real/test_web_pages.py`.
"""

import re
from html import escape, unescape
from html.parser import HTMLParser

import pytest

from stoker.brain.domain.ids import NodeName
from stoker.brain.domain.job import EndCause, TaskEnd
from stoker.brain.domain.report import TaskFinished
from tests.api.http.people import People, Person
from tests.api.http.plane import Plane
from tests.web.browsers import Browser, code_of, signed_in, text_of

PAGES = (
    *("/", "/queue", "/queue?state=failed&sort=-gpus&members=true", "/jobs/1", "/jobs/2", "/jobs/3", "/jobs/4"),
    *(
        "/jobs/4_[0-1]",
        "/jobs/3/why",
        "/jobs/1/gpus",
        "/nodes",
        "/nodes/n1",
        "/tenants",
        "/tenants?from=30d",
        "/timeline",
    ),
    *("/activity", "/activity?action=cancel", "/control", "/submit"),
)
EVIL = """<script>alert(1)</script><img src=x onerror=alert(2)>'" onfocus=alert(3) {{7*7}} javascript:alert(4)"""


class Marks(HTMLParser):
    """Elements and attributes of a page by which something would run, as a browser reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.dangerous: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        runs = [name for name in given if name.startswith("on") or name in ("style", "srcdoc")]
        leads = [
            value
            for name, value in attrs
            if name in ("href", "src", "action") and not (value or "").startswith(("/", "#"))
        ]
        if runs or leads or (tag == "script" and "src" not in given):
            self.dangerous.append(f"{tag} {attrs}")


async def jobs_of(person: Person, plane: Plane) -> None:
    """One that runs, one that waits, one that failed, an array."""
    agent = await plane.join("n1", 4)
    running = await person.submit(name="runs", gpu_count=2, env={"TOKENISH": "shown-to-its-owner"}, comment="c")
    await agent.run()
    failing = await person.submit(name="fails", gpu_count=1)
    await agent.end(await agent.run(), exit_code=3)
    waiting = await person.submit(name="queued-up", gpu_count=4, labels={"team": "nlp"})
    await person.submit(name="sweep", array="0-9%2", gpu_count=4)
    assert (running, failing, waiting) == ("1", "2", "3")


@pytest.fixture
async def busy(people: People) -> People:
    await jobs_of(people.anna, people.plane)
    return people


async def test_every_page_is_shown_to_everyone_who_may_read(busy: People) -> None:
    for person in (busy.admin, busy.anna, busy.lead, busy.bert, busy.viewer, busy.guest):
        browser = await signed_in(person)
        for path in PAGES:
            reply = await browser.ask("GET", path, accept="text/html")
            assert reply.status == 200, (path, reply.body[-600:])
            assert reply.body.startswith(b"<!doctype html>") or path.endswith(("/why", "/gpus"))


async def test_what_changes_is_sent_alone_and_without_what_only_the_page_of_its_reader_may_know(busy: People) -> None:
    browser = await signed_in(busy.anna)
    for path in PAGES:
        part = await browser.page(path, hx_request="true")
        assert "<html" not in part, path
        assert browser.csrf not in part, path
        if path not in ("/submit", "/jobs/4_[0-1]"):
            assert 'data-live="' in part, path
    assert browser.csrf in await browser.page("/queue")


async def test_a_page_shows_what_rest_shows_its_reader_and_nothing_else(busy: People) -> None:
    mine = await (await signed_in(busy.anna)).page("/jobs/1")
    assert "shown-to-its-owner" in mine
    assert "Cancel" in text_of(mine)
    for person in (busy.bert, busy.arno, busy.viewer):
        theirs = await (await signed_in(person)).page("/jobs/1")
        assert "shown-to-its-owner" not in theirs
        assert 'id="log"' not in theirs
        assert 'data-order="cancel"' not in theirs
    reduced = await (await signed_in(busy.bert)).page("/queue")
    assert "queued-up" not in reduced


async def test_a_readers_own_part_is_never_given_to_another_who_may_see_less(busy: People) -> None:
    """Both ask for the same part within the moment for which a rendering is shared."""
    mine, theirs = await signed_in(busy.anna), await signed_in(busy.bert)
    for _ in range(3):
        assert "runs" in await mine.page("/queue", hx_request="true")
        assert "runs" not in text_of(await theirs.page("/queue", hx_request="true")).replace("runs on", "")


async def test_only_admins_get_what_changes_nodes_and_the_audit_trail(busy: People) -> None:
    admin, anna = await signed_in(busy.admin), await signed_in(busy.anna)
    assert "data-drain" in await admin.page("/nodes")
    assert "data-drain" not in await anna.page("/nodes")
    assert "for admins" in await anna.page("/activity")
    assert "Audit trail" in await admin.page("/activity")


async def test_a_refusal_is_a_page_with_its_code_and_hint_and_a_line_where_a_part_was_asked_for(busy: People) -> None:
    browser = await signed_in(busy.anna)
    reply = await browser.ask("GET", "/jobs/999", accept="text/html")
    assert reply.status == 404
    assert "job_unknown" in reply.body.decode()
    part = await browser.ask("GET", "/jobs/999", accept="text/html", hx_request="true")
    assert (part.status, part.headers["stoker-code"]) == (404, "job_unknown")
    assert b"<" not in part.body
    assert (await browser.ask("GET", "/no/such/page", accept="text/html")).status == 404
    assert "nothing lives at" in (await browser.ask("GET", "/no/such", accept="text/html")).body.decode()
    assert code_of(await browser.ask("GET", "/no/such")) == "not_found"
    assert (await browser.ask("GET", "/queue?state=nonsense", accept="text/html")).status == 400


async def test_hostile_text_stays_text_on_every_page(people: People) -> None:
    anna, admin = people.anna, people.admin
    agent = await people.plane.join("n1", 4)
    job = await anna.submit(name=EVIL, comment=EVIL, command=EVIL, env={"X": EVIL}, labels={"team": "x"}, gpu_count=1)
    start = await agent.next_start()
    end = TaskEnd(cause=EndCause.START_FAILED, at=people.plane.control.clock.now(), error=EVIL)
    await people.plane.control.sessions.finished(TaskFinished(node=agent.node, key=start.key, end=end))
    await admin.ask("POST", "/api/v1/nodes/n1/drain", {"reason": EVIL})
    await admin.ask("PUT", "/api/v1/tenants/red", {"comment": EVIL, "organization": EVIL})
    browser = await signed_in(admin)
    paths = [path for path in PAGES if not re.match(r"/jobs/[2-4]", path)] + [f"/queue?name={'%3Cscript%3E'}"]
    seen = 0
    for path in paths:
        page = await browser.page(path)
        assert "<script>alert" not in page, path
        assert "<img src=x" not in page, path
        marks = Marks()
        marks.feed(page)
        assert marks.dangerous == [], path
        assert "49 javascript" not in page, path
        seen += page.count(escape(EVIL)[:25])
    assert seen > 5, "it is shown, as text"
    assert job == "1"


async def test_the_map_has_a_row_for_each_gpu_and_tells_tenants_only_where_rest_tells_the_job(busy: People) -> None:
    mine = (await (await signed_in(busy.anna)).ask("GET", "/map")).json
    theirs = (await (await signed_in(busy.bert)).ask("GET", "/map")).json
    assert mine["nodes"] == theirs["nodes"] == [["n1", 4]]
    assert [len(mine[name]) for name in ("index", "model", "status", "health", "job", "tenant", "use")] == [4] * 7
    assert mine["tenants"] == ["red"]
    assert mine["status"].count("busy") == 2
    assert {"1"} == {job for job in mine["job"] if job}
    assert theirs["tenants"] == []
    assert not any(theirs["job"])


async def test_the_timeline_has_bars_of_what_ran_and_of_what_is_planned(busy: People) -> None:
    await busy.plane.until(lambda: bool(busy.plane.control.loop.reservations()))
    told = (await (await signed_in(busy.anna)).ask("GET", "/timeline/bars?span=1h")).json
    held = {(bar["job"], bar["node"], tuple(bar["gpus"])) for bar in told["bars"] if not bar.get("planned")}
    assert {("1", "n1"), ("2", "n1")} == {(job, node) for job, node, _ in held}
    assert sorted(len(gpus) for _, _, gpus in held) == [1, 2]
    assert {bar["job"] for bar in told["bars"] if bar.get("planned")} >= {"3"}


async def test_a_job_page_offers_the_same_job_again_to_whom_sees_all_of_it(busy: People) -> None:
    """By a link, which needs no script."""
    browser = await signed_in(busy.anna)
    link = re.findall(r'id="again" href="([^"]*)"', await browser.page("/jobs/3"))[0]
    body = unescape(re.findall(r'data-again="([^"]*)"', await browser.page(link))[0])
    assert '"gpu_count":4' in body
    again = await busy.anna.ask("POST", "/api/v1/jobs", body.encode(), {"content-type": "application/json"})
    assert again.status == 201
    theirs = await signed_in(busy.bert)
    assert "data-again" not in await theirs.page("/submit?again=3"), "who sees a part of it gets no part of it here"
    assert (await browser.ask("GET", "/submit?again=999", accept="text/html")).status == 404


async def test_the_field_for_a_job_goes_to_it_or_looks_for_a_name(plane: Plane) -> None:
    browser = Browser(plane)
    for wanted, target in (("17", "/jobs/17"), ("3_4", "/jobs/3_4"), ("train", "/queue?name=%2Atrain%2A")):
        reply = await browser.ask("GET", f"/find?job={wanted}")
        assert (reply.status, reply.headers["location"]) == (303, target)
    odd = (await browser.ask("GET", "/find?job=//evil.example")).headers["location"]
    assert odd.startswith("/queue?")


async def test_nothing_is_shown_of_a_node_that_nobody_knows(plane: Plane) -> None:
    await plane.join("n1", 1)
    assert "n1" in plane.control.committer.state.nodes
    assert NodeName("n2") not in plane.control.committer.state.nodes
    assert (await Browser(plane).ask("GET", "/nodes/n2", accept="text/html")).status == 404
