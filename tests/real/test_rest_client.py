"""The Python client against the real server, over real sockets, with servers that die or aren't ours."""

import http.client
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from stoker.wire.client import Client, JobBody, JobListQuery
from tests.real.serving import Served, free_port, serving


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("control"), free_port()) as served:
        yield served


@pytest.fixture
def client(server: Served) -> Iterator[Client]:
    with Client(server.url, token=server.token) as made:
        yield made


def test_waiting_ends_after_the_time_that_was_allowed(server: Served) -> None:
    paused: list[float] = []
    with Client(server.url, token=server.token, pause=paused.append) as client:
        job = client.submit(JobBody(command="true"))
        assert client.wait(job.id, at_most_s=1.0).state == "pending"
    assert 1.0 <= sum(paused) < 3.0


def test_one_connection_serves_many_requests(client: Client) -> None:
    client.health()
    transport = client._transport
    first = transport._connection
    for _ in range(5):
        client.health()
    assert transport._connection is first


def test_a_restart_of_the_server_is_passed_over(tmp_path: Path) -> None:
    port = free_port()
    with serving(tmp_path, port) as served:
        client = Client(served.url, token=served.token)
        job = client.submit(JobBody(command="true"))
    with serving(tmp_path, port):
        assert client.job(job.id).uid == job.uid, "the old connection is dead, the job isn't"
        client.close()


def test_a_server_that_is_away_is_waited_for_and_the_same_submit_stays_one_job(tmp_path: Path) -> None:
    port = free_port()
    with ExitStack() as restarted:

        def come_back(_: float) -> None:
            if not came:
                came.append(restarted.enter_context(serving(tmp_path, port)))

        came: list[Served] = []
        with serving(tmp_path, port) as served:
            client = restarted.enter_context(Client(served.url, token=served.token, pause=come_back))
            first = client.submit(JobBody(command="true"), key="one")
        assert client.submit(JobBody(command="true"), key="one").uid == first.uid
        assert came == [served], "it was waited for"


def test_curl_style_requests_of_any_http_client_work_over_sockets(server: Served) -> None:
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=10)
    body = b'{"priority":"high","gpu_count":2,"command":"python train.py"}'
    headers = {"Content-Type": "application/x-www-form-urlencoded", **server.headers}
    connection.request("POST", "/api/v1/tasks", body, headers)
    answer = connection.getresponse()
    shown = json.loads(answer.read())
    assert (answer.status, shown["status"]) == (201, "pending")
    connection.request("HEAD", "/api/v1/tasks", headers=server.headers)
    head = connection.getresponse()
    assert (head.status, head.read()) == (200, b"")
    connection.request("GET", "/api/v1/tasks?status=&priority=&limit=", headers=server.headers)
    assert connection.getresponse().status == 200
    connection.close()


def test_a_body_too_large_is_refused_over_sockets(server: Served) -> None:
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=10)
    connection.putrequest("POST", "/api/v1/jobs")
    connection.putheader("Content-Length", str(1 << 30))
    connection.putheader("Authorization", server.headers["authorization"])
    connection.endheaders()
    answer = connection.getresponse()
    assert (answer.status, json.loads(answer.read())["code"]) == (413, "body_too_large")
    connection.close()


def test_an_event_stream_speaks_at_once_and_ends_with_the_server(tmp_path: Path) -> None:
    with serving(tmp_path, free_port()) as served:
        connection = http.client.HTTPConnection(served.url.removeprefix("http://"), timeout=10)
        connection.request("GET", "/api/v1/events", headers=served.headers)
        stream = connection.getresponse()
        assert stream.readline() == b": stoker\n"
        stream.readline()
        with Client(served.url, token=served.token) as client:
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


def test_the_client_loads_no_library_but_msgspec_and_no_event_loop() -> None:
    program = "import sys; before = set(sys.modules); import stoker.wire.client; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert loaded - sys.stdlib_module_names == {"stoker", "msgspec", "typing_extensions"} & loaded
    assert "asyncio" not in loaded
