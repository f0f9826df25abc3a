"""Waiting, paging and following, step by step, without a server: F1 to F4 of `wire.client.follow`."""

from collections.abc import Callable, Generator
from functools import partial
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest

from stoker.brain.domain.errors import StokerError, refuse
from stoker.brain.domain.lifecycle import JobState, Outcome
from stoker.wire.client import follow
from stoker.wire.client.calls import LogPart, Yield
from stoker.wire.client.follow import POLL_MAX_S, LogDecoder
from stoker.wire.client.http_message import Reply, Request
from stoker.wire.client.retry import Wait
from stoker.wire.rest.job import JobListQuery, JobListView, JobView, MembersView
from stoker.wire.rest.log import ATTEMPT_HEADER, ENDED_HEADER, OFFSET_HEADER, SIZE_HEADER, LogQuery
from tests.cli.views import attempt, job

Answer = Callable[[str, dict[str, str]], object]
"""Path and parameters of a request -> what comes of it, or a StokerError to raise."""


def play(
    steps: Generator[Request | Wait | Yield[Any], Reply | None, object], answer: Answer, steps_max: int = 200
) -> tuple[list[object], list[float]]:
    """What was given, and the pauses."""
    gave: list[object] = []
    paused: list[float] = []
    go_on: Callable[[], Request | Wait | Yield[Any]] = lambda: next(steps)  # noqa: E731  # it is set anew below
    for _ in range(steps_max):
        try:
            step = go_on()
        except StopIteration as end:
            return gave + ([] if end.value is None else [end.value]), paused
        reply: Reply | None = None
        if isinstance(step, Yield):
            gave.append(step.value)
        elif isinstance(step, Wait):
            paused.append(step.seconds)
        else:
            parts = urlsplit(step.target)
            words = {name: values[0] for name, values in parse_qs(parts.query).items()}
            try:
                reply = reply_of(answer(parts.path.removeprefix("/api/v1"), words))
            except StokerError as fault:
                go_on = partial(steps.throw, fault)
                continue
        go_on = partial(steps.send, reply)
    raise AssertionError(f"still going on after {steps_max} steps: {gave[-3:]}")


def reply_of(answer: object) -> Reply:
    """A reply that means this. Raises: the answer itself if it is a StokerError."""
    if isinstance(answer, StokerError):
        raise answer
    if not isinstance(answer, LogPart):
        return Reply(200, {}, msgspec.json.encode(answer))
    values = {OFFSET_HEADER: answer.offset, SIZE_HEADER: answer.size, ATTEMPT_HEADER: answer.attempt}
    headers = {name.lower(): str(value) for name, value in values.items()}
    return Reply(200, {**headers, ENDED_HEADER.lower(): str(answer.ended).lower()}, answer.data)


def refusal(code: str) -> StokerError:
    return StokerError(refuse(code, "m", "h"))


def ran(*outcomes: Outcome | None, state: JobState = JobState.RUNNING) -> JobView:
    """A job with these attempts; None = it is live."""
    attempts = tuple(attempt(number, outcome) for number, outcome in enumerate(outcomes, start=1))
    return job(7, state=state, attempts=attempts)


def test_a_job_is_asked_for_until_it_is_final_and_pauses_grow_to_their_most() -> None:
    looks = iter([job(7, state=JobState.RUNNING)] * 20 + [job(7, state=JobState.FAILED)])
    gave, paused = play(follow.wait("7", float("inf")), lambda *_: next(looks))
    assert [each.state for each in gave if isinstance(each, JobView)] == [JobState.FAILED]
    assert paused == sorted(paused)
    assert paused[-1] == POLL_MAX_S


def test_a_wait_ends_when_its_time_is_over() -> None:
    gave, paused = play(follow.wait("7", 1.0), lambda *_: job(7, state=JobState.RUNNING))
    assert [each.state for each in gave if isinstance(each, JobView)] == [JobState.RUNNING]
    assert 1.0 <= sum(paused) < 1.0 + POLL_MAX_S


def test_pages_follow_each_other_by_the_last_id_whatever_limit_was_given() -> None:
    pages = {"": ([job(5), job(4)], "4"), "4": ([job(3)], None)}

    def page(path: str, words: dict[str, str]) -> JobListView:
        assert (path, words["limit"], words["name"]) == ("/jobs", "1000", "n")
        jobs, following = pages[words.get("after", "")]
        return JobListView(jobs=jobs, total=3, limit=1000, next=following)

    gave, _ = play(follow.each_job(JobListQuery(name="n", limit=1, after="9")), page)
    assert [each.id for each in gave if isinstance(each, JobView)] == ["5", "4", "3"]


class Output:
    """What the attempts of job 7 write; one more byte can be read with each look."""

    def __init__(self, *written: bytes, faults: dict[int, StokerError] | None = None) -> None:
        self.written = written
        self.asked: list[tuple[int, int]] = []
        self.waits: list[str] = []
        self._faults = faults or {}
        self._done = [Outcome.FAILED] * (len(written) - 1) + [Outcome.SUCCEEDED]

    def __call__(self, path: str, words: dict[str, str]) -> object:
        if path == "/jobs/7":
            return ran(*self._done, state=JobState.SUCCEEDED)
        assert path == "/jobs/7/logs"
        number, offset = int(words["attempt"]), int(words.get("offset", "0"))
        self.asked.append((number, offset))
        self.waits.append(words["wait_s"])
        fault = self._faults.pop(len(self.asked), None)
        if fault is not None:
            return fault
        data = self.written[number - 1]
        end = min(len(data), offset + 1)
        return LogPart(data[offset:end], offset, end, end == len(data), number)


def text(gave: list[object]) -> list[tuple[int, bytes]]:
    parts: dict[int, bytes] = {}
    for part in gave:
        assert isinstance(part, LogPart)
        parts[part.attempt] = parts.get(part.attempt, b"") + part.data
    return list(parts.items())


def test_every_attempt_is_followed_in_turn_and_every_byte_given_once() -> None:
    output = Output(b"first", b"second")
    gave, _ = play(follow.follow("7", LogQuery()), output)
    assert text(gave) == [(1, b"first"), (2, b"second")]
    assert len(set(output.asked)) == len(output.asked), "nothing is asked for twice"


def test_one_attempt_alone_is_followed_when_it_is_asked_for() -> None:
    gave, _ = play(follow.follow("7", LogQuery(attempt=1)), Output(b"first", b"second"))
    assert text(gave) == [(1, b"first")]


def test_with_a_tail_following_begins_with_the_newest_attempt() -> None:
    gave, _ = play(follow.follow("7", LogQuery(tail=5)), Output(b"first", b"second"))
    assert text(gave) == [(2, b"second")]


def test_the_server_is_asked_to_wait_for_bytes() -> None:
    output = Output(b"ab")
    play(follow.follow("7", LogQuery()), output)
    assert set(output.waits) == {"30"}


@pytest.mark.parametrize("code", ["log_unavailable", "node_unreachable"])
def test_what_time_may_lift_is_waited_for_while_the_attempt_goes_on(code: str) -> None:
    looks = iter([ran(None), ran(None)])
    output = Output(b"abc", faults={2: refusal(code)})

    def answer(path: str, words: dict[str, str]) -> object:
        return (
            next(looks, ran(Outcome.SUCCEEDED, state=JobState.SUCCEEDED)) if path == "/jobs/7" else output(path, words)
        )

    gave, paused = play(follow.follow("7", LogQuery()), answer)
    assert text(gave) == [(1, b"abc")]
    assert paused


@pytest.mark.parametrize("code", ["log_unavailable", "attempt_unknown"])
def test_what_time_will_not_lift_is_raised(code: str) -> None:
    with pytest.raises(StokerError, match=code):
        play(follow.follow("7", LogQuery()), Output(b"abc", faults={2: refusal(code)}))


def test_an_attempt_that_has_not_begun_is_waited_for() -> None:
    looks = iter([job(7, state=JobState.PENDING)] * 3)
    output = Output(b"abc")

    def answer(path: str, words: dict[str, str]) -> object:
        return next(looks, None) or output(path, words) if path == "/jobs/7" else output(path, words)

    gave, paused = play(follow.follow("7", LogQuery()), answer)
    assert (text(gave), len(paused)) == ([(1, b"abc")], 3)


def test_a_job_that_ended_without_an_attempt_has_nothing_to_follow() -> None:
    assert play(follow.follow("7", LogQuery()), lambda *_: job(7, state=JobState.CANCELLED)) == ([], [])


@pytest.mark.parametrize("state", [JobState.RUNNING, JobState.FAILED])
def test_an_array_has_no_output_of_its_own_to_follow_and_the_server_says_so(state: JobState) -> None:
    """Neither an empty output, nor waiting until all members have ended."""
    whole = MembersView(
        total=2, pending=0, held=0, starting=0, running=1, stopping=0, succeeded=0, failed=1, cancelled=0
    )

    def answer(path: str, words: dict[str, str]) -> object:
        return refusal("several_jobs") if path == "/jobs/7/logs" else job(7, state=state, members=whole)

    with pytest.raises(StokerError) as caught:
        play(follow.follow("7", LogQuery()), answer)
    assert caught.value.refusal.code == "several_jobs"


def test_an_array_is_waited_for_as_any_job_is_and_nobody_asks_what_it_wrote() -> None:
    whole = MembersView(
        total=1, pending=0, held=0, starting=0, running=0, stopping=0, succeeded=1, failed=0, cancelled=0
    )
    looks = {"/jobs/7": job(7, state=JobState.SUCCEEDED, members=whole)}
    gave, _ = play(follow.wait("7", float("inf")), lambda path, _: looks[path])
    assert gave == [looks["/jobs/7"]]


def test_what_a_node_has_dropped_shows_as_a_part_that_begins_later() -> None:
    parts = iter([LogPart(b"head", 0, 1_000, False, 1), LogPart(b"tail", 996, 1_000, True, 1)])

    def answer(path: str, words: dict[str, str]) -> object:
        return ran(Outcome.SUCCEEDED, state=JobState.SUCCEEDED) if path == "/jobs/7" else next(parts)

    gave, _ = play(follow.follow("7", LogQuery()), answer)
    assert [(part.offset, part.data) for part in gave if isinstance(part, LogPart)] == [(0, b"head"), (996, b"tail")]


def test_a_character_that_is_split_between_two_parts_is_decoded_whole() -> None:
    """F5, whatever the parts are: one byte each, a gap in the middle of a character, another attempt, no UTF-8."""
    whole = "Grüße, 世界 🙂\n".encode()
    gave, _ = play(follow.follow("7", LogQuery()), Output(whole, whole))
    decoder = LogDecoder()
    assert "".join(decoder.decode(part) for part in gave if isinstance(part, LogPart)) == whole.decode() * 2
    parts = [
        (LogPart(b"a\xc3", 0, 9, False, 1), "a"),
        (LogPart(b"b", 8, 9, True, 1), "\ufffdb"),
        (LogPart(b"\xff\xc3", 0, 2, False, 2), "\ufffd"),
        (LogPart(b"\xa9", 2, 3, False, 2), "é"),
        (LogPart(b"\xc3", 3, 4, True, 2), "\ufffd"),
        (LogPart(b"\xc3\xa9", 0, 2, True, 3), "é"),
    ]
    decoder = LogDecoder()
    assert [decoder.decode(part) for part, _ in parts] == [text for _, text in parts]
