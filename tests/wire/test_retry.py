"""When a request is sent again, and when its fault is told: C2 to C6 of `wire.client.retry`."""

import json
import re
from pathlib import Path

import pytest

from stoker.adapters.entropy import SystemEntropy
from stoker.brain.domain.errors import Refusal, StokerError, refuse
from stoker.cli import server
from stoker.wire import endpoints
from stoker.wire.client import retry
from stoker.wire.client.async_transport import AsyncTransport
from stoker.wire.client.calls import request_to, submit, submit_many, tell_jobs
from stoker.wire.client.http_message import AnswerLost, Reply, Request, Unreachable, checked_token, headers_of
from stoker.wire.client.retry import PAUSE_FIRST_S, PAUSE_MAX_S, RequestRetry, Wait
from stoker.wire.client.servers import Servers, parsed_servers
from stoker.wire.client.transport import Transport
from stoker.wire.client.trust import Credentials
from stoker.wire.rest.problem import MEDIA_TYPE, problem_of
from stoker.wire.rest.submit import JobBody
from stoker.wire.token import fresh_token
from tests.wire.test_calls import request_of

TOKEN = fresh_token(SystemEntropy())
(SERVER,) = parsed_servers("http://127.0.0.1:1")
READ = Request("GET", "/x", repeatable=True)
SUBMIT = Request("POST", "/x", b"{}", repeatable=True)
ONCE = Request("POST", "/x")
BROKEN = AnswerLost("broken")
AWAY = Unreachable(OSError("refused"))


def tries(request: Request, patience_s: float = 10.0, *, known: bool = True) -> RequestRetry:
    servers = Servers([SERVER])
    servers.answered = known
    return RequestRetry(request, servers, patience_s, spread=lambda seconds: seconds, now=lambda: 0.0)


def said(code: str, status: int = 503, *, after: str = "", **facts: str) -> Reply:
    problem = problem_of(refuse(code, "m", "h", **facts))
    body = json.dumps({name: getattr(problem, name) for name in problem.__struct_fields__}).encode()
    return Reply(status, {"content-type": MEDIA_TYPE, "retry-after": after}, body)


def raised(call: object) -> Refusal:
    assert callable(call)
    with pytest.raises(StokerError) as caught:
        call()
    return caught.value.refusal


def pauses(found: RequestRetry) -> tuple[list[float], str]:
    """Every pause until patience is over, and with which code."""
    waited: list[float] = []
    while True:
        try:
            turn = found.next()
        except StokerError as fault:
            return waited, fault.refusal.code
        if isinstance(turn, Wait):
            waited.append(turn.seconds)


def pause_after(found: RequestRetry) -> float:
    """The next pause, whoever is asked before it."""
    turn = found.next()
    while not isinstance(turn, Wait):
        turn = found.next()
    return turn.seconds


def test_a_request_that_may_not_come_twice_is_given_up_when_its_answer_is_lost() -> None:
    refusal = raised(lambda: tries(ONCE).lost(SERVER, BROKEN))
    assert refusal.code == "no_answer"
    assert "stoker list" in refusal.hint


def test_a_repeatable_one_is_sent_again_once_at_once_and_then_after_pauses() -> None:
    found = tries(SUBMIT)
    asked = [found.next()]
    found.lost(SERVER, BROKEN)
    asked.append(found.next())
    found.lost(SERVER, BROKEN)
    assert asked[0] == asked[1]
    assert found.next() == Wait(PAUSE_FIRST_S)


def test_pauses_grow_to_their_most_and_together_last_no_longer_than_patience() -> None:
    found = tries(SUBMIT, 20.0)
    found.lost(SERVER, BROKEN)
    waited, code = pauses(found)
    assert waited == sorted(waited)
    assert max(waited) == PAUSE_MAX_S
    assert 20.0 - PAUSE_MAX_S < sum(waited) <= 20.0
    assert code == "no_answer"
    assert pauses(found) == ([], "no_answer"), "once over it stays over"


def test_a_read_whose_answers_got_lost_says_that_no_server_answers() -> None:
    """It did nothing that a person would have to look for."""
    found = tries(READ)
    found.lost(SERVER, BROKEN)
    assert pauses(found)[1] == "no_server"


def test_without_patience_nothing_is_waited_for() -> None:
    found = tries(READ, 0.0)
    found.lost(SERVER, BROKEN)
    assert pauses(found) == ([], "no_server")


def test_a_server_that_never_answered_is_told_at_once_and_one_that_did_is_waited_for() -> None:
    fresh, known = tries(READ, known=False), tries(READ)
    for each in (fresh, known):
        each.unreachable(SERVER, AWAY)
    assert pauses(fresh) == ([], "no_server")
    assert pauses(known)[0]


@pytest.mark.parametrize("code", ["overloaded", "stopping", "too_many_connections", "request_too_slow"])
@pytest.mark.parametrize("request_", [READ, SUBMIT, ONCE], ids=["read", "submit", "once"])
def test_a_refusal_that_says_that_nothing_was_done_is_waited_out_for_any_request(code: str, request_: Request) -> None:
    found = tries(request_, known=False)
    assert not found.accepts(SERVER, said(code))
    assert pauses(found)[1] == code


def test_a_failed_log_is_waited_out_only_where_the_request_may_come_twice() -> None:
    """What was asked may be on disk."""
    assert not tries(SUBMIT).accepts(SERVER, said("log_failed"))
    assert raised(lambda: tries(ONCE).accepts(SERVER, said("log_failed"))).code == "log_failed"


@pytest.mark.parametrize("code", ["job_unknown", "queue_full", "bad_field", "internal_error", "job_ended"])
def test_any_other_refusal_is_told_at_once(code: str) -> None:
    assert raised(lambda: tries(SUBMIT).accepts(SERVER, said(code, 400))).code == code


def test_the_time_that_a_server_asks_for_is_waited() -> None:
    found = tries(READ)
    assert not found.accepts(SERVER, said("overloaded", after="2"))
    assert pause_after(found) == 2.0
    assert not found.accepts(SERVER, said("overloaded", after="soon"))
    assert pause_after(found) < 1.0


def test_a_repeat_that_finds_its_work_done_is_an_answer_and_a_first_try_is_not() -> None:
    request = request_to(endpoints.CANCEL, "7")
    first, repeat = tries(request), tries(request)
    assert raised(lambda: first.accepts(SERVER, said("job_ended", 409))).code == "job_ended"
    repeat.lost(SERVER, BROKEN)
    assert repeat.accepts(SERVER, said("job_ended", 409))
    told = tell_jobs(endpoints.CANCEL, "7")
    assert next(told) == request
    shown = told.send(said("job_ended", 409))
    assert isinstance(shown, Request)
    assert (shown.method, shown.target) == ("GET", "/api/v1/jobs/7"), "and what became of it is looked up"


def test_what_a_second_one_would_refuse_or_undo_is_not_repeatable_and_the_rest_is() -> None:
    once = {"requeue", "signal", "forward", "exec", "attach", "forget", "promote", "revoke_token"}
    once |= {f"{verb}_{noun}" for verb in ("create", "delete") for noun in ("partition", "tenant")} | {"create_token"}
    assert {name for name, row in endpoints.ENDPOINTS.items() if not row.repeatable} == once
    assert all(request_to(row, "x").repeatable == row.repeatable for row in endpoints.ENDPOINTS.values())


def test_every_submit_draws_a_key_of_its_own_unless_it_is_given_one() -> None:
    keys = [request_of(submit(JobBody(), "")).headers["Idempotency-Key"] for _ in range(100)]
    assert len(set(keys)) == 100
    assert request_of(submit(JobBody(), "mine")).headers["Idempotency-Key"] == "mine"
    assert len({request_of(submit_many([], "")).headers["Idempotency-Key"] for _ in range(100)}) == 100


@pytest.mark.parametrize("path", ["a/b c", "7_[0-4,9]", "?x=1", "#", "..", "ü", "a\r\nHost: x"])
def test_a_word_of_a_path_stays_one_word(path: str) -> None:
    target = request_to(endpoints.NODE, path).target
    assert target.isascii()
    assert target.count("/") == 4
    assert not set("?# \r\n") & set(target)


@pytest.mark.parametrize("host", ["a b", "a..b", "a" * 64, "a.\x00", "\u200b", "ä" * 64, ".a", "a\xa0b"])
def test_a_host_that_no_resolver_would_take_is_refused_before_one_is_asked(host: str) -> None:
    """The resolver raises something else than an OSError for these, and http.client refuses blanks in its own way."""
    with pytest.raises(StokerError) as caught:
        parsed_servers(f"http://{host}:80")
    assert caught.value.refusal.code == "bad_server"


@pytest.mark.parametrize("host", ["localhost", "a.b.", "[::1]", "127.0.0.1", "xn--bcher-kva.example", "bücher.example"])
def test_other_hosts_are_asked(host: str) -> None:
    (server,) = parsed_servers(f"http://{host}:80")
    assert server.netloc == f"{host}:80"


@pytest.mark.parametrize(
    ("code", "status"),
    [("token_missing", 401), ("token_unknown", 401), ("not_allowed", 403), ("too_many_wrong_tokens", 429)],
)
def test_a_token_that_is_refused_is_never_tried_again(code: str, status: int) -> None:
    found = tries(READ)
    assert raised(lambda: found.accepts(SERVER, said(code, status, after="1"))).code == code


def test_who_asks_too_often_is_asked_again_when_he_is_told_to_and_not_before() -> None:
    found = tries(ONCE, 20.0)
    assert not found.accepts(SERVER, said("rate_limited", 429, after="7"))
    assert pause_after(found) == 7
    assert not found.accepts(SERVER, said("rate_limited", 429, after="14"))
    assert raised(lambda: pause_after(found)).code == "rate_limited"


@pytest.mark.parametrize(
    "text",
    ["hunter2", "stoker_hunter2", "x\r\nhost: hunter2", f"{TOKEN}\n{TOKEN}", TOKEN[:-1]],
    ids=["word", "prefix", "header", "twice", "short"],
)
def test_what_is_no_token_is_never_sent_and_never_repeated(text: str) -> None:
    for kind in (Transport, AsyncTransport):
        refusal = raised(lambda kind=kind: kind(credentials=Credentials(text)))
        assert refusal.code == "bad_token"
        assert "hunter2" not in f"{refusal}"
        assert TOKEN[:-1] not in f"{refusal}"


def test_a_token_read_with_its_line_end_is_sent_without() -> None:
    assert checked_token(f"{TOKEN}\n") == TOKEN
    assert headers_of(READ, TOKEN)["Authorization"] == f"Bearer {TOKEN}"
    assert "Authorization" not in headers_of(READ)


def test_a_fingerprint_stays_here() -> None:
    text = f"{TOKEN}.{'f' * 43}"
    for kind in (Transport, AsyncTransport):
        assert kind(credentials=Credentials(text))._proof.token == TOKEN
    assert headers_of(READ, text)["Authorization"] == f"Bearer {TOKEN}"


def test_the_page_about_retries_has_the_numbers_that_hold() -> None:
    page = (Path(__file__).parents[2] / "docs" / "explanation" / "retries.md").read_text(encoding="utf-8")
    told = re.findall(r"^\| `(\w+)` \| ([0-9.]+) s \|", page, re.MULTILINE)
    assert len(told) == 8
    for name, value in told:
        held = [getattr(module, name) for module in (retry, server) if hasattr(module, name)]
        assert set(held) == {float(value)}, name
    assert f"{retry.PAUSE_GROWTH} times as long" in page
