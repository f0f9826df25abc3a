"""What `stoker control status` and `promote` say of one of several control planes."""

import msgspec
import pytest
from click.testing import CliRunner

from stoker.brain.domain.errors import StokerError, refuse
from stoker.cli.commands import control
from stoker.wire.rest.cluster import ControlView

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
    shown = {"active": control.active_text(view), "epoch": control.epoch_text(view)}
    return {**shown, "marker": control.lease_record_text(view)}


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


def promoted(monkeypatch: pytest.MonkeyPatch, before: ControlView, after: ControlView) -> str:
    """What is told beside the answer."""
    monkeypatch.setattr(control, "_ask", lambda data_dir, method, path: before if method == "GET" else after)
    done = CliRunner().invoke(control.control, ["promote", "--force"])
    assert done.exit_code == 0, done.output
    return done.stderr


def test_a_standby_that_was_in_sync_and_took_over_by_itself_needed_no_force(monkeypatch: pytest.MonkeyPatch) -> None:
    active = msgspec.structs.replace(ACTIVE, name="b", active="b", epoch=4)
    told = promoted(monkeypatch, STANDBY, active)
    assert told.startswith(
        "b was in sync and has taken over by itself: no force was needed. Nothing is lost in mode sync"
    )
    assert promoted(monkeypatch, STANDBY, msgspec.structs.replace(active, epoch=1_003)) == "", "its log had a gap"
    assert promoted(monkeypatch, msgspec.structs.replace(STANDBY, in_sync=("a",)), active) == ""


def test_which_of_several_is_to_be_promoted_is_asked_before_any_of_them(asked: list[str]) -> None:
    done = CliRunner().invoke(control.control, ["promote", "--force", "--server", "a:1,b:1"])
    assert (done.exit_code, asked) == (2, [])
    assert "name the one that is to become active" in done.stderr


def test_the_status_of_several_is_that_of_each_and_of_one_that_is_gone_its_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def answer(address: str, *asked: str, repeatable: bool) -> ControlView:
        if address == "c:1":
            raise StokerError(refuse("no_server", "no control plane answers", "start one"))
        return ACTIVE if address == "a:1" else STANDBY

    monkeypatch.setattr(control, "_ask", answer)
    done = CliRunner().invoke(control.control, ["status", "--server", "a:1,b:1,c:1"])
    assert (done.exit_code, done.stderr) == (0, "c:1: no control plane answers\n")
    first, second = done.stdout.split("\n\n")
    assert first.split()[:4] == ["server", "a:1", "name", "a"]
    assert second.split()[:4] == ["server", "b:1", "name", "b"]
    told = CliRunner().invoke(control.control, ["status", "--server", "a:1,b:1", "-o", "json"])
    assert [(each["server"], each["role"]) for each in msgspec.json.decode(told.stdout)] == [
        ("a:1", "active"),
        ("b:1", "standby"),
    ]


def test_where_none_of_several_answers_that_is_the_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(address: str, *asked: str, repeatable: bool) -> ControlView:
        raise StokerError(refuse("no_server", f"{address} is away", "start one"))

    monkeypatch.setattr(control, "_ask", answer)
    done = CliRunner().invoke(control.control, ["status", "--server", "a:1,b:1"])
    assert isinstance(done.exception, StokerError)
    assert (done.exception.refusal.message, done.stderr) == ("b:1 is away", "a:1: a:1 is away\n")
