"""What holds for every path: problems, methods, hosts, health, meters, the OpenAPI document."""

import threading

import pytest

from stoker.api.http.guard import is_loopback
from stoker.wire.status import STATUSES
from tests.api.http.plane import Plane


async def test_a_refusal_is_a_problem_with_all_its_members(plane: Plane) -> None:
    reply = await plane.get("/api/v1/jobs/7")
    assert reply.headers["content-type"] == "application/problem+json"
    problem = reply.json
    members = {"type", "title", "status", "detail", "code", "message", "hint", "facts", "error"}
    assert problem.keys() == members
    assert problem["detail"] == problem["error"] == problem["message"]
    assert (problem["status"], problem["title"]) == (404, STATUSES["job_unknown"].title)


async def test_the_type_of_a_problem_leads_to_what_its_code_means(plane: Plane) -> None:
    """It named a page of the documents, which no server serves."""
    page, _, anchor = (await plane.get("/api/v1/jobs/7")).json["type"].partition("#")
    reply = await plane.get(page)
    assert (reply.status, reply.headers["content-type"]) == (200, "text/html; charset=utf-8")
    text = reply.body.decode()
    assert f'id="{anchor}"' in text
    assert STATUSES["job_unknown"].title in text


@pytest.mark.parametrize("path", ["/", "/nothing", "/api/v1/nothing", "/docs"])
async def test_a_path_that_is_not_there_is_a_problem(plane: Plane, path: str) -> None:
    reply = await plane.get(path)
    assert (reply.status, reply.json["code"]) == (404, "not_found")


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("PUT", "/api/v1/jobs", "GET, HEAD, OPTIONS, POST"),
        ("POST", "/api/v1/jobs/1", "DELETE, GET, HEAD, OPTIONS, PATCH"),
        ("DELETE", "/api/v1/gpus", "GET, HEAD, OPTIONS"),
        ("GET", "/api/v1/nodes/n/drain", "OPTIONS, POST"),
        ("TRACE", "/health", "GET, HEAD, OPTIONS"),
    ],
)
async def test_a_method_that_a_path_lacks_is_a_problem_that_names_all_it_has(
    plane: Plane, method: str, path: str, allow: str
) -> None:
    reply = await plane.ask(method, path)
    assert (reply.status, reply.json["code"], reply.headers["allow"]) == (405, "method_not_allowed", allow)


async def test_options_answers_what_a_path_has(plane: Plane) -> None:
    reply = await plane.ask("OPTIONS", "/api/v1/jobs")
    assert (reply.status, reply.headers["allow"], reply.body) == (204, "GET, HEAD, OPTIONS, POST", b"")


@pytest.mark.parametrize("path", ["/health", "/api/v1/jobs", "/api/v1/gpus", "/metrics", "/api/v1/jobs/9"])
async def test_head_is_get_without_the_body(plane: Plane, path: str) -> None:
    got, head = await plane.get(path), await plane.ask("HEAD", path)
    assert (head.status, head.body) == (got.status, b"")
    assert head.headers["content-type"] == got.headers["content-type"]


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8080", "LOCALHOST", "127.0.0.1", "127.9.8.7:1", "[::1]", "[::1]:8080"]
)
async def test_loopback_is_asked_by_its_names(plane: Plane, host: str) -> None:
    assert (await plane.ask("GET", "/health", headers={"host": host})).status == 200


@pytest.mark.parametrize(
    "host",
    [
        *("", "evil.example", "evil.example:8080", "10.0.0.1", "0.0.0.0", "127.0.0.1.evil.example", "localhost.evil"),
        *("[::2]", "[", "127.0.0.1@evil.example", "evil.example#127.0.0.1", "127.1", "2130706433"),
    ],
)
async def test_a_foreign_host_is_refused(plane: Plane, host: str) -> None:
    """A page that binds its own name to 127.0.0.1 must not submit jobs."""
    reply = await plane.ask("POST", "/api/v1/jobs", {"command": "true"}, {"host": host})
    assert (reply.status, reply.json["code"]) == (403, "foreign_origin")
    assert not plane.control.committer.state.jobs


@pytest.mark.parametrize(
    "origin",
    [
        *("http://evil.example", "null", "", "http://localhost:3000", "http://127.0.0.1:8080.evil.example"),
        *("http://localhost:8080", "file://", "http://127.0.0.1"),
    ],
)
async def test_a_foreign_page_is_refused(plane: Plane, origin: str) -> None:
    reply = await plane.ask("POST", "/api/v1/jobs", {"command": "true"}, {"origin": origin})
    assert (reply.status, reply.json["code"]) == (403, "foreign_origin")


async def test_our_own_page_may_ask(plane: Plane) -> None:
    reply = await plane.ask("POST", "/api/v1/jobs", {"command": "true"}, {"origin": "http://127.0.0.1:8080"})
    assert reply.status == 201
    assert "access-control-allow-origin" not in reply.headers


def test_a_name_is_not_loopback_because_it_begins_like_one() -> None:
    assert not is_loopback("127.0.0.1.nip.io")


async def test_both_health_paths_answer(plane: Plane) -> None:
    for path in ("/health", "/api/v1/health"):
        reply = await plane.get(path)
        assert (reply.status, reply.json["status"], reply.json["epoch"]) == (200, "ok", 1)


async def test_ready_says_so(plane: Plane) -> None:
    reply = await plane.get("/ready")
    assert (reply.status, reply.json["status"]) == (200, "ready")


async def test_ready_fails_with_a_reason_when_the_loop_is_stuck(plane: Plane) -> None:
    loop = plane.control.loop
    loop._last_pass = type(loop._last_pass)(loop._last_pass - 1_000)
    reply = await plane.get("/ready")
    assert (reply.status, reply.json["code"], reply.json["facts"]["stuck"]) == (503, "not_ready", "loop")
    assert (await plane.get("/health")).status == 200


async def test_the_meters_show_jobs_gpus_nodes_the_loop_and_the_log(plane: Plane) -> None:
    await plane.join("n")
    await plane.ask("POST", "/api/v1/jobs", {"command": "x"})
    reply = await plane.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = reply.body.decode().splitlines()
    assert 'stoker_gpus{status="idle"} 4' in lines
    assert 'stoker_nodes{state="ready"} 1' in lines
    assert any(line.startswith('stoker_jobs{state="pending"} ') for line in lines)
    assert any(line.startswith("stoker_last_pass_age_seconds ") for line in lines)
    assert any(line.startswith("stoker_commit_seconds_count ") for line in lines)
    kinds = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(kinds) == len(set(kinds)), "a family may appear once"


async def test_the_openapi_document_names_every_path_with_schemas_for_all_it_refers_to(plane: Plane) -> None:
    document = (await plane.get("/openapi.json")).json
    assert document["openapi"].startswith("3.1")
    paths = {"/api/v1/jobs", "/api/v1/jobs/{job_id}", "/api/v1/jobs/{job_id}/logs", "/api/v1/jobs/{job_id}/why"}
    paths |= {"/api/v1/tasks", "/api/v1/gpus", "/api/v1/nodes/{name}/drain", "/api/v1/cluster/status", "/api/v1/events"}
    assert paths | {"/health", "/ready", "/metrics"} <= document["paths"].keys()
    schemas = document["components"]["schemas"]

    def refer(node: object) -> None:
        if isinstance(node, dict):
            if isinstance(ref := node.get("$ref"), str):
                assert ref.removeprefix("#/components/schemas/") in schemas, ref
            for each in node.values():
                refer(each)
        elif isinstance(node, list):
            for each in node:
                refer(each)

    refer(document)
    assert "class" in schemas["JobBody"]["properties"]
    assert set(document["paths"]["/api/v1/jobs"]["post"]["responses"]) >= {"201", "400", "403", "413", "422", "429"}


async def test_no_answer_takes_a_thread(plane: Plane) -> None:
    """Above the ports nothing uses threads; a framework would run plain functions in one each."""
    for method, target in (("GET", "/health"), ("GET", "/api/v1/jobs/7"), ("PUT", "/health"), ("GET", "/openapi.json")):
        await plane.ask(method, target)
    assert not [thread.name for thread in threading.enumerate() if "AnyIO" in thread.name]
