"""Which of several servers is asked next, and what is said in the end. On a clock of the test's own."""

from collections.abc import Callable

import pytest

from stoker.brain.domain.errors import Refusal, StokerError
from stoker.wire.client.http_message import ANSWER_S, CONNECT_S, AnswerLate, AnswerLost, Reply, Request, Unreachable
from stoker.wire.client.retry import (
    FRESH_S,
    LEADERLESS_S,
    PATIENCE_S,
    PAUSE_FIRST_S,
    PAUSE_GROWTH,
    QUICK_CONNECT_S,
    REST_S,
    SAID_AFTER_S,
    SHORT_PAUSE_MAX_S,
    STALE_AFTER_S,
    VOUCH_S,
    RequestRetry,
    SendTo,
    Wait,
    wants_look,
)
from stoker.wire.client.servers import Servers, local_server, parsed_servers
from stoker.wire.client.staleness import Notice, Stale, Waiting
from tests.wire.test_retry import ONCE, READ, SUBMIT, said

A, B = PAIR = parsed_servers("http://a:1,http://b:1")
REFUSED = Unreachable(ConnectionRefusedError(111, "Connection refused"))
MUTE = Unreachable(TimeoutError("timed out"))
OK = Reply(200, {}, b"{}")
STALE = Reply(200, {"stoker-role": "standby", "stoker-lag-ms": "7"}, b"{}")
Answer = Reply | Unreachable | AnswerLost


def standby(active: str = "", **facts: str) -> Reply:
    return said("not_active", 503, active=active, **facts)


class Story:
    """A request of a client whose servers answer as `world` says; every answer takes its time."""

    def __init__(self, request: Request = READ, servers: Servers | None = None, patience_s: float = PATIENCE_S) -> None:
        self.servers = servers or Servers(PAIR)
        self.now_s = 100.0
        self.turns: list[SendTo] = []
        self.waits: list[Wait] = []
        self.noticed: list[tuple[float, Notice]] = []
        self._request = request
        self._patience_s = patience_s

    def run(self, world: Callable[[SendTo, float], tuple[Answer, float]]) -> Reply:
        """`world` says for a turn, at a time since the beginning, what comes and after how long."""
        began_s = self.now_s
        tries = RequestRetry(
            self._request,
            self.servers,
            self._patience_s,
            lambda notice: self.noticed.append((self.now_s - began_s, notice)),
            spread=lambda seconds: seconds,
            now=lambda: self.now_s,
        )
        while True:
            turn = tries.next()
            if isinstance(turn, Wait):
                self.waits.append(turn)
                self.now_s += turn.seconds
                continue
            self.turns.append(turn)
            answer, took_s = world(turn, self.now_s - began_s)
            self.now_s += took_s
            if isinstance(answer, Unreachable):
                tries.unreachable(turn.server, answer)
            elif isinstance(answer, AnswerLost):
                tries.lost(turn.server, answer)
            elif tries.accepts(turn.server, answer):
                return answer

    def refused(self, world: Callable[[SendTo, float], tuple[Answer, float]]) -> Refusal:
        with pytest.raises(StokerError) as caught:
            self.run(world)
        return caught.value.refusal

    @property
    def asked(self) -> str:
        return "".join("ab"[PAIR.index(turn.server)] for turn in self.turns)

    def wants_fresh(self, turn: SendTo) -> bool:
        return turn.request.headers.get("Stoker-Stale") == "no"


def of_each(a: Answer, b: Answer) -> Callable[[SendTo, float], tuple[Answer, float]]:
    return lambda turn, at_s: (a if turn.server == A else b, 0.0)


@pytest.mark.parametrize("over_after_s", [0.2, 0.7, 1.0, 3.0, 6.0, 12.0])
def test_c4_nobody_comes_back_later_than_an_outage_took_by_more_than_a_third_of_it(over_after_s: float) -> None:
    story = Story(SUBMIT)
    story.run(lambda turn, at_s: (OK if turn.server == B and at_s >= over_after_s else standby(), 0.0))
    late_s = story.now_s - 100.0 - over_after_s
    assert late_s <= min(PAUSE_FIRST_S + over_after_s / 3, SHORT_PAUSE_MAX_S)


def test_c4_pauses_grow_by_their_factor_up_to_their_most() -> None:
    story = Story(SUBMIT)
    story.refused(of_each(standby(), standby()))
    seconds = [wait.seconds for wait in story.waits]
    grown = [min(PAUSE_FIRST_S * PAUSE_GROWTH**number, SHORT_PAUSE_MAX_S) for number in range(len(seconds))]
    assert seconds == pytest.approx(grown)
    assert PATIENCE_S - SHORT_PAUSE_MAX_S < sum(seconds) <= PATIENCE_S


def test_c4_what_tries_take_counts_too() -> None:
    story = Story(SUBMIT)
    story.refused(lambda turn, at_s: (standby(), 2.0))
    assert story.now_s - 100.0 <= PATIENCE_S + 4 * 2.0


def test_c5_where_none_of_several_ever_answered_that_is_said_at_once() -> None:
    story = Story()
    assert story.refused(of_each(REFUSED, REFUSED)).code == "no_server"
    assert (story.asked, story.waits) == ("ab", [])


def test_c5_a_server_that_may_only_be_slow_to_reach_is_given_its_time_before_that_is_said() -> None:
    story = Story()
    assert story.refused(of_each(MUTE, REFUSED)).message.count("timed out") == 1
    assert story.asked == "aba"
    assert [turn.connect_s for turn in story.turns] == [QUICK_CONNECT_S, QUICK_CONNECT_S, CONNECT_S]


def test_c1_one_that_is_switched_off_is_asked_seldom_while_another_answers() -> None:
    story = Story(SUBMIT)
    story.refused(lambda turn, at_s: (MUTE, QUICK_CONNECT_S) if turn.server == A else (standby(), 0.0))
    assert story.asked.count("a") <= PATIENCE_S / REST_S + 1
    assert story.asked.count("b") > 10


def test_c7_the_one_that_is_named_is_next_and_first_in_the_round_after() -> None:
    story = Story(SUBMIT, Servers(parsed_servers("a:1,c:1,d:1,b:1")))
    turns: list[str] = []

    def world(turn: SendTo, at_s: float) -> tuple[Answer, float]:
        turns.append(turn.server.netloc)
        return (standby("http://b:1") if turn.server == A else OK if len(turns) > 5 else REFUSED), 0.0

    story.run(world)
    assert turns == ["a:1", "b:1", "c:1", "d:1", "b:1", "a:1", "c:1"]


def test_c7_a_lone_standby_that_names_another_is_said_at_once_and_one_that_names_nobody_is_waited_for() -> None:
    alone = Story(SUBMIT, Servers([A]))
    refusal = alone.refused(lambda turn, at_s: (standby("http://c:1"), 0.0))
    assert (refusal.code, refusal.facts["active"], alone.waits) == ("not_active", "http://c:1", [])
    waits = Story(SUBMIT, Servers([A]))
    waits.run(lambda turn, at_s: (OK if at_s > 3 else standby(), 0.0))
    assert waits.now_s >= 103


def test_c7_over_a_socket_the_active_one_is_named_and_the_socket_by_its_path() -> None:
    story = Story(ONCE, Servers([local_server("/data/control.sock")]), 0.0)
    refusal = story.refused(lambda turn, at_s: (standby("http://127.0.0.1:8080"), 0.0))
    assert refusal.message.startswith("/data/control.sock is a standby")
    assert "`--server http://127.0.0.1:8080`" in refusal.hint


@pytest.mark.parametrize("active", ["", "nonsense url", "ftp://x", "http://a:1/../", "http://[", "\x00"])
def test_c7_what_names_no_server_is_no_reason_to_ask_one(active: str) -> None:
    story = Story(SUBMIT)
    assert story.refused(of_each(standby(active), standby(active))).code == "not_active"
    assert set(story.asked) == {"a", "b"}


def test_c8_a_read_wants_the_active_until_none_has_answered_for_a_while() -> None:
    story = Story()
    story.run(lambda turn, at_s: (STALE if turn.server == B and not story.wants_fresh(turn) else standby(), 0.0))
    assert story.now_s - 100.0 == pytest.approx(STALE_AFTER_S)
    assert story.servers.first == B
    last = story.turns[-1]
    assert not story.wants_fresh(last)
    assert all(story.wants_fresh(turn) for turn in story.turns[:-2])


def test_c8_after_a_standbys_answer_the_next_is_taken_at_once_and_an_active_is_looked_for_again_later() -> None:
    servers = Servers(PAIR)
    servers.note(100.0, standby=True)
    servers.prefer(B)
    soon = Story(servers=servers)
    soon.run(of_each(REFUSED, STALE))
    assert (soon.asked, soon.wants_fresh(soon.turns[0])) == ("b", False)
    later = Story(servers=servers)
    later.now_s = 100.0 + LEADERLESS_S + 1
    later.run(lambda turn, at_s: (standby() if later.wants_fresh(turn) else STALE, 0.0))
    assert (later.asked, later.waits) == ("bab", [])
    assert later.wants_fresh(later.turns[0])
    again = Story(servers=servers)
    again.now_s = 200.0
    again.run(of_each(OK, standby()))
    assert (again.asked, servers.first) == ("ba", A)
    assert not servers.was_leaderless(0.0)


def test_c8_without_patience_a_standbys_answer_is_taken_at_once() -> None:
    story = Story(patience_s=0.0)
    story.run(lambda turn, at_s: (standby() if story.wants_fresh(turn) else STALE, 0.0))
    assert (story.asked, story.waits) == ("aba", [])


def test_c8_a_patience_that_is_shorter_than_that_ends_with_a_standbys_answer_too() -> None:
    story = Story(patience_s=0.4)
    story.run(lambda turn, at_s: (standby() if story.wants_fresh(turn) else STALE, 0.0))
    assert story.now_s - 100.0 <= 0.4


def test_c8_servers_that_all_let_themselves_be_waited_for_are_asked_none_the_less() -> None:
    story = Story()
    late = AnswerLate("nothing came")
    story.refused(lambda turn, at_s: (late, 1.0) if at_s else (standby(), 0.0))
    assert {story.asked[-1], story.asked[-2]} == {"a", "b"}


def test_c8_a_write_and_a_request_to_one_server_never_say_how_old_their_answer_may_be() -> None:
    for story in (Story(SUBMIT), Story(READ, Servers([A]))):
        story.run(lambda turn, at_s: (OK, 0.0))
        assert not story.wants_fresh(story.turns[0])


def test_c8_a_read_of_an_active_that_says_nothing_is_answered_by_the_standby() -> None:
    story = Story()

    def world(turn: SendTo, at_s: float) -> tuple[Answer, float]:
        if turn.server == A:
            return AnswerLate("nothing came"), turn.answer_s
        return (standby() if story.wants_fresh(turn) else STALE), 0.0

    story.run(world)
    assert story.now_s - 100.0 < FRESH_S + 1


def test_c9_what_a_proxy_says_for_a_server_that_is_away_is_waited_out_by_whoever_knows_the_server() -> None:
    proxy = Reply(502, {"content-type": "text/html"}, b"<h1>Bad Gateway</h1>")
    fresh = Story(SUBMIT)
    assert (fresh.refused(of_each(proxy, proxy)).code, fresh.waits) == ("bad_answer", [])
    known = Story(SUBMIT)
    known.servers.answered = True
    known.run(lambda turn, at_s: (OK if at_s > 1 else proxy, 0.0))
    never = Story(ONCE)
    never.servers.answered = True
    assert (never.refused(of_each(proxy, OK)).code, never.asked) == ("bad_answer", "a")


def test_c10_one_of_several_is_not_waited_for_as_long_as_a_single_one() -> None:
    def longest(request: Request, servers: Servers) -> float:
        story = Story(request, servers)
        story.run(lambda turn, at_s: (OK, 0.0))
        return story.turns[0].answer_s

    assert longest(READ, Servers([A])) == longest(SUBMIT, Servers([A])) == ANSWER_S
    assert longest(READ, Servers(PAIR)) == FRESH_S
    assert longest(SUBMIT, Servers(PAIR)) == PATIENCE_S
    assert longest(READ._replace(waits=True), Servers(PAIR)) == ANSWER_S, "the server is to take its time"
    assert longest(ONCE, Servers(PAIR)) == ANSWER_S, "what may not be repeated is waited for"


@pytest.mark.parametrize("code", ["lease_lost", "log_failed"])
def test_what_may_have_been_done_is_repeated_where_that_is_harmless_and_remembered_to_the_end(code: str) -> None:
    doubt = said(code, 503)
    story = Story(SUBMIT)
    assert story.run(lambda turn, at_s: (doubt if turn.server == A else OK, 0.0)) is OK
    gone = Story(SUBMIT)
    assert gone.refused(lambda turn, at_s: (REFUSED if at_s else doubt, 0.0)).code == code
    once = Story(ONCE)
    assert (once.refused(of_each(doubt, OK)).code, once.asked) == (code, "a")


def test_a_submit_that_was_lost_is_said_to_be_so_though_all_others_are_standbys_in_the_end() -> None:
    story = Story(SUBMIT)
    refusal = story.refused(lambda turn, at_s: (AnswerLost("broken") if not at_s else standby(), 0.0))
    assert refusal.code == "no_answer"
    assert "stoker list" in refusal.hint


def test_one_that_says_that_it_is_active_meanwhile_is_asked_next_and_the_silent_one_is_not_asked_twice() -> None:
    story = Story(SUBMIT)
    story.run(lambda turn, at_s: (AnswerLost("b is active", elsewhere=B) if turn.server == A else OK, 0.0))
    assert story.asked == "ab"


def test_the_end_says_what_each_server_said_and_why_a_standby_does_not_take_over() -> None:
    story = Story(SUBMIT)
    refusal = story.refused(of_each(REFUSED, standby(why="not in the in-sync set")))
    assert refusal.message == "no control plane is active (a:1: Connection refused; b:1: m (not in the in-sync set))"


def test_a_person_is_told_what_is_waited_for_once_and_not_at_once() -> None:
    story = Story(SUBMIT)
    story.refused(of_each(REFUSED, standby()))
    ((at_s, told),) = story.noticed
    assert told == Waiting("no control plane is active (a:1: Connection refused; b:1: m)")
    assert SAID_AFTER_S - SHORT_PAUSE_MAX_S <= at_s < SAID_AFTER_S + 1


def test_c7_a_standby_that_does_not_know_a_token_yet_is_passed_over_and_an_active_that_does_not_is_believed() -> None:
    behind = Reply(401, {**said("token_unknown", 401).headers, "stoker-role": "standby"}, said("token_unknown").body)
    for request in (READ, SUBMIT, ONCE):
        assert Story(request).run(of_each(behind, OK)) is OK
    assert Story().refused(of_each(behind, behind)).code == "not_active"
    assert Story().refused(of_each(said("token_unknown", 401), OK)).code == "token_unknown"
    alone = Story(READ, Servers([A]))
    assert (alone.refused(lambda turn, at_s: (behind, 0.0)).code, alone.waits) == ("token_unknown", [])


def test_c8_a_standbys_refusal_may_be_old_too_and_is_said_to_be() -> None:
    unknown = Reply(404, {**said("job_unknown", 404).headers, **STALE.headers}, said("job_unknown").body)
    story = Story(patience_s=0.0)
    assert (
        story.refused(lambda turn, at_s: (standby() if story.wants_fresh(turn) else unknown, 0.0)).code == "job_unknown"
    )
    assert [notice for _, notice in story.noticed] == [Stale("a:1", 7, 2)]


def test_c11_what_may_not_come_twice_wants_a_look_unless_an_active_answered_just_now() -> None:
    servers = Servers(PAIR)
    assert wants_look(ONCE, servers, 100.0)
    servers.note(100.0, standby=False)
    assert not wants_look(ONCE, servers, 100.0 + VOUCH_S)
    assert wants_look(ONCE, servers, 101.0 + VOUCH_S)
    servers.note(102.0, standby=True)
    assert wants_look(ONCE, servers, 102.0)
    assert not any(wants_look(request, Servers(PAIR), 100.0) for request in (READ, SUBMIT))
    assert not wants_look(ONCE, Servers([A]), 100.0)
