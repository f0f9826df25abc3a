"""What does an answer mean that isn't the one that was asked for?"""

from collections.abc import Callable

import pytest

from stoker.brain.domain.errors import StokerError
from stoker.wire.client import endpoints
from stoker.wire.client.http_message import Reply
from stoker.wire.rest.log import LogQuery
from stoker.wire.rest.submit import JobBody


def test_several_members_are_no_job() -> None:
    """The server shows a list where several are named; one job was asked for, and nothing is wrong with the server."""
    with pytest.raises(StokerError) as caught:
        endpoints.job("72_[0-3]").read(Reply(200, {}, b'{"jobs":[],"total":4}'))
    assert caught.value.refusal.code == "several_jobs"
    assert "72_[0-3] names several members" in caught.value.refusal.message
    assert "`72_0`" in caught.value.refusal.hint


@pytest.mark.parametrize(
    "ask",
    [
        endpoints.job,
        endpoints.members,
        endpoints.why,
        endpoints.node,
        lambda text: endpoints.job_operation("cancel", text),
        lambda text: endpoints.logs(text, LogQuery()),
    ],
)
def test_nothing_is_no_id_and_is_refused_before_anything_is_sent(ask: Callable[[str], object]) -> None:
    """It asked for the list, whose answer was blamed on the server: `bad_answer`."""
    with pytest.raises(StokerError) as caught:
        ask("")
    assert caught.value.refusal.code == "missing_field"


@pytest.mark.parametrize("key", ["a\nX-Other: 1", "a\r", "ключ", "\x7f"])
def test_a_key_that_no_header_can_carry_is_refused_before_anything_is_sent(key: str) -> None:
    with pytest.raises(StokerError) as caught:
        endpoints.submit(JobBody(command="true"), key)
    assert caught.value.refusal.code == "bad_idempotency_key"
