"""A lost answer is asked for again, under the same key, and only then."""

from stoker.brain.domain.errors import StokerError, refuse
from stoker.cli.submit_key import PAUSES_S, new_key, submit_once
from stoker.wire.client import JobBody
from stoker.wire.rest.job import JobView
from tests.cli.views import job

BODY = JobBody(command="true")


class Server:
    """Answers with these codes in turn, then with a job; and remembers the keys it was given."""

    def __init__(self, *codes: str) -> None:
        self._codes = list(codes)
        self.keys: list[str] = []
        self.slept_s: list[float] = []

    def submit(self, body: JobBody, *, key: str) -> JobView:
        assert body is BODY
        self.keys.append(key)
        if self._codes:
            raise StokerError(refuse(self._codes.pop(0), "as the test wants", "none"))
        return job(7)


def outcome(server: Server) -> str:
    try:
        return submit_once(server, BODY, "k", server.slept_s.append).id  # type: ignore[arg-type]  # as far as it is used
    except StokerError as fault:
        return fault.refusal.code


def test_a_lost_answer_is_asked_for_again_under_the_same_key_while_the_server_comes_back() -> None:
    server = Server("no_answer", "no_server", "not_ready", "no_answer")
    assert outcome(server) == "7"
    assert server.keys == ["k"] * 5
    assert server.slept_s == list(PAUSES_S[:4])


def test_where_nothing_was_sent_nothing_is_sent_again() -> None:
    server = Server("no_server")
    assert (outcome(server), server.slept_s) == ("no_server", [])


def test_a_refusal_is_an_answer_also_after_one_was_lost() -> None:
    assert outcome(Server("queue_full")) == "queue_full"
    assert outcome(Server("no_answer", "queue_full")) == "queue_full"


def test_a_server_that_stays_away_leaves_the_person_with_what_is_known() -> None:
    server = Server("no_answer", *["no_server"] * 100)
    assert outcome(server) == "no_answer", "it may have been carried out"
    assert server.slept_s == list(PAUSES_S)


def test_no_two_submits_share_a_key() -> None:
    assert len({new_key() for _ in range(100)}) == 100
