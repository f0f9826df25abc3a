"""What must every client do? Each rule is a function over a `Call`: a client's methods, called as if they blocked.

The client that blocks and the one for an event loop are held to the same rules, against servers that die, lie or stall.
"""

import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple

import pytest

from stoker.brain.domain.errors import Refusal, StokerError
from stoker.wire.client import JobBody, JobListQuery, LogQuery

Call = Callable[..., Any]
"""`call("submit", body)` calls that method and waits for its answer; of an iterator all that it yields."""
Connect = Callable[..., Any]
"""A context manager: `with connect(servers, patience_s=1.0) as call`."""

_HEAD: Final = b"HTTP/1.1 %d X\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n"
HEALTH: Final = b'{"status":"ok","version":"1","cluster_id":"c","epoch":1}'
BUSY: Final = (
    b'{"type":"","title":"","status":503,"detail":"","code":"%b","message":"m","hint":"h","facts":{},"error":""}'
)


def whole(body: bytes = HEALTH, status: int = 200) -> bytes:
    kind = b"application/json" if status < 300 else b"application/problem+json"
    return _HEAD % (status, kind, len(body)) + body


def refusing(code: bytes, status: int = 503) -> bytes:
    return whole(BUSY % code, status)


class Answering(NamedTuple):
    url: str
    heard: list[bytes]


def _request(connection: socket.socket) -> bytes:
    """A whole request, which may come in pieces."""
    data = b""
    while b"\r\n\r\n" not in data and (more := connection.recv(65_536)):
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    sizes = [int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")]
    while len(body) < sum(sizes) and (more := connection.recv(65_536)):
        body += more
    return head + b"\r\n\r\n" + body


@contextmanager
def answering(*answers: bytes, mute: threading.Event | None = None) -> Iterator[Answering]:
    """A server that gives these bytes, one connection each, then hangs up; and what it was sent. It says nothing before
    `mute` is set."""
    listener = socket.create_server(("127.0.0.1", 0))
    heard: list[bytes] = []

    def serve() -> None:
        for answer in answers:
            try:
                connection, _ = listener.accept()
            except OSError:  # the test is over
                return
            with connection:
                heard.append(_request(connection))
                if mute is not None:
                    mute.wait(10)
                connection.sendall(answer)
        # Whoever asks once more than was foreseen must not wait for an answer.
        listener.close()

    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield Answering(address, heard)
    finally:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        thread.join(5)
        listener.close()


def unused() -> str:
    """An address at which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


def refusal_of(call: Call, *words: object) -> Refusal:
    with pytest.raises(StokerError) as caught:
        call(*words)
    return caught.value.refusal


def key_in(request: bytes) -> bytes:
    lines = request.split(b"\r\n\r\n")[0].split(b"\r\n")
    (found,) = (line.split(b": ")[1] for line in lines if line.lower().startswith(b"idempotency-key"))
    return found


def a_read_is_repeated_when_the_connection_breaks(connect: Connect) -> None:
    with answering(b"", whole()) as server, connect(server.url, patience_s=0.0) as call:
        assert call("health").epoch == 1
        assert len(server.heard) == 2


def a_submit_whose_answer_is_lost_is_repeated_under_the_same_key_and_with_the_same_body(connect: Connect) -> None:
    with answering(b"", b"", b"") as server, connect(server.url, patience_s=1.0) as call:
        assert refusal_of(call, "submit", JobBody(command="true")).code == "no_answer"
        assert len(server.heard) == 3
        assert len({key_in(request) for request in server.heard}) == 1
        assert len({request.split(b"\r\n\r\n")[1] for request in server.heard}) == 1


def every_submit_has_a_key_of_its_own(connect: Connect) -> None:
    answers = [refusing(b"bad_field", 400)] * 3
    with answering(*answers) as server, connect(server.url) as call:
        for _ in range(2):
            refusal_of(call, "submit", JobBody(command="true"))
        refusal_of(call, "submit_many", [JobBody(command="true")])
        assert len({key_in(request) for request in server.heard}) == 3


def an_order_that_would_be_felt_twice_is_never_sent_twice(connect: Connect) -> None:
    for words in (("requeue", "7"), ("signal", "7", "USR1")):
        with answering(b"", b"") as server, connect(server.url) as call:
            refusal = refusal_of(call, *words)
            assert (refusal.code, len(server.heard)) == ("no_answer", 1)
            assert "stoker list" in refusal.hint


def a_server_that_is_busy_is_asked_again(connect: Connect) -> None:
    with answering(refusing(b"overloaded"), refusing(b"stopping"), whole()) as server, connect(server.url) as call:
        assert call("health").epoch == 1
        assert len(server.heard) == 3


def the_next_server_is_asked_at_once_when_one_is_stopping(connect: Connect) -> None:
    with (
        answering(refusing(b"stopping")) as first,
        answering(whole()) as second,
        connect(f"{first.url},{second.url}", patience_s=0.0) as call,
    ):
        assert call("health").epoch == 1
        assert call("server") == second.url, "the one that answered is asked first from then on"


def no_server_is_said_at_once_with_every_address_that_was_tried(connect: Connect) -> None:
    first, second = unused(), unused()
    began_s = time.monotonic()
    with connect(f"{first},{second}") as call:
        refusal = refusal_of(call, "status")
    assert refusal.code == "no_server"
    assert first.removeprefix("http://") in refusal.message
    assert second.removeprefix("http://") in refusal.message
    assert time.monotonic() - began_s < 2, "where none ever answered, waiting helps nobody"


def an_address_that_is_none_is_refused_before_anything_is_sent(connect: Connect) -> None:
    for text in ("", "ftp://x", "http://", "http://a:b", "http://a/path", "http://127.0.0.1:99999", ","):
        with pytest.raises(StokerError) as caught, connect(text):
            pass
        assert caught.value.refusal.code == "bad_server", text


def an_answer_that_is_not_ours_is_said_to_be_so(connect: Connect) -> None:
    for answer in (
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",
        b"HTTP/1.1 500 Oops\r\ncontent-length: 5\r\n\r\nhello",
        b"HTTP/1.1 404 No\r\ncontent-type: application/problem+json\r\ncontent-length: 2\r\n\r\n[]",
        b"HTTP/1.1 302 Found\r\nlocation: http://elsewhere/\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (1 << 40),
    ):
        with answering(answer, answer) as server, connect(server.url) as call:
            assert refusal_of(call, "health").code == "bad_answer", answer


def what_is_no_http_is_no_answer(connect: Connect) -> None:
    for answer in (b"SSH-2.0-OpenSSH\r\n\r\n", b"HTTP/1.1\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhe"):
        with answering(answer, answer) as server, connect(server.url, patience_s=0.0) as call:
            assert refusal_of(call, "health").code in ("no_server", "bad_answer"), answer


def a_connection_that_was_spoilt_serves_no_other_request(connect: Connect) -> None:
    """Whatever comes on it next may belong to the request before."""
    ours, late = HEALTH.replace(b'"epoch":1', b'"epoch":2'), HEALTH
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            spoilt, _ = listener.accept()
            with spoilt:
                _request(spoilt)
                spoilt.sendall(b"HTTP/1.1\r\n\r\n")
                if listener in select.select([listener, spoilt], [], [], 10)[0] or not spoilt.recv(1, socket.MSG_PEEK):
                    fresh, _ = listener.accept()
                    with fresh:
                        _request(fresh)
                        fresh.sendall(whole(ours))
                else:
                    spoilt.sendall(whole(late))

        thread = threading.Thread(target=serve)
        thread.start()
        with connect(f"http://127.0.0.1:{listener.getsockname()[1]}", patience_s=0.0) as call:
            assert call("health").epoch == 2
        thread.join(10)


def an_answer_in_chunks_is_read_whole(connect: Connect) -> None:
    """A proxy may cut it so."""
    cut = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n%x;a=b\r\n%b\r\n0\r\n\r\n"
    answer = cut % (10, HEALTH[:10], len(HEALTH) - 10, HEALTH[10:])
    with answering(answer) as server, connect(server.url) as call:
        assert call("health").epoch == 1


def an_answer_without_length_ends_with_its_connection(connect: Connect) -> None:
    with answering(b"HTTP/1.1 200 OK\r\n\r\n" + HEALTH) as server, connect(server.url) as call:
        assert call("health").epoch == 1


def jobs_are_submitted_shown_listed_explained_and_told(connect: Connect, server: str) -> None:
    with connect(server) as call:
        job = call("submit", JobBody(command=["sleep", "1"], name="one", gpu_count=1))
        assert (job.name, job.state, job.status) == ("one", "pending", "submitted")
        assert call("job", job.id).uid == job.uid
        assert call("why", job.id).position is not None
        assert job.id in [each.id for each in call("jobs", JobListQuery(state="pending", name="one")).jobs]
        assert call("task", job.id).status == "pending"
        assert job.id in [each.task_id for each in call("tasks").tasks]
        assert call("hold", job.id).jobs[0].state == "held"
        assert call("release", job.id).jobs[0].state == "pending"
        assert refusal_of(call, "requeue", job.id).code == "job_waits"
        assert refusal_of(call, "signal", job.id, "USR1").code == "not_running"
        told = call("cancel", job.id)
        assert (told.jobs[0].state, told.total, told.changed) == ("cancelled", 1, 1)
        assert call("wait", job.id).state == "cancelled"
        assert call("requeue", job.id).jobs[0].state == "pending"


def arrays_are_submitted_and_told_by_their_members(connect: Connect, server: str) -> None:
    with connect(server) as call:
        array = call("submit_array", JobBody(command="true", name="a"), "0-9999%3")
        assert (array.array, array.members.pending) == ("0-9999%3", 10_000)
        assert call("job", f"{array.id}_77").array_index == 77
        several = call("members", f"{array.id}_[5-6,9]")
        assert ([job.array_index for job in several.jobs], several.total) == ([5, 6, 9], 3)
        assert call("members", array.id).total == 1
        told = call("cancel", f"{array.id}_[0-4999]")
        assert (len(told.jobs), told.total, told.changed) == (1_000, 5_000, 5_000)
        assert call("job", array.id).members.cancelled == 5_000


def many_jobs_go_in_one_request_and_come_back_page_by_page(connect: Connect, server: str) -> None:
    with connect(server) as call:
        name = unused()
        submitted = call("submit_many", [JobBody(command="true", name=name) for _ in range(2_300)])
        listed = [job.id for job in call("each_job", JobListQuery(name=name))]
        assert listed == [job.id for job in reversed(submitted)]


def jobs_of_one_request_may_wait_for_each_other(connect: Connect, server: str) -> None:
    with connect(server) as call:
        first, second = call("submit_many", [JobBody(command="a"), JobBody(command="b", after="ok:#0")])
        assert second.after == [f"ok:{first.id}"]


def a_key_submits_once_however_often_it_comes(connect: Connect, server: str) -> None:
    with connect(server) as call:
        key = unused()
        first, again = (_keyed(call, JobBody(command="true"), key) for _ in range(2))
        assert first.id == again.id
        with pytest.raises(StokerError) as caught:
            _keyed(call, JobBody(command="false"), key)
        assert caught.value.refusal.code == "idempotency_key_reused"


def _keyed(call: Call, body: JobBody, key: str) -> Any:  # noqa: ANN401  # whatever the client answers
    return call("submit", body, key=key)


def the_cluster_without_nodes_answers(connect: Connect, server: str) -> None:
    with connect(server) as call:
        assert call("status").total_gpus == 0
        assert (call("nodes"), call("gpus").total, call("health").status, call("partitions")) == ([], 0, "ok", [])


def the_servers_refusal_arrives_whole(connect: Connect, server: str) -> None:
    with connect(server) as call:
        refusal = refusal_of(call, "job", "77777")
        assert (refusal.code, bool(refusal.hint), refusal.facts["job_id"]) == ("job_unknown", True, "77777")
        assert refusal_of(call, "node", "a/b c").code in ("node_unknown", "not_found")
        assert refusal_of(call, "logs", "77777", LogQuery(tail=5)).code == "job_unknown"


def a_body_that_is_too_large_is_refused_with_the_servers_own_words(connect: Connect, server: str) -> None:
    """Though the server reads no more of it than it must."""
    with connect(server) as call:
        for _ in range(3):
            assert refusal_of(call, "submit", JobBody(command="x" * 12_000_000)).code == "body_too_large"
        assert call("health").status == "ok"


RULES: Final[Sequence[Callable[[Connect], None]]] = (
    a_read_is_repeated_when_the_connection_breaks,
    a_submit_whose_answer_is_lost_is_repeated_under_the_same_key_and_with_the_same_body,
    every_submit_has_a_key_of_its_own,
    an_order_that_would_be_felt_twice_is_never_sent_twice,
    a_server_that_is_busy_is_asked_again,
    the_next_server_is_asked_at_once_when_one_is_stopping,
    no_server_is_said_at_once_with_every_address_that_was_tried,
    an_address_that_is_none_is_refused_before_anything_is_sent,
    an_answer_that_is_not_ours_is_said_to_be_so,
    what_is_no_http_is_no_answer,
    a_connection_that_was_spoilt_serves_no_other_request,
    an_answer_in_chunks_is_read_whole,
    an_answer_without_length_ends_with_its_connection,
)
"""Over servers that each rule plays itself."""
SERVED: Final[Sequence[Callable[[Connect, str], None]]] = (
    jobs_are_submitted_shown_listed_explained_and_told,
    arrays_are_submitted_and_told_by_their_members,
    many_jobs_go_in_one_request_and_come_back_page_by_page,
    jobs_of_one_request_may_wait_for_each_other,
    a_key_submits_once_however_often_it_comes,
    the_cluster_without_nodes_answers,
    the_servers_refusal_arrives_whole,
    a_body_that_is_too_large_is_refused_with_the_servers_own_words,
)
"""Over a real control plane without nodes."""
