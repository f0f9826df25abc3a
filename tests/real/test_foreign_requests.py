"""Is what a stranger, a browser on somebody else's page or a broken client sends refused in so many words?"""

import http.client
import json
import logging
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from stoker.api.rpc.status import CODE_KEY
from stoker.wire.client import Client, JobBody
from tests.real.forks import ran
from tests.real.rpc_stage import rpc_stage
from tests.real.serving import Served, free_port, serving
from tests.real.up_process import environment

JOB = b'{"command": "true", "hold": true}'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("control"), free_port()) as served:
        yield served


def posted(server: Served, body: bytes, path: str = "/api/v1/jobs", **headers: str) -> tuple[int, Any]:
    return asked(server, "POST", path, body, **headers)


def asked(server: Served, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, Any]:
    """Status and answer. Headers are named with `_` for `-`."""
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=10)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body, {**server.headers, **named})
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, json.loads(content) if content.startswith(b"{") else content


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_page_of_another_site_changes_nothing_though_it_sends_no_origin(server: Served, site: str) -> None:
    form = {"Content_Type": "application/json", "Sec_Fetch_Site": site}
    for more in ({}, {"Sec_Fetch_Dest": "document", "Sec_Fetch_Mode": "navigate"}):
        status, refusal = posted(server, JOB, **form, **more)
        assert (status, refusal["code"]) == (403, "foreign_origin")
        assert refusal["message"].startswith(f"`Sec-Fetch-Site: {site}`")
    assert asked(server, "DELETE", "/api/v1/jobs/1", **form)[1]["code"] == "foreign_origin"
    assert asked(server, "GET", "/api/v1/jobs", Sec_Fetch_Site=site)[0] == 200, "a link may be followed"
    assert posted(server, JOB, Sec_Fetch_Site="same-origin")[0] == 201
    assert posted(server, JOB, Sec_Fetch_Site="none")[0] == 201


FORM = "application/x-www-form-urlencoded"


@pytest.mark.parametrize(
    ("media_type", "more"),
    [
        ("text/plain", {}),
        ("multipart/form-data; boundary=x", {}),
        (FORM, {"Sec_Fetch_Site": "same-origin"}),
        (FORM, {"Referer": "http://127.0.0.1/"}),
    ],
)
def test_a_body_that_is_said_to_be_no_json_is_refused(server: Served, media_type: str, more: dict[str, str]) -> None:
    status, refusal = posted(server, JOB, Content_Type=media_type, **more)
    assert (status, refusal["code"]) == (415, "unsupported_media_type")
    assert repr(media_type.partition(";")[0]) in refusal["message"]
    assert "Content-Type: application/json" in refusal["hint"]


@pytest.mark.parametrize(
    "media_type", ["application/json", "Application/JSON; charset=utf-8", "application/merge-patch+json"]
)
def test_a_body_that_is_said_to_be_json_or_nothing_or_comes_from_curl_is_read(server: Served, media_type: str) -> None:
    assert posted(server, JOB, Content_Type=media_type)[0] == 201
    assert posted(server, JOB, Content_Type=FORM)[0] == 201, "what curl says of any body, and no browser's form"
    assert posted(server, JOB)[0] == 201


@pytest.mark.parametrize(
    ("body", "key"),
    [
        (b'{"command": "true", "command": "false"}', "command"),
        (b'{"command": "true", "env": {"A": "1", "B": "2", "\\u0041": "3"}}', "A"),
        (b'{"jobs": [{"command": "true"}, {"command": "true", "env": {"A": "1", "A": "2"}}]}', "A"),
        (b'{"jobs": [{"command": "true"}], "jobs": [{"command": "false"}]}', "jobs"),
        (b'{"jobs": [{"command": "true"}], "\\u006aobs": [{"command": "true"}]}', "jobs"),
    ],
)
def test_a_key_that_stands_twice_in_an_object_is_refused(server: Served, body: bytes, key: str) -> None:
    status, refusal = posted(server, body, Content_Type="application/json")
    assert (status, refusal["code"], refusal["facts"].get("key")) == (400, "bad_json", key)
    assert f"the key `{key}` twice" in refusal["message"]


def test_text_that_looks_like_a_key_is_no_key(server: Served) -> None:
    body = json.dumps({"jobs": [{"command": 'echo {"jobs": 1, "jobs": 2}', "env": {"jobs": '"'}}] * 2})
    assert posted(server, body.encode())[0] == 201


def test_one_job_is_bounded_and_a_list_of_them_more_widely(server: Served) -> None:
    large = {"command": "true", "env": {f"{number:x}": "" for number in range(60_000)}}
    assert posted(server, json.dumps(large).encode())[1]["code"] == "body_too_large"
    assert posted(server, json.dumps({"jobs": [large]}).encode())[1]["code"] == "body_too_large"
    usual = {"command": "true", "env": {"A": "x" * 2_000}, "hold": True}
    assert posted(server, json.dumps({"jobs": [usual] * 1_500}).encode())[0] == 201
    many = {"command": ["x" * 1_000] * 1_200}
    status, refusal = posted(server, json.dumps(many).encode())
    assert (status, refusal["code"]) == (413, "text_too_long")
    assert "with all its arguments" in refusal["message"]


def test_a_wait_has_a_bound(server: Served) -> None:
    job = posted(server, JOB)[1]["id"]
    status, refusal = asked(server, "GET", f"/api/v1/jobs/{job}/logs?wait_s=31")
    assert (status, refusal["code"]) == (400, "bad_parameter")
    assert "wait_s" in refusal["message"]
    assert "30" in refusal["message"]


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (b"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org:443\r\n\r\n", 405, "method_not_allowed"),
        (b"CONNECT / HTTP/1.1\r\nHost: example.org:443\r\n\r\n", 405, "method_not_allowed"),
        (b"GET http://[ HTTP/1.1\r\nHost: x\r\n\r\n", 400, "bad_request"),
        (b"\x16\x03\x01 a handshake of TLS\r\n\r\n", 400, "bad_request"),
        (b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n", 200, ""),
    ],
)
def test_what_is_no_request_gets_one_answer_and_leaves_no_traceback(
    server: Served, caplog: pytest.LogCaptureFixture, sent: bytes, status: int, code: str
) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(sent)
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        content = json.loads(answer.read())
    assert (answer.status, content.get("code", "")) == (status, code)
    assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []
    assert "WebSocket" not in caplog.text


def test_no_control_character_reaches_a_terminal_in_json_either(server: Served, tmp_path: Path) -> None:
    name = "\x9b31m\x80\x9d0;title\x9c\x7f é \u202e\u2066\u2028"
    with Client(server.url, token=server.token) as client:
        job = client.submit(JobBody(command="true", hold=True, name="x", comment=name, env={name: name})).id
    for form in (["--json"], ["-o", "yaml"], ["-o", "wide"], []):
        env = environment(tmp_path, STOKER_SERVER=server.url, STOKER_TOKEN=server.token)
        done = ran([sys.executable, "-m", "stoker", "status", job, *form], env=env)
        assert done.returncode == 0
        text = done.stdout.decode()
        assert [letter for letter in text if "\x7f" <= letter <= "\x9f" or letter in "\u202e\u2066\u2028"] == []
        if form == ["--json"]:
            assert json.loads(text)["comment"] == name


GARBAGE = b"\xff\xff\xffgarbage"


@pytest.mark.parametrize(
    "method",
    ["/stoker.v1.JobService/Submit", "/stoker.v1.SchedulerService/RegisterAgent", "/grpc.health.v1.Health/Check"],
)
async def test_grpc_garbage_is_an_invalid_argument_and_no_defect(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    async with rpc_stage(tmp_path) as stage:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stage.channel.unary_unary(method)(GARBAGE)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert dict(caught.value.trailing_metadata() or ())[CODE_KEY] == "malformed_message"
    assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []


@pytest.mark.parametrize(
    "method", ["/grpc.health.v1.Health/Watch", "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"]
)
async def test_garbage_in_a_grpc_stream_is_one_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    async with rpc_stage(tmp_path) as stage:
        call = stage.channel.stream_stream(method)(iter([GARBAGE]))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []
