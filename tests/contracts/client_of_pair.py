"""What must every client do that is given an active control plane and its standby? As `client`, over a `Call`."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import pytest

from stoker.brain.domain.access import Role
from stoker.brain.domain.errors import StokerError
from stoker.wire.client import JobBody, LogQuery, Notice, Stale, Waiting, retry
from stoker.wire.client import http_message as http
from stoker.wire.rest.token import NewTokenBody
from tests.contracts.client import Call, Connect, refusal_of, unused
from tests.real.fake_pair import Pair, fake_pair

JOB: Final = JobBody(command="true")
LONG_S: Final = 20.0
"""In the place of what mustn't be waited for: far beyond what a slow machine adds to anything here."""


@contextmanager
def meanwhile(after_s: float, do: Callable[[], object]) -> Iterator[None]:
    """`do` happens while the block waits for something."""
    timer = threading.Timer(after_s, do)
    timer.start()
    try:
        yield
    finally:
        timer.join(10)


def spent_s(call: Callable[[], object]) -> float:
    began = time.monotonic()
    call()
    return time.monotonic() - began


def each_request_goes_to_the_one_that_was_active_last(connect: Connect) -> None:
    with fake_pair() as pair, connect(pair.servers) as call:
        pair.take_over()
        call("submit", JOB)
        assert (len(pair.a.targets), len(pair.b.targets)) == (1, 1)
        for _ in range(3):
            call("submit", JOB)
        assert (len(pair.a.targets), len(pair.b.targets)) == (1, 4)
        assert call("server") == pair.b.url


def a_standby_did_nothing_so_any_request_goes_on_to_the_active(connect: Connect) -> None:
    with fake_pair() as pair, connect(pair.servers) as call:
        call("submit", JOB)
        for word, words in (("requeue", ("1",)), ("signal", ("1", "USR1")), ("cancel", ("1",)), ("job", ("1",))):
            pair.a.role, pair.b.role = pair.b.role, pair.a.role
            call(word, *words)
        call("create_token", NewTokenBody(role=Role.VIEWER))
        assert pair.cluster.orders == ["submit", "requeue", "signal", "cancel", "token"]


def the_active_that_a_standby_names_is_asked_before_others(connect: Connect) -> None:
    with fake_pair() as pair, connect(f"{pair.b.url},{unused()},{unused()},{pair.a.url}") as call:
        pair.b.says_active = pair.a.url.replace("http://", "HTTP://") + "/"
        call("submit", JOB)
        assert pair.a.targets == pair.b.targets == ["POST /api/v1/jobs"]


def a_server_that_was_not_named_is_never_asked_whatever_a_standby_says(connect: Connect) -> None:
    with fake_pair() as pair, fake_pair() as other, connect(pair.b.url) as call:
        pair.b.says_active = other.a.url
        refusal = refusal_of(call, "submit", JOB)
        assert refusal.code == "not_active"
        assert f"the active control plane is {other.a.url}" in refusal.message
        assert f"--server {pair.b.url},{other.a.url}" in refusal.hint
        assert len(pair.b.targets) == 1, "it is said at once: no patience helps"
        assert other.a.heard == []


def names_of_active_ones_that_were_not_given_are_no_reason_to_give_up_several(connect: Connect) -> None:
    """Each may know the other by another name than we do."""
    with fake_pair() as pair, connect(pair.servers) as call:
        pair.a.role, pair.a.says_active, pair.b.says_active = "standby", "http://b.site:1", "http://a.site:1"
        with meanwhile(0.3, pair.take_over):
            call("submit", JOB)
    with fake_pair() as pair, connect(pair.servers, patience_s=0.3) as call:
        pair.a.role, pair.a.says_active, pair.b.says_active = "standby", "http://b.site:1", "http://a.site:1"
        refusal = refusal_of(call, "submit", JOB)
        assert "site:1 is said to be active, and isn't asked because you didn't name it" in refusal.hint


def a_take_over_is_waited_out_and_ends_in_one_job(connect: Connect) -> None:
    with fake_pair() as pair, connect(pair.servers) as call:
        call("submit", JOB)
        pair.a.kill()
        with meanwhile(0.8, pair.take_over):
            took_s = spent_s(lambda: call("submit", JOB))
        assert 0.8 <= took_s < 1.5, "soon after the take-over"
        assert pair.cluster.orders == ["submit", "submit"]


def a_take_over_is_waited_out_also_by_a_client_that_nobody_has_answered_yet(connect: Connect) -> None:
    with fake_pair() as pair, connect(pair.servers) as call:
        pair.a.kill()
        with meanwhile(0.3, pair.take_over):
            call("submit", JOB)


def a_submit_that_was_done_and_not_answered_is_not_done_again_by_whoever_takes_over(connect: Connect) -> None:
    with fake_pair() as pair, connect(pair.servers) as call:
        job = _submit_while_the_active_dies(pair, call)
        assert (job.id, pair.cluster.orders) == ("1", ["submit"])
        asked = [*pair.a.heard, *pair.b.heard]
        assert len({each.headers["idempotency-key"] for each in asked if each.method == "POST"}) == 1


def _submit_while_the_active_dies(pair: Pair, call: Call) -> Any:  # noqa: ANN401  # whatever the client answers
    """Every answer of the active is lost until it dies, too."""
    pair.a.loses = 1_000
    with meanwhile(0.2, pair.a.kill), meanwhile(0.4, pair.take_over):
        return call("submit", JOB)


def an_order_that_may_not_come_twice_is_not_given_to_whoever_takes_over(connect: Connect) -> None:
    with fake_pair() as pair, connect(pair.servers) as call:
        call("submit", JOB)
        pair.a.loses = 1
        assert refusal_of(call, "requeue", "1").code == "no_answer"
        assert pair.cluster.orders == ["submit", "requeue"]


def an_answer_that_breaks_off_in_the_middle_is_asked_for_again(connect: Connect) -> None:
    with fake_pair() as pair, connect(pair.servers) as call:
        pair.a.halves = 1
        assert call("submit", JOB).id == "1"
        pair.a.halves = 1
        assert call("job", "1").id == "1"
        assert pair.cluster.orders == ["submit"]


def no_active_for_as_long_as_patience_lasts_is_said_with_what_each_server_said(connect: Connect) -> None:
    with fake_pair() as pair, connect(pair.servers, patience_s=0.5) as call:
        pair.a.kill()
        refusal = refusal_of(call, "submit", JOB)
        assert refusal.code == "not_active"
        assert refusal.message == (
            f"no control plane is active (127.0.0.1:{pair.a.port}: Connection refused; "
            f"127.0.0.1:{pair.b.port}: control plane b is a standby)"
        )
        pair.b.kill()
        refusal = refusal_of(call, "submit", JOB)
        assert (refusal.code, refusal.facts["tried"]) == ("no_server", 2)


def a_read_wants_the_active_and_takes_a_standbys_answer_when_there_is_none(connect: Connect) -> None:
    noticed: list[Notice] = []
    with (
        fake_pair() as pair,
        connect(pair.servers, notify=noticed.append) as call,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(retry, "FRESH_S", LONG_S)
        call("submit", JOB)
        call("job", "1")
        assert noticed == []
        pair.a.kill()
        took_s = spent_s(lambda: call("job", "1"))
        assert retry.STALE_AFTER_S - 0.2 < took_s < LONG_S
        stale = [each for each in noticed if isinstance(each, Stale)]
        assert [(each.lag_ms, each.tried) for each in stale] == [(250, 2)]
        patch.setattr(retry, "STALE_AFTER_S", LONG_S)
        assert spent_s(lambda: call("job", "1")) < LONG_S, "the next one isn't made to wait again"
        pair.take_over()
        call("job", "1")
        noticed.clear()
        call("job", "1")
        assert noticed == []


def a_read_is_answered_by_whoever_takes_over_soon_enough_and_is_not_stale(connect: Connect) -> None:
    noticed: list[Notice] = []
    with fake_pair() as pair, connect(pair.servers, notify=noticed.append) as call:
        call("submit", JOB)
        pair.a.kill()
        with meanwhile(0.7, pair.take_over):
            assert call("job", "1").id == "1"
        assert noticed == []


def one_server_is_asked_as_it_is_and_its_standbys_answer_is_told(connect: Connect) -> None:
    noticed: list[Notice] = []
    with fake_pair() as pair, connect(pair.b.url, notify=noticed.append) as call:
        pair.cluster.submit("k")
        call("job", "1")
        assert "stoker-stale" not in pair.b.heard[0].headers
        (stale,) = noticed
        assert str(stale) == "answered by a standby, 0.2 s behind"


def what_only_the_active_tells_is_waited_for(connect: Connect) -> None:
    with fake_pair() as pair, connect(pair.servers) as call:
        call("submit", JOB)
        pair.a.kill()
        with meanwhile(0.5, pair.take_over), pytest.MonkeyPatch.context() as patch:
            patch.setattr(retry, "STALE_AFTER_S", 0.2)
            assert call("logs", "1").data


def a_stopped_active_is_left_within_a_second_of_another_one_taking_over(connect: Connect) -> None:
    """It takes what is sent, and never answers."""
    with fake_pair() as pair, connect(pair.servers) as call:
        call("submit", JOB)
        pair.a.stop()
        with meanwhile(1.7, pair.take_over):
            took_s = spent_s(lambda: call("submit", JOB))
        assert 1.7 <= took_s < http.ANSWER_S / 2
        assert http.LOOK_MAX_S <= 1
        assert pair.cluster.orders == ["submit", "submit"]
        pair.a.go_on()


def what_may_not_come_twice_is_not_sent_to_one_that_hangs(connect: Connect) -> None:
    with fake_pair() as pair, connect(pair.servers) as call:
        pair.cluster.submit("k")
        pair.a.stop()
        pair.take_over()
        call("requeue", "1")
        call("signal", "1", "USR1")
        assert pair.cluster.orders == ["submit", "requeue", "signal"]
        assert pair.a.targets == []
        pair.a.go_on()


def a_stopped_active_that_nobody_replaces_does_not_hold_up_a_read_for_ever(connect: Connect) -> None:
    noticed: list[Notice] = []
    with (
        fake_pair() as pair,
        connect(pair.servers, notify=noticed.append) as call,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(retry, "FRESH_S", 1.0)
        patch.setattr(retry, "STALE_AFTER_S", 0.9)
        call("submit", JOB)
        pair.a.stop()
        assert spent_s(lambda: call("job", "1")) < http.ANSWER_S / 2
        assert any(isinstance(each, Stale) for each in noticed)
        for name in ("FRESH_S", "STALE_AFTER_S", "QUICK_CONNECT_S"):
            patch.setattr(retry, name, LONG_S)
        assert spent_s(lambda: call("job", "1")) < LONG_S, "the next one isn't made to wait again"


def a_slow_active_is_waited_for_while_the_other_is_a_standby(connect: Connect) -> None:
    with fake_pair() as pair, connect(pair.servers) as call:
        pair.a.stop()
        with meanwhile(1.2, pair.a.go_on):
            assert call("submit", JOB).id == "1"
        assert len(pair.a.targets) == 1


def a_person_is_told_what_is_waited_for_once_for_each_request(connect: Connect) -> None:
    noticed: list[Notice] = []
    with fake_pair() as pair, connect(pair.servers, notify=noticed.append) as call:
        pair.a.kill()
        with meanwhile(1.5, pair.take_over):
            call("submit", JOB)
        (waiting,) = noticed
        assert isinstance(waiting, Waiting)
        assert str(waiting).startswith("waiting: no control plane is active (127.0.0.1:")


def a_wait_and_a_follower_outlive_a_take_over_and_nothing_comes_twice(connect: Connect) -> None:
    with fake_pair() as pair, connect(pair.servers) as call:
        call("submit", JOB)

        def die() -> None:
            pair.cluster.write(b"before the take-over\n")
            pair.a.kill()

        def end() -> None:
            pair.take_over()
            pair.cluster.write(b"after it\n", ended=True)
            pair.cluster.end("1")

        whole = pair.cluster.log + b"before the take-over\nafter it\n"
        with meanwhile(0.4, die), meanwhile(0.8, end):
            parts = call("follow_logs", "1", LogQuery())
        assert b"".join(part.data for part in parts) == whole
        assert call("wait", "1").state == "succeeded"


def no_more_servers_than_may_be_are_asked(connect: Connect) -> None:
    with pytest.raises(StokerError) as caught, connect(",".join(f"http://h{n}" for n in range(9))):
        pass
    assert caught.value.refusal.code == "bad_server"


RULES: Final[Sequence[Callable[[Connect], None]]] = (
    each_request_goes_to_the_one_that_was_active_last,
    a_standby_did_nothing_so_any_request_goes_on_to_the_active,
    the_active_that_a_standby_names_is_asked_before_others,
    a_server_that_was_not_named_is_never_asked_whatever_a_standby_says,
    names_of_active_ones_that_were_not_given_are_no_reason_to_give_up_several,
    a_take_over_is_waited_out_and_ends_in_one_job,
    a_take_over_is_waited_out_also_by_a_client_that_nobody_has_answered_yet,
    a_submit_that_was_done_and_not_answered_is_not_done_again_by_whoever_takes_over,
    an_order_that_may_not_come_twice_is_not_given_to_whoever_takes_over,
    an_answer_that_breaks_off_in_the_middle_is_asked_for_again,
    no_active_for_as_long_as_patience_lasts_is_said_with_what_each_server_said,
    a_read_wants_the_active_and_takes_a_standbys_answer_when_there_is_none,
    a_read_is_answered_by_whoever_takes_over_soon_enough_and_is_not_stale,
    one_server_is_asked_as_it_is_and_its_standbys_answer_is_told,
    what_only_the_active_tells_is_waited_for,
    a_stopped_active_is_left_within_a_second_of_another_one_taking_over,
    what_may_not_come_twice_is_not_sent_to_one_that_hangs,
    a_stopped_active_that_nobody_replaces_does_not_hold_up_a_read_for_ever,
    a_slow_active_is_waited_for_while_the_other_is_a_standby,
    a_person_is_told_what_is_waited_for_once_for_each_request,
    a_wait_and_a_follower_outlive_a_take_over_and_nothing_comes_twice,
    no_more_servers_than_may_be_are_asked,
)
