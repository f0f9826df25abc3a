"""What the doctor makes of the answers of several control planes."""

import pytest
from msgspec.structs import replace

from stoker.brain.domain.errors import refuse
from stoker.cli.doctor import pair
from stoker.cli.doctor.finding import CheckResult, Level
from stoker.cli.doctor.pair import Half
from stoker.cli.doctor.serving import Health, Server
from stoker.wire.rest.cluster import ControlView

HEALTH = Health(version="1.4.0", cluster_id="c1")
ACTIVE = ControlView(name="a", role="active", epoch=3, active="a", in_sync=("a", "b"), position=9)
STANDBY = replace(ACTIVE, name="b", role="standby", why="a is active")


def half(view: ControlView, health: Health = HEALTH) -> Half:
    return Half(address=f"http://{view.name or 'x'}:8080", health=health, view=view)


def told(*halves: Half) -> list[CheckResult]:
    return list(pair.pair(halves))


def test_a_whole_pair_is_fine() -> None:
    assert told(half(ACTIVE), half(STANDBY)) == [
        CheckResult(Level.OK, "a (http://a:8080) is active, and b (http://b:8080) stands by")
    ]


def test_one_database_for_all_has_no_set_and_is_fine() -> None:
    (said,) = told(half(replace(ACTIVE, in_sync=())), half(replace(STANDBY, in_sync=())))
    assert said.level is Level.OK


def test_one_that_does_not_answer_is_wrong_and_the_rest_is_looked_at_all_the_same() -> None:
    gone = Half(address="http://b:8080", refusal=refuse("no_server", "no control plane answers", "start one"))
    away, alone = told(half(replace(ACTIVE, in_sync=("a",))), gone)
    assert (away.level, away.fix) == (Level.ERROR, "start one")
    assert "http://b:8080 doesn't tell what it is: no control plane answers" in away.what
    assert (alone.level, "only a (http://a:8080) is in sync" in alone.what) == (Level.WARNING, True)


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (half(ACTIVE), half(replace(STANDBY, name="a")), "2 are called a"),
        (half(ACTIVE), half(replace(ACTIVE, name="b")), "2 are active: a (http://a:8080), b (http://b:8080)"),
        (half(replace(STANDBY, name="a", why="gone")), half(STANDBY), "none of those that tell is active (a (http://a"),
        (half(ACTIVE), half(STANDBY, Health(version="1.6.0", cluster_id="c1")), "their versions are more than one"),
        (half(ACTIVE), half(STANDBY, Health(version="2.0.0", cluster_id="c1")), "their versions are more than one"),
        (half(ACTIVE), half(STANDBY, Health(version="1.4.0", cluster_id="c2")), "they are of 2 clusters"),
        (half(ACTIVE), half(replace(STANDBY, name="", why="")), "is a control plane of its own"),
        (half(ACTIVE), half(replace(STANDBY, marker_reached=False)), "b (http://b:8080) can't reach the marker"),
    ],
)
def test_what_no_pair_may_be_is_wrong(first: Half, second: Half, words: str) -> None:
    (said,) = told(first, second)
    assert (said.level, words in said.what) == (Level.ERROR, True), said


def test_versions_that_are_one_apart_run_beside_each_other() -> None:
    assert [said.level for said in told(half(ACTIVE), half(STANDBY, Health(version="1.5.2", cluster_id="c1")))] == [
        Level.OK
    ]


def test_a_secret_that_is_not_as_it_was_is_doubtful() -> None:
    (said,) = told(half(ACTIVE), half(replace(STANDBY, secret="the secret was removed")))
    assert (said.level, said.what) == (Level.WARNING, "b (http://b:8080): the secret was removed")


def test_settings_that_differ_from_the_active_ones_are_doubtful() -> None:
    (said,) = told(half(ACTIVE), half(replace(STANDBY, unlike="failover.mode is async here and sync on a")))
    assert (said.level, said.what) == (Level.WARNING, "b (http://b:8080): failover.mode is async here and sync on a")


def test_one_server_alone_is_not_asked_whether_it_is_a_pair() -> None:
    assert pair.pair_checks(Server("http://a:1")) == []
    assert [check.name for check in pair.pair_checks(Server("http://a:1, http://b:1"))] == ["pair"]
