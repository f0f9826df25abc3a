"""What if the wire between two control planes is cut, in one direction or in both, or the way to the marker?"""

import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.real.cuts import Machine, machines, needs_namespaces, unmounted
from tests.real.failing_over import post
from tests.real.pair_process import Half, Pair, until

pytestmark = [pytest.mark.timeout(300), needs_namespaces]

JOB = {"command": "true", "gpu_count": 1}


class Apart(NamedTuple):
    """A pair on two machines."""

    pair: Pair
    machines: dict[str, Machine]

    def of(self, half: Half) -> Machine:
        return self.machines[half.name]

    def cut(self, one: Half, other: Half, *, both: bool = True) -> None:
        """What `other` sends doesn't reach `one`; nor the other way round, if `both`."""
        self.of(one).drop_from(other.host)
        if both:
            self.of(other).drop_from(one.host)

    def heal(self) -> None:
        for machine in self.machines.values():
            machine.heal()

    def jobs(self, half: Half) -> set[str]:
        status, answer = half.ask("GET", "/api/v1/jobs?limit=100")
        assert status == 200, answer
        return {job["id"] for job in answer["jobs"]}

    def never_two(self, seconds: float) -> None:
        """Nobody else acts beside the active one for so long."""
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            assert sum(half.is_active for half in self.pair.halves) < 2, self.pair.story()
            time.sleep(0.05)


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apart]:
    """Each test leaves it whole."""
    with machines("a", "b") as (one, other), Pair(tmp_path_factory.mktemp("apart") / "pair") as pair:
        for half, machine in zip(pair.halves, (one, other), strict=True):
            half.host, half.prefix = machine.address, machine.prefix
        pair.start()
        yield Apart(pair, {"a": one, "b": other})


@pytest.mark.parametrize("both", [True, False], ids=["both ways", "the standby's answers are lost"])
def test_cut_off_from_the_standby_the_active_one_goes_on_alone_and_both_are_in_sync_again_afterwards(
    apart: Apart, both: bool
) -> None:
    active, standby = apart.pair.active, apart.pair.standby
    apart.cut(active, standby, both=both)
    jobs = {post(active, JOB, timeout_s=20) for _ in range(3)}
    apart.never_two(2)
    assert active.standing()["in_sync"] == [active.name]
    apart.heal()
    apart.pair.until_whole(60)
    assert apart.pair.active is active
    assert apart.jobs(active) == apart.jobs(standby) >= jobs


def test_what_the_active_one_sends_is_lost_and_it_still_goes_on_alone(apart: Apart) -> None:
    active, standby = apart.pair.active, apart.pair.standby
    apart.cut(standby, active, both=False)
    job = post(active, JOB, timeout_s=20)
    apart.never_two(2)
    apart.heal()
    apart.pair.until_whole(60)
    assert job in apart.jobs(standby)


def test_cut_off_from_the_marker_the_active_one_steps_down_and_answers_reads_and_the_other_takes_over(
    apart: Apart,
) -> None:
    active, standby = apart.pair.active, apart.pair.standby
    job = post(active, JOB)
    with unmounted(active.pid, apart.pair.marker):
        apart.pair.until_active(standby)
        until(lambda: active.standing().get("role") == "standby", apart.pair.story)
        assert job in apart.jobs(active)
        status, refused = active.ask("POST", "/api/v1/jobs", JOB)
        assert (status, refused["code"]) == (503, "not_active")
        newer = post(standby, JOB)
        apart.never_two(1)
    apart.pair.until_whole(60)
    assert apart.pair.active is standby
    assert apart.jobs(active) == apart.jobs(standby) >= {job, newer}


def test_cut_off_from_standby_and_marker_alike_the_active_one_stops_and_the_other_takes_over(apart: Apart) -> None:
    active, standby = apart.pair.active, apart.pair.standby
    job = post(active, JOB)
    with unmounted(active.pid, apart.pair.marker):
        apart.cut(active, standby)
        apart.pair.until_active(standby)
        newer = post(standby, JOB)
        apart.never_two(2)
        apart.heal()
    apart.pair.until_whole(60)
    assert apart.pair.active is standby
    assert apart.jobs(active) == apart.jobs(standby) >= {job, newer}


def test_while_nobody_reaches_the_marker_reads_go_on_and_nothing_is_acknowledged(apart: Apart) -> None:
    job = post(apart.pair.active, JOB)
    with unmounted(apart.pair.a.pid, apart.pair.marker), unmounted(apart.pair.b.pid, apart.pair.marker):
        until(lambda: not any(half.is_active for half in apart.pair.halves), apart.pair.story)
        until(lambda: all(half.answers for half in apart.pair.halves), apart.pair.story)
        for half in apart.pair.halves:
            assert job in apart.jobs(half)
            assert half.ask("POST", "/api/v1/jobs", JOB)[1]["code"] == "not_active"
    apart.pair.until_whole(60)
