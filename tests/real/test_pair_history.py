"""History, usage and audit of a pair on one PostgreSQL: the same from either side, before and after a take-over."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.real.failing_over import post
from tests.real.pair_process import Half, Pair, until
from tests.real.postgres import Server, programs, server

pytestmark = [
    pytest.mark.skipif(programs() is None, reason="no PostgreSQL here (Debian: apt-get install postgresql)"),
    pytest.mark.timeout(180),
]

KEPT = 2
"""Ended jobs that the state remembers: of all others only the history knows."""
RUN = 4
CANCELLED = 4


@pytest.fixture(scope="module")
def postgres() -> Iterator[Server]:
    with server() as made:
        yield made


def moment(ago_s: float = 0.0) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - ago_s))


def told(half: Half, since: str, to: str, jobs: list[str]) -> dict[str, Any]:
    """What one control plane says of what is over by then."""
    span = f"from={since}&to={to}"
    paths = [f"/api/v1/usage?{span}&by={key}" for key in ("tenant", "user", "job", "node")]
    paths += [f"/api/v1/jobs/{job}" for job in jobs] + [f"/api/v1/jobs/{job}/events" for job in jobs]
    paths += ["/api/v1/jobs?limit=100", *(f"/api/v1/audit?since={since}&until={to}{each}" for each in ("", "&job=1"))]
    found = {path: half.ask("GET", path) for path in paths}
    assert {status for status, _ in found.values()} == {200}, (half.name, found)
    return {path: answer for path, (_, answer) in found.items()}


def is_known(half: Half, refused_at: Half) -> bool:
    """Is it in the trail that this one was asked with a token that is none?"""
    where = half.ask("GET", "/api/v1/audit?outcome=token_unknown&limit=9")[1]["rows"]
    return len(where) == 2 if refused_at is half else len(where) >= 1


def test_both_answer_history_usage_and_audit_alike_before_and_after_a_kill_of_the_active_one(
    postgres: Server, tmp_path: Path
) -> None:
    with Pair(tmp_path / "pair", store=postgres.database("pair"), profile="default") as pair:
        pair.extra = {"policy": {"ended_jobs_max": KEPT}}
        began = moment(1)
        pair.start()
        old, new = pair.active, pair.standby
        pair.agent("n1").start()
        jobs = [post(old, {"command": "sleep 0.2", "gpu_count": 1}) for _ in range(RUN)]
        until(
            lambda: all(old.ask("GET", f"/api/v1/jobs/{job}")[1].get("state") == "succeeded" for job in jobs),
            pair.story,
        )
        held = [post(old, {"command": "true", "hold": True}) for _ in range(CANCELLED)]
        for job in held:
            assert old.ask("DELETE", f"/api/v1/jobs/{job}")[0] == 200
        for half in pair.halves:
            assert half.ask("GET", "/api/v1/jobs", authorization="Bearer stk_none")[0] == 401
        for half in pair.halves:
            until(lambda half=half: is_known(half, half), pair.story)  # type: ignore[misc]  # the one of this turn
        until(lambda: old.ask("GET", "/api/v1/cluster/status")[1]["total_jobs"] <= KEPT, pair.story)
        time.sleep(1.0)  # so that the span that is asked for has whole seconds, and is over
        to = moment()
        time.sleep(1.0)
        until(lambda: told(old, began, to, jobs) == told(new, began, to, jobs), lambda: differ(pair, began, to, jobs))
        before = told(old, began, to, jobs)
        assert [each["id"] for each in before["/api/v1/jobs?limit=100"]["jobs"]] == [*held[::-1], *jobs[::-1]]
        usage = before[f"/api/v1/usage?from={began}&to={to}&by=job"]
        assert sorted(line["key"] for line in usage["lines"]) == sorted(jobs)
        actions = [row["action"] for row in before[f"/api/v1/audit?since={began}&until={to}"]["rows"]]
        assert (actions.count("submit"), actions.count("cancel"), actions.count("ask")) == (
            RUN + CANCELLED,
            CANCELLED,
            2,
        )
        old.kill()
        pair.until_active(new)
        assert told(new, began, to, jobs) == before
        later = post(new, {"command": "true", "hold": True})
        assert new.ask("DELETE", f"/api/v1/jobs/{later}")[0] == 200
        old.start()
        pair.until_whole()
        for half in pair.halves:
            until(lambda half=half: told(half, began, to, jobs) == {**before, **listed(half)}, pair.story)  # type: ignore[misc]  # the one of this turn
            assert half.ask("GET", f"/api/v1/jobs/{later}/events")[1]["events"][-1]["event"] == "finished"
        assert not (old.folder / "history.db").exists()


def listed(half: Half) -> dict[str, Any]:
    return {"/api/v1/jobs?limit=100": half.ask("GET", "/api/v1/jobs?limit=100")[1]}


def differ(pair: Pair, since: str, to: str, jobs: list[str]) -> str:
    a, b = (told(half, since, to, jobs) for half in pair.halves)
    return "\n".join(f"{path}\n{json.dumps(a[path])}\n{json.dumps(b[path])}" for path in a if a[path] != b[path])
