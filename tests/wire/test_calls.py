"""What the calls of a client send, and what they make of an answer that is not the one that was asked for."""

import json
import signal
from collections.abc import Callable, Iterator
from enum import Enum, EnumType

import msgspec
import pytest

from stoker.brain.domain.access import Role
from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.tenant import Visibility
from stoker.wire import endpoints
from stoker.wire.client import calls
from stoker.wire.client.calls import Answer, Steps
from stoker.wire.client.http_message import Reply, Request, decoded
from stoker.wire.rest.log import LogQuery
from stoker.wire.rest.submit import JobBody
from stoker.wire.rest.token import NewTokenBody


def request_of(steps: Steps[object]) -> Request:
    """The first request of a call."""
    request = next(steps)
    assert isinstance(request, Request)
    return request


def answer_of(steps: Steps[Answer], *replies: Reply) -> Answer:
    """What a call makes of these replies."""
    next(steps)
    for reply in replies:
        try:
            steps.send(reply)
        except StopIteration as end:
            answer: Answer = end.value
            return answer
    raise AssertionError("it goes on")


OF_0_2_0 = {
    "token": {"id": "a1", "role": "user", "tenant": None, "user": "ann", "comment": "", "principal": "user:ann"}
    | {"created_at": "2026-11-29T04:00:00Z", "created_by": "user:local", "expires_at": None},
    "tenant": {"id": "ml", "tenant_id": "ml", "name": "ml", "parent": "", "path": "ml", "email": "", "organization": ""}
    | {"comment": "", "priority_tier": None, "priority_default": 500, "priority_max": None, "guaranteed_gpus": 0}
    | {"max_gpus": None, "max_gpu_memory_mb": None, "max_cpu_cores": None, "max_memory_mb": None}
    | {"max_concurrent_jobs": None, "max_pending_jobs": None, "max_runtime_minutes": None, "max_runtime_ms": None}
    | {"borrow": True, "lend": True, "pending_jobs": 0, "limit_gpus": None, "borrowed_gpus": 0}
    | {"used": {"gpus": 0, "gpu_memory_mb": 0, "cpu_cores": 0, "memory_mb": 0, "jobs": 0}},
}
"""Answers of that version: a pair is upgraded one by one, and people when they like."""


def test_a_newer_client_reads_tokens_and_tenants_of_an_older_control_plane() -> None:
    token, tenant = OF_0_2_0["token"], OF_0_2_0["tenant"]
    text = json.dumps({"tokens": [token], "total": 1}).encode()
    assert answer_of(calls.ask(endpoints.TOKENS), Reply(200, {}, text)).tokens[0].node is None
    made = json.dumps({**token, "token": "stoker_a1_x"}).encode()
    asked = calls.ask(endpoints.CREATE_TOKEN, body=NewTokenBody(role=Role.USER))
    assert answer_of(asked, Reply(201, {}, made)).token == "stoker_a1_x", "it is shown this once"
    text = json.dumps({"tenants": [tenant], "total": 1}).encode()
    (seen,) = answer_of(calls.ask(endpoints.TENANTS), Reply(200, {}, text)).tenants
    assert (seen.visibility, seen.nodes) == (Visibility.TENANT, ())


def test_several_members_are_no_job() -> None:
    """The server shows a list where several are named; one job was asked for, and nothing is wrong with the server."""
    with pytest.raises(StokerError) as caught:
        answer_of(calls.show_job("72_[0-3]"), Reply(200, {}, b'{"jobs":[],"total":4}'))
    assert caught.value.refusal.code == "several_jobs"
    assert "72_[0-3] names several members" in caught.value.refusal.message
    assert "`72_0`" in caught.value.refusal.hint


@pytest.mark.parametrize(
    "call",
    [
        calls.show_job,
        calls.show_members,
        lambda text: calls.ask(endpoints.WHY, text),
        lambda text: calls.ask(endpoints.NODE, text),
        lambda text: calls.tell_jobs(endpoints.CANCEL, text),
        lambda text: calls.read_log(text, LogQuery()),
    ],
)
def test_nothing_is_no_id_and_is_refused_before_anything_is_sent(call: Callable[[str], Steps[object]]) -> None:
    """It asked for the list, whose answer was blamed on the server: `bad_answer`."""
    with pytest.raises(StokerError) as caught:
        next(call(""))
    assert caught.value.refusal.code == "missing_field"


def test_a_request_has_a_body_where_one_is_given_and_none_otherwise() -> None:
    submitted = request_of(calls.submit(JobBody(command="true"), ""))
    assert json.loads(submitted.body or b"")["command"] == "true"
    assert request_of(calls.ask(endpoints.WHY, "7")).body is None


@pytest.mark.parametrize("key", ["a\nX-Other: 1", "a\r", "ключ", "\x7f"])
def test_a_key_that_no_header_can_carry_is_refused_before_anything_is_sent(key: str) -> None:
    with pytest.raises(StokerError) as caught:
        next(calls.submit(JobBody(command="true"), key))
    assert caught.value.refusal.code == "bad_idempotency_key"


class _Interrupting(EnumType):
    """An enumeration during which Ctrl-C is typed, whenever it is asked for what it lacks."""

    asked = 0

    def __getattr__(cls, name: str) -> object:
        if not name.startswith("_"):
            raise AttributeError(name)
        _Interrupting.asked += 1
        signal.raise_signal(signal.SIGINT)
        raise AttributeError(name)


@pytest.fixture
def default_interrupt() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("default_interrupt")
def test_ctrl_c_while_a_shape_is_looked_at_for_the_first_time_is_not_lost() -> None:
    """msgspec takes whatever is raised then for an attribute that isn't there."""

    class Word(Enum, metaclass=_Interrupting):
        A = "a"

    class Said(msgspec.Struct):
        word: Word

    _Interrupting.asked = 0
    with pytest.raises(KeyboardInterrupt):
        decoded(b'{"word": "a"}', Said)
    assert _Interrupting.asked, "msgspec asks for nothing any more: the interrupt needn't be held back"
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
