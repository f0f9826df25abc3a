"""The page of several clusters: the rules of `web.clusters`.

Another cluster is a second control plane of this process, or an answer as one might come. Real servers, hostile ones
too, and a browser are met in `tests/real/test_web_clusters.py`.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from stoker.api.http.app import create_app
from stoker.brain.domain.units import Instant, Mono
from stoker.web.app import WebPages
from stoker.web.clusters import AGAIN_S_MAX, ASK_S, OLD_S, OtherCluster, OtherClusters, totals_of
from stoker.wire import endpoints
from stoker.wire.client.cluster_status import ClusterAnswer
from stoker.wire.rest.cluster import ClusterView, FreeGpusView
from tests.api.http.people import People
from tests.api.http.plane import Plane, plane_in
from tests.web.browsers import Browser, code_of, signed_in, text_of
from tests.web.test_pages import EVIL, Marks


def asking(plane: Plane) -> Callable[[], Awaitable[ClusterAnswer]]:
    async def ask() -> ClusterAnswer:
        reply = await plane.get(endpoints.STATUS.path)
        return ClusterAnswer(msgspec.json.decode(reply.body, type=ClusterView))

    return ask


class Answers:
    """Another cluster that answers what the test says, and counts how often it was asked."""

    def __init__(self, answer: ClusterAnswer) -> None:
        self.answer = answer
        self.asked = 0
        self.open = asyncio.Event()
        self.open.set()

    async def __call__(self) -> ClusterAnswer:
        self.asked += 1
        await self.open.wait()
        return self.answer


class HandClock:
    """A clock that stands until the test moves it."""

    def __init__(self) -> None:
        self.at_s = 1_000.0

    def now(self) -> Instant:
        return Instant(round(self.at_s * 1_000))

    def mono(self) -> Mono:
        return Mono(self.at_s)

    def awake(self) -> Mono:
        return self.mono()

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("nobody sleeps here")


async def view_of(plane: Plane, **changed: object) -> ClusterView:
    told = (await asking(plane)()).cluster
    assert told is not None
    return msgspec.structs.replace(told, **changed)


def show(plane: Plane, *others: OtherCluster) -> None:
    plane.app = create_app(plane.control, WebPages(plane.control, others=others))


@pytest.fixture
async def rome(tmp_path: Path) -> AsyncIterator[Plane]:
    """Another cluster, with two nodes of which one has more room."""
    folder = tmp_path / "rome"
    folder.mkdir()
    async with plane_in(folder) as made:
        await made.join("r1", 2, "H100")
        await made.join("r2", 4, "H100")
        yield made


async def test_the_page_has_this_cluster_and_others_with_sums_and_the_largest_that_would_start(
    plane: Plane, rome: Plane
) -> None:
    await plane.join("n1", 4)
    show(plane, OtherCluster("rome", "https://rome.example.org", asking(rome)))
    page = await Browser(plane).page("/clusters")
    text = text_of(page)
    assert 'href="https://rome.example.org"' in page
    assert "0 / 10 GPUs in use" in text
    assert "2 / 2 clusters in these sums" in text
    assert "4 \N{MULTIPLICATION SIGN} H100 (6 over several nodes)" in text
    assert "H100 6 4" in text, "of the model: free, and the most on one node"
    assert 'aria-current="page">Clusters' in page


async def test_a_cluster_that_names_no_others_has_the_page_and_no_link_to_it(plane: Plane) -> None:
    page = await Browser(plane).page("/clusters")
    assert "web.clusters" in page
    assert 'href="/clusters"' not in page


async def test_only_who_may_see_this_cluster_in_numbers_sees_the_others(people: People, rome: Plane) -> None:
    asked = Answers(await asking(rome)())
    show(people.plane, OtherCluster("rome", "https://rome.example.org", asked))
    for person in (people.admin, people.anna, people.viewer):
        assert "rome" in await (await signed_in(person)).page("/clusters")
    before = asked.asked
    nobody = await Browser(people.plane).ask("GET", "/clusters", accept="text/html")
    assert (nobody.status, nobody.headers["location"]) == (303, "/login?next=%2Fclusters")
    assert code_of(await Browser(people.plane).ask("GET", "/clusters")) == "token_missing"
    assert asked.asked == before, "for whom may not look nobody is asked"


async def test_one_that_is_away_or_refuses_is_a_row_with_one_line_beside_the_others(plane: Plane, rome: Plane) -> None:
    refuses = Answers(ClusterAnswer(None, "the token is unknown here [token_unknown]"))
    show(
        plane,
        OtherCluster("paris", "https://paris.example.org", refuses),
        OtherCluster("rome", "https://rome.example.org", asking(rome)),
    )
    text = text_of(await Browser(plane).page("/clusters"))
    assert "no answer since" in text
    assert "token_unknown" in text
    assert "2 / 3 clusters in these sums" in text


async def test_its_own_address_among_the_others_is_told_and_counts_once(plane: Plane) -> None:
    await plane.join("n1", 4)
    show(plane, OtherCluster("mirror", "https://mirror.example.org", asking(plane)))
    text = text_of(await Browser(plane).page("/clusters"))
    assert "it is this cluster itself" in text
    assert "0 / 4 GPUs in use" in text


async def test_what_another_cluster_says_of_itself_stays_text(plane: Plane) -> None:
    view = await view_of(plane, version=EVIL, cluster_id="other", jobs={EVIL: 1}, nodes={EVIL: 1})
    view.free_by_model.append(FreeGpusView(model=EVIL, free_gpus=1, most_on_node=1))
    show(
        plane,
        OtherCluster("rome", "https://rome.example.org", Answers(ClusterAnswer(view))),
        OtherCluster("paris", "https://paris.example.org", Answers(ClusterAnswer(None, EVIL))),
    )
    page = await Browser(plane).page("/clusters")
    assert "&lt;script&gt;alert" in page
    marks = Marks()
    marks.feed(page.replace("https://rome.example.org", "/rome").replace("https://paris.example.org", "/paris"))
    assert marks.dangerous == []


async def test_clusters_are_asked_only_when_somebody_looks_and_once_for_all_who_do(plane: Plane) -> None:
    answers, clock = Answers(ClusterAnswer(await view_of(plane, cluster_id="other"))), HandClock()
    others = OtherClusters([OtherCluster("rome", "https://rome.example.org", answers)], clock)
    assert answers.asked == 0
    for _ in range(5):
        await others.rows("here")
    assert answers.asked == 1
    clock.at_s += ASK_S
    await asyncio.gather(*(others.rows("here") for _ in range(5)))
    assert answers.asked == 2


async def test_one_that_fails_again_and_again_is_asked_less_often_and_not_for_ever(plane: Plane) -> None:
    answers, clock = Answers(ClusterAnswer(None, "away")), HandClock()
    others = OtherClusters([OtherCluster("rome", "https://rome.example.org", answers)], clock)
    for _ in range(400):
        await others.rows("here")
        clock.at_s += 1
    assert 400 / AGAIN_S_MAX <= answers.asked <= 400 / ASK_S / 3
    answers.answer = ClusterAnswer(await view_of(plane, cluster_id="other"))
    clock.at_s += AGAIN_S_MAX
    (row,) = await others.rows("here")
    assert (row.unanswered, row.since, row.old) == ("", "", False)


async def test_the_last_answer_stays_with_its_age_and_leaves_the_sums_once_it_is_old(plane: Plane) -> None:
    await plane.join("n1", 4)
    answers, clock = Answers(ClusterAnswer(await view_of(plane, cluster_id="other"))), HandClock()
    others = OtherClusters([OtherCluster("rome", "https://rome.example.org", answers)], clock)
    first = await others.rows("here")
    assert totals_of(first).gpus == 4
    answers.answer = ClusterAnswer(None, "away")
    clock.at_s += ASK_S
    (row,) = rows = await others.rows("here")
    assert (row.cluster, row.at) == (first[0].cluster, first[0].at)
    assert (row.old, row.unanswered, row.since > row.at) == (True, "away", True)
    assert (totals_of(rows).gpus, totals_of(rows).clusters) == (0, 0)


async def test_a_page_waits_for_no_cluster_that_is_slow_and_calls_its_figures_old_in_time(plane: Plane) -> None:
    answers, clock = Answers(ClusterAnswer(await view_of(plane, cluster_id="other"))), HandClock()
    others = OtherClusters([OtherCluster("rome", "https://rome.example.org", answers)], clock)
    answers.open.clear()
    (row,) = await others.rows("here")
    assert (row.cluster, row.unanswered) == (None, ""), "it is still being asked"
    answers.open.set()
    (row,) = await others.rows("here")
    assert row.cluster is not None
    answers.open.clear()
    clock.at_s += OLD_S + 1
    (row,) = await others.rows("here")
    assert (answers.asked, row.old, row.unanswered) == (2, True, "")
    answers.open.set()
    (row,) = await others.rows("here")
    assert not row.old
