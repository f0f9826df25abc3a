"""The demo's checks hold what they say: each fails when its promise is broken."""

import click
import msgspec
import pytest

from stoker.brain.domain.lifecycle import JobState, Outcome
from stoker.brain.domain.reason import ReasonCode
from stoker.cli.demo.run import (
    EXPECTED,
    GANG,
    HOTFIX,
    MISTAKE,
    SWEEP,
    Evidence,
    checks,
    first_wave,
    overlaps,
    second_wave,
)
from stoker.cli.demo.screen import Screen
from stoker.cli.display.timeline import TimelineRow, TimelineSpan, make_timeline
from stoker.wire.rest.job import JobView
from stoker.wire.rest.node import GpuListView
from stoker.wire.rest.why import WhyView
from tests.cli.views import at, attempt, gpu, job, task


def good_jobs() -> dict[str, JobView]:
    jobs = {}
    for number, (name, expected) in enumerate(EXPECTED.items(), 1):
        tries = tuple(attempt(place, outcome) for place, outcome in enumerate(expected.outcomes, 1))
        jobs[name] = msgspec.structs.replace(
            job(number, name, expected.state, tries), exit_code=expected.exit_code, started_at=at(1)
        )
    ranks = (task(0, "demo-1"), task(1, "demo-2"))
    jobs[GANG] = msgspec.structs.replace(jobs[GANG], attempts=[attempt(1, Outcome.SUCCEEDED, ranks)])
    jobs[SWEEP] = msgspec.structs.replace(jobs[SWEEP], started_at=at(9))
    return jobs


def good_evidence() -> Evidence:
    counts = {"position": 1, "waiting": 1, "similar_ahead": 0}
    return Evidence(
        why=WhyView(
            id="7", state=JobState.PENDING, code=ReasonCode.INSUFFICIENT_GPUS, message="m", hint="", facts={}, **counts
        ),
        gang_logs=["rank 0 of 2 met", "rank 1 of 2 met"],
        pids={"a": 1, "b": 2},
        living=frozenset(),
        free_gpus=8,
        timeline=make_timeline([], []),
    )


def failed(jobs: dict[str, JobView], seen: Evidence) -> list[str]:
    return [says for held, says in checks(jobs, seen) if not held]


def changed(name: str, **change: object) -> dict[str, JobView]:
    jobs = good_jobs()
    jobs[name] = msgspec.structs.replace(jobs[name], **change)
    return jobs


def seen(**change: object) -> Evidence:
    from dataclasses import replace

    return replace(good_evidence(), **change)  # type: ignore[arg-type]  # each test names a field of Evidence


def test_when_all_is_well_nothing_fails() -> None:
    assert failed(good_jobs(), good_evidence()) == []


def test_every_job_that_is_submitted_is_expected() -> None:
    assert sorted(body.name or "" for body in (*first_wave(), *second_wave())) == sorted(EXPECTED)


@pytest.mark.parametrize("name", list(EXPECTED))
def test_a_job_that_ends_otherwise_is_noticed(name: str) -> None:
    assert failed(changed(name, state=JobState.NODE_FAILED), good_evidence())


@pytest.mark.parametrize("name", list(EXPECTED))
def test_a_job_that_was_never_seen_is_noticed(name: str) -> None:
    jobs = good_jobs()
    del jobs[name]
    assert failed(jobs, good_evidence())


def test_a_wrong_exit_code_is_noticed() -> None:
    (says,) = failed(changed("breaks", exit_code=4), good_evidence())
    assert "exit code 4" in says


def test_a_retry_that_was_not_needed_is_noticed() -> None:
    assert failed(changed("flaky", attempts=[attempt(1, Outcome.SUCCEEDED)]), good_evidence())


def test_a_gang_on_one_node_is_noticed() -> None:
    one_node = attempt(1, Outcome.SUCCEEDED, (task(0), task(1)))
    assert failed(changed(GANG, attempts=[one_node]), good_evidence())


def test_ranks_that_did_not_meet_are_noticed() -> None:
    assert failed(good_jobs(), seen(gang_logs=["rank 0 of 2 met", "rank 0 never listened"]))


def test_a_low_job_that_went_first_is_noticed() -> None:
    assert failed(changed(HOTFIX, started_at=at(10)), good_evidence())


def test_a_gang_that_never_waited_is_noticed() -> None:
    assert failed(good_jobs(), seen(why=None))


def test_a_process_that_lives_on_is_noticed() -> None:
    assert failed(good_jobs(), seen(living=frozenset({2})))
    assert failed(good_jobs(), seen(pids={MISTAKE: 1}))


def test_a_gpu_that_is_still_held_is_noticed() -> None:
    assert failed(good_jobs(), seen(free_gpus=7))


def test_a_gpu_held_twice_is_noticed() -> None:
    lane = [TimelineRow(node="n", index=0, uuid="g")]
    spans = [
        TimelineSpan(
            gpu="g", job=str(start), name="n", attempt=1, outcome="succeeded", start_ms=start, end_ms=start + 10
        )
        for start in (0, 10, 19)
    ]
    assert not overlaps(make_timeline(lane, spans[:2]))
    assert overlaps(make_timeline(lane, spans))
    assert failed(good_jobs(), seen(timeline=make_timeline(lane, spans)))


def test_of_the_demos_gpus_those_that_are_held_are_filled_and_those_that_are_free_recede() -> None:
    screen = Screen()
    gpus = [gpu(0, "demo-1", "busy"), gpu(1, "demo-1"), gpu(0, "demo-2")]
    screen.show([], GpuListView(total=3, idle=2, busy=1, offline=0, gpus=gpus))
    held, free = click.style("■", fg="cyan"), click.style("□", fg="bright_black")
    assert screen._devices() == f" demo-1 {held}{free} demo-2 {free}"
