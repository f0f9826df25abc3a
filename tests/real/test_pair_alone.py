"""One half of a pair started alone, or before its marker is there: with real processes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.adapters.data_folder.marks import MARK_NAME
from tests.real.agent_process import until
from tests.real.pair_process import Half, Pair

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with Pair(tmp_path / "pair") as made:
        yield made


def alone(pair: Pair, half: Half) -> None:
    """Start it with `failover.enabled: false`, everything else as before."""
    settings = pair.settings_of(half)
    failover = settings["failover"]
    assert isinstance(failover, dict)
    half.write({**settings, "failover": {**failover, "enabled": False}})
    half.start()


def test_the_one_that_was_active_goes_on_alone_and_the_other_one_never_takes_over_beside_it(pair: Pair) -> None:
    pair.start()
    active, standby = pair.active, pair.standby
    active.kill()
    standby.stop()  # it sees nothing until the other one is there again
    alone(pair, active)
    until(lambda: active.is_active, "alone")
    standby.go_on()
    until(lambda: "not in the in-sync set" in str(standby.standing()), "it waits")
    assert not standby.is_active
    assert not (active.folder / MARK_NAME).exists()


def test_one_whose_other_went_on_is_refused_with_a_way_out_and_changes_nothing(pair: Pair) -> None:
    pair.start()
    old, new = pair.active, pair.standby
    old.kill()
    pair.until_active(new)
    alone(pair, old)
    until(lambda: not old.lives, "it ends")
    said = old.output()
    assert f"can't go on alone: {new.name} was active last" in said
    assert f"remove {old.folder / MARK_NAME}" in said
    assert (old.folder / MARK_NAME).exists()
    old.write(pair.settings_of(old))
    old.start()
    pair.until_whole()


def test_one_that_waits_for_its_marker_says_so_to_people_and_ends_when_it_is_told_to(pair: Pair) -> None:
    pair.marker.rmdir()
    half = pair.a
    half.write(pair.settings_of(half))
    half.start()
    until(lambda: "marker_unreachable" in half.output(), "it waits")
    status, answer = half.ask("GET", "/api/v1/jobs")
    assert (status, answer["code"]) == (503, "not_active")
    assert "can't reach the marker" in answer["message"]
    pair.marker.mkdir()
    until(lambda: half.answers, "it goes on by itself")
    assert half.terminate() == 0
