"""Two control planes, killed, stopped and starved, with real processes on their nodes."""

import http.client
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path

import pytest

from stoker.adapters.lease_folder.record import unsealed
from tests.real.failing_over import Submitter, begin, kill_and_measure, post, reckon
from tests.real.pair_process import Pair, until
from tests.real.postgres import programs, server

pytestmark = pytest.mark.timeout(300)

KILLS = [pytest.param(2, 12), pytest.param(8, 50, marks=pytest.mark.heavy)]
"""How often, with how many processes beside it. `benchmarks/take_over.py` does it twenty times, and measures."""


@pytest.fixture
def profile() -> str:
    return "fast"


@pytest.fixture(params=["a log for each", "one PostgreSQL"])
def pair(request: pytest.FixtureRequest, tmp_path: Path, profile: str) -> Iterator[Pair]:
    """On both stores. Not started."""
    with ExitStack() as undo:
        store = ""
        if request.param == "one PostgreSQL":
            if programs() is None:
                pytest.skip("no PostgreSQL here (Debian: apt-get install postgresql)")
            store = undo.enter_context(server()).database("stoker")
        yield undo.enter_context(Pair(tmp_path / "pair", store=store, profile=profile))


@pytest.mark.parametrize(("kills", "running"), KILLS)
def test_the_active_one_is_killed_again_and_again_and_nothing_is_lost_nothing_runs_twice_nobody_is_disturbed(
    pair: Pair, kills: int, running: int
) -> None:
    pair.start()
    work = begin(pair, running=running)
    submitter = Submitter(pair, work)
    submitter.start()
    for number in range(kills):
        kill_and_measure(pair, work, number)
    submitter.end()
    assert len(work.acknowledged) > kills
    reckon(pair, work)


@pytest.mark.parametrize("profile", ["default"])  # with the fast one a busy machine is a lost lease
def test_one_that_is_stopped_past_its_lease_and_goes_on_has_no_say_any_more(pair: Pair) -> None:
    pair.start()
    old, new = pair.active, pair.standby
    job = post(old, {"command": "true", "gpu_count": 1})
    old.stop()
    pair.until_active(new)
    newer = post(new, {"command": "true", "gpu_count": 1})
    assert int(newer) > int(job)
    old.go_on()
    # Whatever it is asked at once: it refuses, or the new log holds it.
    try:
        status, answer = old.ask("POST", "/api/v1/jobs", {"command": "true", "name": "late"})
    except (OSError, http.client.HTTPException):
        status, answer = 0, {}
    assert status not in (200, 201), answer
    pair.until_whole()
    assert pair.active is new

    def listed() -> set[str]:
        """By either half; one may just refuse, since it waits for its first look at a log that both share."""
        answers = [half.ask("GET", "/api/v1/jobs?limit=10")[1] for half in pair.halves]
        return {each["id"] for answer in answers for each in answer.get("jobs", ())}

    until(lambda: listed() >= {job, newer}, pair.story)
    assert listed() <= {job, newer}, "what came late is nowhere"


def test_a_standby_answers_reads_and_says_so_and_names_the_active_one_for_the_rest(tmp_path: Path) -> None:
    with Pair(tmp_path / "pair") as pair:
        pair.start()
        job = post(pair.active, {"command": "true", "gpu_count": 1})
        standby = pair.standby
        until(lambda: standby.ask("GET", f"/api/v1/jobs/{job}")[0] == 200, pair.story)
        client = http.client.HTTPConnection(standby.host, standby.http_port, timeout=10)
        client.request("GET", f"/api/v1/jobs/{job}", headers={"authorization": f"Bearer {pair.token}"})
        answer = client.getresponse()
        assert (answer.status, answer.headers["Stoker-Role"]) == (200, "standby")
        assert int(answer.headers["Stoker-Lag-Ms"]) < 5_000
        client.close()
        for method, path in (("POST", "/api/v1/jobs"), ("DELETE", f"/api/v1/jobs/{job}")):
            status, refused = standby.ask(method, path, {"command": "true"} if method == "POST" else None)
            assert (status, refused["code"]) == (503, "not_active")
            assert refused["facts"]["active"] == pair.active.url
        assert standby.ask("GET", f"/api/v1/jobs/{job}/why")[1]["code"] == "not_active"
        assert standby.ask("GET", f"/api/v1/jobs/{job}", **{"stoker-stale": "no"})[1]["code"] == "not_active"
        assert standby.ask("GET", "/ready")[1]["code"] == "not_active"


def holders(marker: Path) -> list[str]:
    """Who had the lease, one after the other."""
    versions = [unsealed(path.read_bytes(), int(path.stem)) for path in sorted(marker.glob("*.marker"))]
    return [name for name, _ in groupby(each.holder.name if each.holder else "nobody" for each in versions)]


def test_one_that_is_told_to_end_hands_over_at_once_and_the_pair_is_whole_again_once_it_is_back(tmp_path: Path) -> None:
    with Pair(tmp_path / "pair", profile="default") as pair:
        pair.start()
        old, new = pair.active, pair.standby
        job = post(old, {"command": "true", "gpu_count": 1})
        assert old.terminate() == 0
        pair.until_active(new)
        assert holders(pair.marker)[-3:] == [old.name, "nobody", new.name], "the lease was given back, not waited for"
        assert new.ask("GET", f"/api/v1/jobs/{job}")[0] == 200
        old.start()
        pair.until_whole()
