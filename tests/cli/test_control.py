"""What `stoker control status` and `promote` say of one of several control planes."""

import msgspec
import pytest
from click.testing import CliRunner

from stoker.cli.commands import control
from stoker.wire.rest.control import ControlView

ACTIVE = ControlView(
    name="a",
    role="active",
    epoch=3,
    log_epoch=3,
    active="a",
    active_http="http://a:8080",
    in_sync=("a", "b"),
    position=9,
)
STANDBY = msgspec.structs.replace(ACTIVE, name="b", role="standby")


def rows(view: ControlView) -> dict[str, str]:
    shown = {"active": control.active_words(view), "epoch": control.epoch_words(view)}
    return {**shown, "marker": control.marker_words(view)}


def test_while_the_marker_is_read_it_says_who_is_active_and_under_which_epoch() -> None:
    assert rows(STANDBY) == {"active": "a at http://a:8080", "epoch": "3", "marker": ""}


def test_while_the_marker_is_out_of_reach_it_says_what_was_last_known_and_since_when() -> None:
    assert rows(msgspec.structs.replace(STANDBY, marker_reached=False, unchanged_ms=42_000)) == {
        "active": "unknown; last known: a at http://a:8080",
        "epoch": "unknown; last known: 3",
        "marker": "out of reach; its newest known version was first seen 42 s ago",
    }


def test_one_that_has_never_read_the_marker_never_shows_epoch_zero() -> None:
    view = ControlView(name="b", role="standby", epoch=0, log_epoch=3, position=9, marker_reached=False)
    assert rows(view) == {
        "active": "unknown",
        "epoch": "unknown; the newest record of its log has 3",
        "marker": "out of reach; never read since this life of the control plane began",
    }


def test_a_holder_whose_lease_is_over_is_not_called_active() -> None:
    dead = msgspec.structs.replace(STANDBY, silent=True, unchanged_ms=7_000)
    assert rows(dead)["active"] == "nobody, by the marker: a at http://a:8080 hasn't renewed its lease for at least 7 s"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Of one that is active."""
    methods: list[str] = []

    def answer(data_dir: object, method: str, path: str) -> ControlView:
        methods.append(method)
        return ACTIVE

    monkeypatch.setattr(control, "_ask", answer)
    return methods


def test_one_that_is_active_already_is_not_promoted_and_says_so_and_the_exit_status_is_0(asked: list[str]) -> None:
    done = CliRunner().invoke(control.control, ["promote", "--force"])
    assert (done.exit_code, asked) == (0, ["GET"])
    assert done.stderr == "a is active already: nothing was done, and nothing is lost\n"
