"""What a standby says of the others, and what becomes of a client that believes it."""

import msgspec
import pytest

from stoker.brain.domain.ids import Epoch, Position
from stoker.brain.failover.inputs import ControlRole
from stoker.control.failover_control import PairView, not_active, not_promoted
from stoker.wire.client.http_message import Reply
from stoker.wire.client.servers import Servers
from stoker.wire.rest.problem import MEDIA_TYPE, problem_of
from tests.wire.test_retry import SUBMIT
from tests.wire.test_retry_pair import OK, A, Story

STANDBY = PairView(
    name="b",
    role=ControlRole.STANDBY,
    epoch=Epoch(3),
    active="c",
    active_http="http://c:1",
    in_sync=("c", "b"),
    record_reached=True,
    unchanged_s=0.4,
    silent=False,
    position=Position(9),
    lag_ms=200,
    why="c is active",
    secret_trouble="",
    config_drift="",
)
CUT = msgspec.structs.replace(STANDBY, record_reached=False, unchanged_s=9.0, why="the marker can't be reached: gone")
SILENT = msgspec.structs.replace(STANDBY, silent=True, unchanged_s=9.0, why="not in the in-sync set")


def of_standby(view: PairView) -> Reply:
    body = msgspec.json.encode(problem_of(not_active(view)))
    return Reply(503, {"content-type": MEDIA_TYPE, "stoker-role": "standby"}, body)


def test_a_client_of_the_standby_alone_is_sent_to_the_active_at_once() -> None:
    story = Story(SUBMIT, Servers([A]))
    refusal = story.refused(lambda turn, at_s: (of_standby(STANDBY), 0.0))
    assert (refusal.facts["active"], story.waits) == ("http://c:1", [])


def test_a_client_of_the_standby_alone_waits_for_it_while_nobody_knows_whether_another_one_is_active() -> None:
    for view in (CUT, SILENT):
        story = Story(SUBMIT, Servers([A]))
        assert story.run(lambda turn, at_s, view=view: (OK if at_s > 5 else of_standby(view), 0.0)) == OK
        given_up = Story(SUBMIT, Servers([A]))
        refusal = given_up.refused(lambda turn, at_s, view=view: (of_standby(view), 0.0))
        assert 13 < given_up.now_s - 100 <= 15, "patience has an end"
        assert (refusal.code, view.why in refusal.message) == ("not_active", True)


def test_what_is_only_last_known_is_named_in_the_hint() -> None:
    assert not_active(CUT).hint == (
        "http://c:1 was active by the newest version of the marker that it knows, first seen 9 s ago; "
        "here it is: the marker can't be reached: gone"
    )
    assert not_active(SILENT).hint == (
        "c was active, and hasn't renewed its lease for at least 9 s; here it is: not in the in-sync set"
    )


@pytest.mark.parametrize(
    ("view", "why", "hint"),
    [
        (STANDBY, "c is active", "stop the active one first: this one is in sync, and takes over by itself then"),
        (msgspec.structs.replace(STANDBY, in_sync=("c",)), "c is active", "stop the active one first"),
        (CUT, CUT.why, "mend that, and ask again: nobody becomes active without the marker"),
        (SILENT, "the log can't be written", "make room on its disk, or mend it; `log_unfit` in its log says more"),
        (SILENT, "it is taking over already", "ask again in a moment"),
        (SILENT, "c said a moment ago that it is active still", "ask again in a moment"),
    ],
)
def test_what_to_do_about_a_refused_promotion_depends_on_what_is_in_its_way(
    view: PairView, why: str, hint: str
) -> None:
    refusal = not_promoted(view, why)
    assert (refusal.code, refusal.message, refusal.hint) == ("promotion_refused", why, hint)
