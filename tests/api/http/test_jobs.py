"""REST for jobs."""

import asyncio
from typing import Any

import pytest

from stoker.api.http import jobs as http_jobs
from stoker.api.http.responses import ANSWER_BYTES_MAX, BodyBudget
from stoker.brain.domain.access import OWNER
from stoker.brain.domain.errors import StokerError
from stoker.control.access import Sights
from stoker.control.queries.job_details import listed_jobs
from stoker.control.rate_limit import LISTS_OPEN_MAX
from tests.api.http.people import People
from tests.api.http.plane import Plane, scope_of

JOBS = "/api/v1/jobs"


async def submit(plane: Plane, **fields: object) -> str:
    reply = await plane.ask("POST", JOBS, {"command": ["sleep", "1"], **fields})
    assert reply.status == 201, reply.body
    job_id = reply.json["job_id"]
    assert isinstance(job_id, str)
    return job_id


async def test_a_submit_answers_201_with_both_ids_and_the_job_beside_them(plane: Plane) -> None:
    reply = await plane.ask("POST", JOBS, {"command": ["sleep", "1"], "name": "n", "gpu_count": 1})
    assert reply.status == 201
    job = reply.json
    assert (job["id"], job["job_id"], job["status"]) == ("1", "1", "submitted")
    assert (job["state"], job["name"], job["gpu_count"], job["tenant"]) == ("pending", "n", 1, "default")
    assert job["reason"]["code"] in ("awaiting_pass", "no_nodes")
    assert job["submitted_at"].endswith("Z")
    assert job["attempts"] == []
    assert (job["exit_code"], job["started_at"], job["ended_at"]) == (None, None, None)


async def test_the_mvps_body_is_accepted_unchanged_but_for_its_image(plane: Plane) -> None:
    body = (
        b'{"tenant_id":"default","name":"api-job","priority":500,"gpu_count":1,"gpu_memory_mb":16000,"cpu_cores":4,'
        b'"memory_mb":32000,"command":["sleep","1"]}'
    )
    reply = await plane.ask("POST", JOBS, body)
    assert reply.status == 201
    assert (reply.json["cpu_cores"], reply.json["gpu_memory_mb"], reply.json["tenant_id"]) == (4, 16_000, "default")


async def test_an_image_where_no_node_runs_containers_is_refused_with_that_reason(plane: Plane) -> None:
    body = (
        b'{"tenant_id":"default","name":"api-job","priority":500,"gpu_count":1,"gpu_memory_mb":16000,"cpu_cores":4,'
        b'"memory_mb":32000,"image":"nvidia/cuda:12.0-base"}'
    )
    reply = await plane.ask("POST", JOBS, body)
    assert (reply.status, reply.json["code"]) == (422, "no_container_runtime")


async def test_a_task_of_no_cpus_counts_as_one_of_one_cpu(plane: Plane) -> None:
    """A node that can take few tasks offers as many CPUs: a task without any would have no bound."""
    for body in ({"command": "true", "cpus": 0}, {"command": "true", "cpu_cores": 0}, {"command": "true"}):
        assert (await plane.ask("POST", JOBS, body)).json["cpus"] == 1


async def test_many_jobs_in_one_body_are_accepted_in_order(plane: Plane) -> None:
    reply = await plane.ask("POST", JOBS, {"jobs": [{"command": "true", "name": f"j{i}"} for i in range(300)]})
    assert reply.status == 201
    assert [job["name"] for job in reply.json["jobs"]] == [f"j{i}" for i in range(300)]
    assert reply.json["total"] == 300


@pytest.mark.parametrize(
    ("wrong", "code"),
    [({"command": "true", "gpus": 1}, "unknown_field"), ({"command": ""}, "empty_command"), (7, "bad_field")],
)
async def test_of_many_jobs_all_or_none_are_accepted_and_the_error_names_the_index(
    plane: Plane, wrong: object, code: str
) -> None:
    reply = await plane.ask("POST", JOBS, {"jobs": [{"command": "true"}, {"command": "true"}, wrong]})
    assert (reply.status, reply.json["code"], reply.json["facts"]["index"]) == (400, code, 2)
    assert "jobs[2]" in reply.json["message"]
    assert (await plane.get(JOBS)).json["total"] == 0


async def test_one_typo_gives_one_error(plane: Plane) -> None:
    reply = await plane.ask("POST", JOBS, {"comand": "true"})
    assert reply.status == 400
    assert reply.json["message"].count("comand") == 1
    assert reply.json["facts"] == {"field": "comand", "nearest": "command"}


async def test_a_key_beside_jobs_is_refused(plane: Plane) -> None:
    reply = await plane.ask("POST", JOBS, {"jobs": [{"command": "true"}], "priority": 1})
    assert (reply.json["code"], reply.json["facts"]["field"]) == ("unknown_field", "priority")


async def test_an_empty_list_of_jobs_is_refused(plane: Plane) -> None:
    assert (await plane.ask("POST", JOBS, {"jobs": []})).json["code"] == "no_jobs"


async def test_a_job_runs_and_shows_where_and_how_it_ended(plane: Plane) -> None:
    agent = await plane.join("gpu-node-1")
    job_id = await submit(plane, gpu_count=2)
    start = await agent.run()
    running = (await plane.get(f"{JOBS}/{job_id}")).json
    assert (running["state"], running["reason"]) == ("running", None)
    await agent.end(start, exit_code=3)
    job = (await plane.get(f"{JOBS}/{job_id}")).json
    assert (job["state"], job["exit_code"], job["reason"]["code"]) == ("failed", 3, "exited")
    attempt = job["attempts"][0]
    assert (attempt["number"], attempt["outcome"], attempt["exit_code"]) == (1, "failed", 3)
    task = attempt["tasks"][0]
    assert (task["rank"], task["node"], len(task["gpus"]), task["cause"]) == (0, "gpu-node-1", 2, "exited")
    assert task["started_at"] <= task["ended_at"]


@pytest.mark.parametrize("text", ["0", "-1", "abc", "1.5", "%20", "9" * 30, "%D9%A3"])
async def test_what_is_not_a_job_id_is_a_bad_request(plane: Plane, text: str) -> None:
    reply = await plane.get(f"{JOBS}/{text}")
    assert (reply.status, reply.json["code"]) == (400, "bad_job_id")


@pytest.mark.parametrize(("method", "tail"), [("GET", ""), ("DELETE", ""), ("GET", "/why"), ("GET", "/logs")])
async def test_a_job_that_is_not_there_is_404(plane: Plane, method: str, tail: str) -> None:
    reply = await plane.ask(method, f"{JOBS}/77{tail}")
    assert (reply.status, reply.json["code"]) == (404, "job_unknown")


async def test_a_pending_job_is_cancelled_at_once_and_never_runs(plane: Plane) -> None:
    job_id = await submit(plane)
    reply = await plane.ask("DELETE", f"{JOBS}/{job_id}")
    assert (reply.status, reply.json["state"], reply.json["reason"]["code"]) == (200, "cancelled", "cancelled")
    agent = await plane.join("n")
    other = await submit(plane)
    assert str((await agent.next_start()).key.job) == other


async def test_a_running_job_that_is_cancelled_stops_and_is_final_when_its_end_is_proved(plane: Plane) -> None:
    agent = await plane.join("n")
    job_id = await submit(plane)
    start = await agent.run()
    assert (await plane.ask("DELETE", f"{JOBS}/{job_id}")).json["state"] == "stopping"
    assert (await agent.next_stop()).key == start.key
    assert (await plane.ask("DELETE", f"{JOBS}/{job_id}")).status == 200, "asked again, answered again"
    from stoker.brain.domain.job import EndCause

    await agent.end(start, cause=EndCause.STOPPED)
    assert (await plane.get(f"{JOBS}/{job_id}")).json["state"] == "cancelled"
    late = await plane.ask("DELETE", f"{JOBS}/{job_id}")
    assert (late.status, late.json["code"]) == (409, "job_ended")


async def test_a_list_is_newest_first_and_pages_by_after_without_gap_or_repeat(plane: Plane) -> None:
    ids = [await submit(plane) for _ in range(7)]
    seen: list[str] = []
    after = ""
    for _ in range(4):
        page = (await plane.get(f"{JOBS}?limit=2{after}")).json
        assert page["total"] >= 7
        seen += [job["id"] for job in page["jobs"]]
        await submit(plane)  # jobs that arrive meanwhile don't move the next page
        after = f"&after={page['next']}"
    assert page["next"] is None
    assert seen == ids[::-1]


async def test_limit_and_offset_page_as_the_mvps_clients_do(plane: Plane) -> None:
    ids = [await submit(plane) for _ in range(5)]
    page = (await plane.get(f"{JOBS}?tenant_id=&state=&limit=2&offset=2")).json
    assert [job["id"] for job in page["jobs"]] == [ids[2], ids[1]]
    assert page["total"] == 5


async def test_every_filter_filters(plane: Plane) -> None:
    await submit(plane, name="a", **{"class": "online"})
    await submit(plane, name="b")
    cancelled = await submit(plane, name="b")
    await plane.ask("DELETE", f"{JOBS}/{cancelled}")
    await plane.ask("POST", "/api/v1/tenants", {"name": "other"})

    async def found(query: str) -> list[str]:
        page = (await plane.get(f"{JOBS}?{query}")).json
        assert page["total"] == len(page["jobs"])
        return [job["id"] for job in page["jobs"]]

    assert await found("state=pending") == ["2", "1"]
    assert await found("state=cancelled") == ["3"]
    assert await found("state=pending,cancelled") == ["3", "2", "1"]
    assert await found("class=online") == ["1"]
    assert await found("class=batch&state=pending") == ["2"]
    assert await found("name=b") == ["3", "2"]
    assert await found("user=ada") == []
    assert await found("user=local") == ["3", "2", "1"], "a job of no account is its submitter's, as lists show it"
    assert await found("tenant=other") == []
    assert await found("tenant=default&tenant_id=default") == ["3", "2", "1"]


async def test_states_are_found_by_the_words_of_every_dialect(plane: Plane) -> None:
    agent = await plane.join("n")
    await submit(plane)
    await agent.end(await agent.run())
    for word in ("succeeded", "completed", "success", "CD", "cd", "SUCCEEDED"):
        assert (await plane.get(f"{JOBS}?state={word}")).json["total"] == 1, word
    assert (await plane.get(f"{JOBS}?state=failed")).json["total"] == 0


async def test_an_unknown_state_is_refused_and_the_known_ones_are_named(plane: Plane) -> None:
    reply = await plane.get(f"{JOBS}?state=runing")
    assert (reply.status, reply.json["code"]) == (400, "unknown_state")
    assert "running" in reply.json["hint"]
    assert "completed" in reply.json["hint"]


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("sate=running", "unknown_parameter"),
        ("limit=many", "bad_parameter"),
        ("limit=-1", "bad_parameter"),
        ("limit=0", "bad_parameter"),
        ("limit=1&limit=2", "bad_parameter"),
        ("class=slow", "bad_parameter"),
        ("after=x", "bad_job_id"),
        ("tenant=a&tenant_id=b", "bad_parameter"),
    ],
)
async def test_a_wrong_parameter_is_refused_instead_of_ignored(plane: Plane, query: str, code: str) -> None:
    reply = await plane.get(f"{JOBS}?{query}")
    assert (reply.status, reply.json["code"]) == (400, code)


async def test_a_class_that_is_none_is_refused_with_those_there_are(plane: Plane) -> None:
    reply = await plane.get(f"{JOBS}?class=onlin")
    assert reply.json["message"] == "`class` must be one of online, batch, but is 'onlin'"


async def test_a_list_of_a_tenant_that_never_was_is_refused_and_not_empty(plane: Plane) -> None:
    for query in ("tenant=defualt", "tenant_id=defualt&state=running"):
        reply = await plane.get(f"{JOBS}?{query}")
        assert (reply.status, reply.json["code"]) == (422, "unknown_tenant")
        assert "`default`" in reply.json["hint"]
    assert (await plane.get(f"{JOBS}?tenant=default")).json["jobs"] == []


async def test_the_jobs_of_a_tenant_that_was_deleted_are_listed_as_long_as_they_are_known(plane: Plane) -> None:
    await plane.ask("POST", "/api/v1/tenants", {"name": "gone"})
    first, second = [await submit(plane, tenant="gone", hold=True) for _ in range(2)]
    for job in (first, second):
        await plane.ask("DELETE", f"{JOBS}/{job}")
    await plane.ask("DELETE", "/api/v1/tenants/gone")
    assert [job["id"] for job in (await plane.get(f"{JOBS}?tenant=gone")).json["jobs"]] == [second, first]
    beyond = await plane.get(f"{JOBS}?tenant=gone&after={first}")
    assert (beyond.status, beyond.json["jobs"]) == (200, []), "a page beyond the last one is empty, whoever is gone"


async def test_a_parameter_that_is_empty_counts_as_not_given(plane: Plane) -> None:
    await submit(plane)
    for query in ("tenant_id=&state=&limit=&offset=", "state=&class=&after="):
        assert (await plane.get(f"{JOBS}?{query}")).json["total"] == 1
    assert (await plane.get("/api/v1/tasks?status=&priority=&limit=")).json["total"] == 1


async def test_a_row_of_a_list_is_what_the_job_itself_shows(plane: Plane) -> None:
    """Rows are kept between requests; a kept one must never be old."""
    agent = await plane.join("n")
    job_id = await submit(plane)

    async def same(full: str) -> str:
        row = (await plane.get(f"{JOBS}?full={full}")).json["jobs"][0]
        job = (await plane.get(f"{JOBS}/{job_id}")).json
        assert row == (job if full == "true" else {**job, "command": "", "env": {}})
        return str(row["state"])

    await same("false")
    start = await agent.run()
    for full in ("false", "true", "false"):
        assert await same(full) == "running"
    await agent.end(start)
    assert await same("false") == "succeeded"


async def test_a_limit_above_the_most_is_read_as_the_most(plane: Plane) -> None:
    assert (await plane.get(f"{JOBS}?limit=100000")).json["limit"] == 1000


async def test_why_says_the_exact_place_in_the_order_of_priority(plane: Plane) -> None:
    low = await submit(plane, priority="low")
    first = await submit(plane, priority=1000)
    second = await submit(plane, priority=1000, gpu_count=1)
    third = await submit(plane, priority=1000)
    places = {job: (await plane.get(f"{JOBS}/{job}/why")).json["position"] for job in (low, first, second, third)}
    assert places == {first: 1, second: 2, third: 3, low: 4}
    why = (await plane.get(f"{JOBS}/{third}/why")).json
    assert (why["waiting"], why["similar_ahead"], why["state"]) == (4, 1, "pending")
    assert why["hint"]


async def test_why_gives_the_numbers_that_keep_a_job_waiting(plane: Plane) -> None:
    agent = await plane.join("n", gpus=4)
    await submit(plane, gpu_count=3)
    await agent.run()
    waiting = await submit(plane, gpu_count=2)
    await plane.until(lambda: plane.control.loop.passes > 1)
    for _ in range(100):
        why = (await plane.get(f"{JOBS}/{waiting}/why")).json
        if why["code"] == "insufficient_gpus":
            break
        await plane.control.clock.sleep(0.01)
    assert why["code"] == "insufficient_gpus"
    assert why["facts"]["needed"] == 2
    assert why["position"] == 1


async def test_why_of_a_job_that_runs_or_has_ended_says_so(plane: Plane) -> None:
    agent = await plane.join("n")
    job_id = await submit(plane)
    start = await agent.run()
    running = (await plane.get(f"{JOBS}/{job_id}/why")).json
    assert (running["state"], running["code"], running["position"]) == ("running", None, None)
    await agent.end(start, exit_code=1)
    ended = (await plane.get(f"{JOBS}/{job_id}/why")).json
    assert (ended["state"], ended["code"], ended["facts"]["exit_code"]) == ("failed", "exited", 1)


async def test_a_task_no_node_could_ever_run_is_refused_with_what_the_largest_has(plane: Plane) -> None:
    await plane.join("n", gpus=4)
    reply = await plane.ask("POST", JOBS, {"command": "true", "gpu_count": 8})
    assert (reply.status, reply.json["code"]) == (422, "demand_unsatisfiable")
    assert reply.json["facts"]["gpus"] == 4
    assert reply.json["hint"] == "ask for 4 at most", "several tasks wouldn't find eight GPUs either"


async def test_an_unknown_tenant_is_refused(plane: Plane) -> None:
    reply = await plane.ask("POST", JOBS, {"command": "true", "tenant_id": "nobody"})
    assert (reply.status, reply.json["code"]) == (422, "unknown_tenant")


@pytest.mark.parametrize("field", ["name", "command", "workdir", "gpu_model", "user", "image", "script"])
async def test_seven_megabytes_in_any_text_are_refused_by_the_name_of_the_field(plane: Plane, field: str) -> None:
    text = "/" + "x" * 7_000_000
    body = {"command": "true", field: text} if field != "script" else {"script": text}
    reply = await plane.ask("POST", JOBS, body)
    assert (reply.status, reply.json["code"]) == (413, "text_too_long")
    assert reply.json["facts"]["bytes"] > 7_000_000
    assert len(reply.body) < 2_000


async def test_seven_megabytes_in_the_environment_are_refused(plane: Plane) -> None:
    for env in ({"A": "x" * 7_000_000}, {"x" * 7_000_000: "A"}):
        reply = await plane.ask("POST", JOBS, {"command": "true", "env": env})
        assert (reply.status, reply.json["code"]) == (413, "text_too_long")


@pytest.mark.parametrize("field", ["priority", "class", "time_limit", "tenant", "zzz"])
async def test_seven_megabytes_where_a_word_belongs_are_refused_shortly(plane: Plane, field: str) -> None:
    reply = await plane.ask("POST", JOBS, {"command": "true", field: "9" * 7_000_000})
    assert 400 <= reply.status < 500
    assert len(reply.body) < 3_000


async def test_ten_megabytes_are_refused_with_the_bound(plane: Plane) -> None:
    reply = await plane.ask("POST", JOBS, {"command": "x" * 10_000_000})
    assert (reply.status, reply.json["code"], reply.json["facts"]["limit_bytes"]) == (413, "body_too_large", 8 << 20)


async def test_a_body_beyond_the_bound_is_refused_whether_it_says_its_length_or_not(plane: Plane) -> None:
    declared = await plane.ask("POST", JOBS, b"{}", {"content-length": str(9 << 20)})
    assert (declared.status, declared.json["code"]) == (413, "body_too_large")
    silent = await plane.ask("POST", JOBS, b" " * (9 << 20), {"content-length": "chunked"})
    assert (silent.status, silent.json["code"]) == (413, "body_too_large")


async def test_bodies_that_are_on_their_way_are_bounded_together_and_what_is_over_gives_its_room_back(
    plane: Plane,
) -> None:
    plane.app.state.bodies = bodies = BodyBudget(1_000)
    bodies.take("somebody", 900)
    reply = await plane.ask("POST", JOBS, {"command": "x" * 200})
    assert (reply.status, reply.json["code"], reply.headers["retry-after"]) == (503, "overloaded", "1")
    assert bodies.held == 900
    assert (await plane.ask("POST", JOBS, {"command": "x"})).status == 201
    assert bodies.held == 900


async def test_bodies_of_one_tenant_that_are_on_their_way_leave_room_for_those_of_others(plane: Plane) -> None:
    plane.app.state.bodies = bodies = BodyBudget(1_000, share_max=250)
    bodies.take("vision", 250)
    with pytest.raises(StokerError, match="requests of vision"):
        bodies.take("vision", 1)
    assert (await plane.ask("POST", JOBS, {"command": "x" * 200})).status == 201
    assert (await plane.ask("POST", JOBS, {"command": "x" * 250})).status == 503
    assert bodies.held == 250


@pytest.mark.parametrize("field", ["name", "workdir", "user", "image", "command"])
async def test_a_nul_in_a_text_is_refused_by_the_name_of_the_field_that_was_sent(plane: Plane, field: str) -> None:
    reply = await plane.ask("POST", JOBS, {"command": "true", field: "/a\0b"})
    assert (reply.status, reply.json["code"], reply.json["facts"]["field"]) == (400, "bad_text", field)


@pytest.mark.parametrize("env", [{"": "x"}, {"A=B": "x"}, {"A": "a\0b"}, {"A\0": "b"}])
async def test_a_variable_that_no_process_could_have_is_refused(plane: Plane, env: dict[str, str]) -> None:
    assert (await plane.ask("POST", JOBS, {"command": "true", "env": env})).status == 400


@pytest.mark.parametrize(
    "fields",
    [{"gpu_count": 10**6}, {"tasks": 0}, {"tasks": 10**6}, {"retries": 10**6}, {"priority": 10**9}, {"cpus": 10**7}],
)
async def test_absurd_counts_are_refused_with_the_range(plane: Plane, fields: dict[str, object]) -> None:
    reply = await plane.ask("POST", JOBS, {"command": "true", **fields})
    assert (reply.status, reply.json["code"]) == (400, "out_of_range")


async def test_unicode_newlines_and_quotes_come_back_unchanged(plane: Plane) -> None:
    line = "echo 'ä\u2028\"$HOME\"' \\\n && printf '\U0001f600'\t`id`"
    job_id = await submit(plane, command=line, name='jöb "1"\n', env={"Ä": line})
    job = (await plane.get(f"{JOBS}/{job_id}")).json
    assert (job["command"], job["name"], job["env"]) == (line, 'jöb "1"\n', {"Ä": line})


async def test_an_acknowledged_job_is_on_disk(plane: Plane) -> None:
    await submit(plane)
    assert plane.control.committer.durable == plane.control.committer.state.position


async def test_answers_with_several_jobs_leave_commands_and_environments_out_unless_a_list_is_asked_for_them(
    plane: Plane,
) -> None:
    one = {"command": "echo hello", "env": {"A": "b"}}
    many = await plane.ask("POST", JOBS, {"jobs": [one, one]})
    alone = await plane.ask("POST", JOBS, one)
    array = await plane.ask("POST", JOBS, {**one, "array": "0-2"})
    told = [
        many.json["jobs"],
        (await plane.get(JOBS)).json["jobs"],
        (await plane.get(f"{JOBS}/{array.json['id']}_[0-2]")).json["jobs"],
        (await plane.ask("POST", f"{JOBS}/{array.json['id']}_[0-1]/hold")).json["jobs"],
    ]
    assert [len(jobs) for jobs in told] == [2, 4, 3, 2]
    assert {(job["command"], *job["env"]) for jobs in told for job in jobs} == {("",)}
    whole = [alone.json, (await plane.get(f"{JOBS}/1")).json, *(await plane.get(f"{JOBS}?full=true")).json["jobs"]]
    assert {(job["command"], *job["env"]) for job in whole} == {("echo hello", "A")}


async def test_lists_that_nobody_takes_are_made_for_so_many_readers_of_one_principal_and_others_are_served(
    people: People,
) -> None:
    """Each that is made is in memory until it is taken."""
    large = {"command": "true", "env": {"A": "x" * 100_000}}
    await people.anna.ask("POST", JOBS, {"jobs": [large] * 20})
    begun, taken = list[int](), asyncio.Event()

    async def nothing_comes() -> dict[str, Any]:
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]  # it never ends

    async def take_nothing(number: int) -> int:
        async def send(message: Any) -> None:  # noqa: ANN401  # an ASGI message
            if message["type"] == "http.response.body":
                begun.append(number)
                await taken.wait()

        headers = {"host": "127.0.0.1:8080", **people.anna.headers}
        await people.plane.app(scope_of("GET", f"{JOBS}?limit=1000&full=true", b"", headers), nothing_comes, send)
        return number

    readers = [asyncio.create_task(take_nothing(number)) for number in range(LISTS_OPEN_MAX + 5)]
    await people.plane.until(lambda: len(begun) >= LISTS_OPEN_MAX)
    assert (await people.bert.get(JOBS)).status == 200
    assert len(set(begun)) == LISTS_OPEN_MAX
    taken.set()
    assert sorted(await asyncio.gather(*readers)) == list(range(LISTS_OPEN_MAX + 5))


async def test_a_page_is_bounded_in_bytes_and_its_next_leads_to_all_others(plane: Plane) -> None:
    large = {"command": "true", "env": {"A": "x" * 100_000}}
    await plane.ask("POST", JOBS, {"jobs": [large] * 70})
    assert len((await plane.get(f"{JOBS}?limit=1000")).json["jobs"]) == 70
    after, seen = "", []
    while after is not None:
        reply = await plane.get(f"{JOBS}?limit=1000&full=true&after={after}")
        assert len(reply.body) < ANSWER_BYTES_MAX + 200_000
        assert {len(job["env"]["A"]) for job in reply.json["jobs"]} == {100_000}
        seen += [int(job["id"]) for job in reply.json["jobs"]]
        after = reply.json["next"]
    assert seen == list(range(70, 0, -1))
    array = (await plane.ask("POST", JOBS, {**large, "array": "0-99"})).json["id"]
    assert len((await plane.get(f"{JOBS}/{array}_[0-99]")).body) < 200_000


async def test_rows_that_are_kept_for_lists_are_bounded_in_bytes(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_jobs, "ROWS_BYTES_MAX", 20_000)
    rows = http_jobs.RowCache(plane.control)
    await plane.ask("POST", JOBS, {"jobs": [{"command": "true", "comment": "c" * 900}] * 30})
    listed = listed_jobs(plane.control, list(plane.control.committer.state.jobs.values()))
    for _ in range(2):
        made = await rows.of(listed, Sights(plane.control.committer.state, OWNER))
        assert (len(made), sum(map(len, made)) > 20_000) == (30, True)
        assert rows._bytes == sum(len(row) for _, row in rows._kept.values()) <= 20_000
