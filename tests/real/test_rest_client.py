"""The Python client against the real server, over real sockets, with servers that die or aren't ours."""

import asyncio
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stoker.brain.domain.errors import Refusal, StokerError
from stoker.live.listen import bind
from stoker.live.main import run_control
from stoker.live.settings import ControlSettings, GrpcSettings, HttpSettings, LogSettings
from stoker.wire.client import Client, JobBody, JobListQuery, TaskListQuery
from stoker.wire.rest.log import LogQuery


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def serving(folder: Path, port: int) -> Iterator[str]:
    """A whole control plane in a thread of its own; the address at which it answers."""
    loop, stop, ready = asyncio.new_event_loop(), asyncio.Event(), threading.Event()
    settings = ControlSettings(
        data_dir=folder,
        http=HttpSettings(port=port),
        grpc=GrpcSettings(port=0),
        log=LogSettings(level="error"),
    )

    def serve() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(run_control(settings, stop=stop, on_ready=ready.set))

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        assert ready.wait(10), "the control plane didn't come up"
        yield f"http://127.0.0.1:{port}"
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("control"), free_port()) as address:
        yield address


@pytest.fixture
def client(server: str) -> Iterator[Client]:
    with Client(server) as made:
        yield made


def refusal_of(call: object) -> Refusal:
    assert callable(call)
    with pytest.raises(StokerError) as caught:
        call()
    return caught.value.refusal


@contextmanager
def answering(*answers: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """A server that gives these bytes, one connection each, then hangs up; and what it was sent."""
    listener = bind("127.0.0.1", 0, "test")
    listener.setblocking(True)
    heard: list[bytes] = []

    def serve() -> None:
        for answer in answers:
            try:
                connection, _ = listener.accept()
            except OSError:  # the test is over
                return
            with connection:
                heard.append(connection.recv(65_536))
                connection.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", heard
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(5)
        listener.close()


def test_a_job_is_submitted_shown_listed_explained_and_cancelled(client: Client) -> None:
    job = client.submit(JobBody(command=["sleep", "1"], name="one", gpu_count=1))
    assert (job.name, job.state, job.status) == ("one", "pending", "submitted")
    assert client.job(job.id).uid == job.uid
    assert client.why(job.id).position is not None
    assert job.id in [each.id for each in client.jobs(JobListQuery(state="pending", name="one")).jobs]
    assert client.task(job.id).status == "pending"
    assert job.id in [each.task_id for each in client.tasks(TaskListQuery(priority="low")).tasks]
    assert client.cancel(job.id).state == "cancelled"
    assert client.wait(job.id, pause=time.sleep).state == "cancelled"


def test_many_jobs_go_in_one_request_and_come_back_page_by_page(client: Client) -> None:
    submitted = client.submit_many([JobBody(command="true", name="many") for _ in range(2_300)])
    listed = [job.id for job in client.each_job(JobListQuery(name="many"))]
    assert listed == [job.id for job in reversed(submitted)]


def test_waiting_ends_after_the_time_that_was_allowed(client: Client) -> None:
    job = client.submit(JobBody(command="true"))
    paused: list[float] = []
    assert client.wait(job.id, paused.append, at_most_s=1.0).state == "pending"
    assert 1.0 <= sum(paused) < 3.0


def test_the_cluster_without_nodes_answers(client: Client) -> None:
    assert client.status().total_gpus == 0
    assert (client.nodes(), client.gpus().total, client.health().status) == ([], 0, "ok")


def test_the_servers_refusal_arrives_whole(client: Client) -> None:
    refusal = refusal_of(lambda: client.job("77777"))
    assert (refusal.code, bool(refusal.hint), refusal.facts["job_id"]) == ("job_unknown", True, 77_777)
    assert refusal_of(lambda: client.node("a/b c")).code in ("node_unknown", "not_found")
    assert refusal_of(lambda: client.logs("1", LogQuery(tail=5))).code in ("not_started", "job_unknown")


def test_no_server_is_said_with_every_address_that_was_tried() -> None:
    first, second = free_port(), free_port()
    refusal = refusal_of(Client(f"http://127.0.0.1:{first},127.0.0.1:{second}").status)
    assert refusal.code == "no_server"
    assert str(first) in refusal.message
    assert str(second) in refusal.message


def test_the_next_server_is_asked_when_one_is_not_there(server: str) -> None:
    with Client(f"http://127.0.0.1:{free_port()},{server}") as client:
        job = client.submit(JobBody(command="true"))
        assert client.job(job.id).id == job.id
        assert client.server == server, "the one that answered is asked first from then on"


def test_one_connection_serves_many_requests(client: Client) -> None:
    client.health()
    transport = client._transport
    first = transport._connection
    for _ in range(5):
        client.health()
    assert transport._connection is first


def test_a_read_is_repeated_when_the_connection_breaks() -> None:
    health = b'{"status":"ok","version":"1","cluster_id":"c","epoch":1}'
    whole = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(health), health)
    with answering(b"", whole) as (address, heard):
        with Client(address) as client:
            assert client.health().epoch == 1
        assert len(heard) == 2


def test_a_submit_is_never_sent_twice() -> None:
    with answering(b"", b"") as (address, heard):
        refusal = refusal_of(lambda: Client(address).submit(JobBody(command="true")))
    assert refusal.code == "no_answer"
    assert "stoker list" in refusal.hint
    assert len(heard) == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",
        b"HTTP/1.1 500 Oops\r\ncontent-length: 5\r\n\r\nhello",
        b"HTTP/1.1 404 No\r\ncontent-type: application/problem+json\r\ncontent-length: 2\r\n\r\n[]",
        b"HTTP/1.1 302 Found\r\nlocation: http://elsewhere/\r\ncontent-length: 0\r\n\r\n",
    ],
)
def test_an_answer_that_is_not_ours_is_said_to_be_so(answer: bytes) -> None:
    with answering(answer, answer) as (address, _), Client(address) as client:
        assert refusal_of(client.health).code == "bad_answer"


@pytest.mark.parametrize(
    "text", ["", "ftp://x", "http://", "http://a:b", "http://a/path", "http://127.0.0.1:99999", ","]
)
def test_an_address_that_is_none_is_refused_before_anything_is_sent(text: str) -> None:
    assert refusal_of(lambda: Client(text)).code == "bad_server"


def test_a_restart_of_the_server_is_passed_over(tmp_path: Path) -> None:
    port = free_port()
    with serving(tmp_path, port) as address:
        client = Client(address)
        job = client.submit(JobBody(command="true"))
    with serving(tmp_path, port):
        assert client.job(job.id).uid == job.uid, "the old connection is dead, the job isn't"
        client.close()


def test_curl_style_requests_of_any_http_client_work_over_sockets(server: str) -> None:
    connection = http.client.HTTPConnection(server.removeprefix("http://"), timeout=10)
    body = b'{"priority":"high","gpu_count":2,"command":"python train.py"}'
    connection.request("POST", "/api/v1/tasks", body, {"Content-Type": "application/x-www-form-urlencoded"})
    answer = connection.getresponse()
    shown = json.loads(answer.read())
    assert (answer.status, shown["status"]) == (201, "pending")
    connection.request("HEAD", "/api/v1/tasks")
    head = connection.getresponse()
    assert (head.status, head.read()) == (200, b"")
    connection.request("GET", "/api/v1/tasks?status=&priority=&limit=")
    assert connection.getresponse().status == 200
    connection.close()


def test_a_body_too_large_is_refused_over_sockets(server: str) -> None:
    connection = http.client.HTTPConnection(server.removeprefix("http://"), timeout=10)
    connection.putrequest("POST", "/api/v1/jobs")
    connection.putheader("Content-Length", str(1 << 30))
    connection.endheaders()
    answer = connection.getresponse()
    assert (answer.status, json.loads(answer.read())["code"]) == (413, "body_too_large")
    connection.close()


def test_an_event_stream_speaks_at_once_and_ends_with_the_server(tmp_path: Path) -> None:
    with serving(tmp_path, free_port()) as address:
        connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=10)
        connection.request("GET", "/api/v1/events")
        stream = connection.getresponse()
        assert stream.readline() == b": stoker\n"
        stream.readline()
        with Client(address) as client:
            client.submit(JobBody(command="true"))
        assert stream.readline().startswith(b"id: ")
        assert stream.readline() == b"event: job_submitted\n"
        began = time.monotonic()
    assert time.monotonic() - began < 5, "an open stream must not hold up the stop"
    connection.close()


def test_an_answer_on_a_kept_connection_does_not_wait_for_the_other_sides_acknowledgement(client: Client) -> None:
    """With Nagle's algorithm on, each took 40 ms."""
    client.health()
    took: list[float] = []
    for _ in range(15):
        began = time.monotonic()
        client.jobs(JobListQuery(limit=50))
        took.append(time.monotonic() - began)
    assert sorted(took)[len(took) // 2] < 0.03
