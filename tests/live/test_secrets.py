"""Secrets on their way from the record to the start of a job: O8 of `live.outbox`, over the real vault and writer."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stoker.brain.domain.ids import NodeName
from stoker.brain.domain.job import EndCause
from stoker.brain.domain.secret import JOB_SECRETS_MAX
from tests.api.http.plane import Plane, plane_in

VALUE = "correct-horse-battery-staple"


@pytest.fixture
async def plane(tmp_path: Path) -> AsyncIterator[Plane]:
    async with plane_in(tmp_path) as found:
        yield found


async def put(plane: Plane, name: str = "HF_TOKEN", value: str = VALUE, **body: object) -> None:
    reply = await plane.ask("PUT", f"/api/v1/secrets/{name}", {"value": value, **body})
    assert reply.status == 200, reply.json


async def submit(plane: Plane, **body: object) -> str:
    reply = await plane.ask("POST", "/api/v1/jobs", {"command": "true", "secrets": {"HF_TOKEN": "HF_TOKEN"}, **body})
    assert reply.status == 201, reply.json
    return str(reply.json["id"])


async def refused(plane: Plane, **body: object) -> tuple[str, str]:
    reply = await plane.ask("POST", "/api/v1/jobs", {"command": "true", **body})
    assert reply.status >= 400, reply.json
    return reply.json["code"], f"{reply.json['message']}; {reply.json['hint']}"


async def reason(plane: Plane, job: str) -> str:
    """Why it waits once it was tried."""
    for _ in range(2_000):
        shown = (await plane.get(f"/api/v1/jobs/{job}")).json
        if shown["reason"] and shown["reason"]["code"] == "retry_backoff":
            return str(shown["reason"]["message"])
        await plane.control.clock.sleep(0.005)
    raise AssertionError(shown)


async def test_a_start_has_the_value_under_its_variable_and_the_record_only_the_name(plane: Plane) -> None:
    await put(plane)
    job = await submit(plane, secrets={"HF_TOKEN": "HF_TOKEN", "AGAIN": "HF_TOKEN"}, env={"MINE": "1"})
    start = await (await plane.join("n1")).next_start()
    assert (start.env["HF_TOKEN"], start.env["AGAIN"], start.env["MINE"]) == (VALUE, VALUE, "1")
    assert VALUE not in repr(start)
    shown = (await plane.get(f"/api/v1/jobs/{job}")).json
    assert shown["secrets"] == {"HF_TOKEN": "HF_TOKEN", "AGAIN": "HF_TOKEN"}
    assert shown["env"] == {"MINE": "1"}


async def test_each_start_has_the_value_of_its_time(plane: Plane) -> None:
    await put(plane)
    await submit(plane, retries=1)
    agent = await plane.join("n1")
    start = await agent.run()
    await put(plane, value="another")
    await agent.end(start, exit_code=1)
    assert (await agent.next_start()).env["HF_TOKEN"] == "another"


async def test_the_own_secret_goes_before_the_shared_one_until_it_is_deleted(plane: Plane) -> None:
    await put(plane, value="shared", shared=True)
    await put(plane, value="own")
    agent = await plane.join("n1")
    await submit(plane)
    assert (await agent.next_start()).env["HF_TOKEN"] == "own"
    await plane.ask("DELETE", "/api/v1/secrets/HF_TOKEN")
    await submit(plane)
    assert (await agent.next_start()).env["HF_TOKEN"] == "shared"


async def test_a_value_is_the_same_bytes_in_a_job_whose_texts_are_bytes(plane: Plane) -> None:
    await put(plane, value="gr\u00fc\u00dfe")
    await submit(plane, encoding="latin-1")
    agent = await plane.join("n1")
    assert (await agent.next_start()).env["HF_TOKEN"].encode("latin-1") == "gr\u00fc\u00dfe".encode()


async def test_a_secret_that_was_deleted_meanwhile_is_told_and_the_job_starts_once_it_is_set_again(
    tmp_path: Path,
) -> None:
    async with plane_in(tmp_path) as plane:
        await put(plane)
        job = await submit(plane)
        await plane.ask("DELETE", "/api/v1/secrets/HF_TOKEN")
        agent = await plane.join("n1")
        said = await reason(plane, job)
        assert "secret HF_TOKEN of user:local in tenant default was deleted" in said
        assert "stoker secret set HF_TOKEN" in said
        node = plane.control.committer.state.nodes[NodeName("n1")]
        assert (node.pause, node.failed_starts) == (None, ()), "the node isn't charged"
        await put(plane)
        assert (await agent.next_start()).env["HF_TOKEN"] == VALUE


async def test_a_gang_whose_secret_is_gone_starts_no_rank_and_waits_as_a_whole(plane: Plane) -> None:
    """Rank 0 is withheld; the others, which wait for it, are told to stop and have no trace of it."""
    await put(plane)
    job = await submit(plane, tasks=2, gpu_count=1, tasks_per_node=1)
    await plane.ask("DELETE", "/api/v1/secrets/HF_TOKEN")
    first, second = await plane.join("n1", 1), await plane.join("n2", 1)

    async def obey() -> None:
        while True:
            await second.end(await second.next_stop(), cause=EndCause.GONE)

    obeying = asyncio.create_task(obey())
    assert "was deleted" in await reason(plane, job)
    await put(plane)
    assert (await first.run()).env["HF_TOKEN"] == VALUE
    obeying.cancel()


async def test_a_key_that_others_may_read_is_told_to_the_admin_and_jobs_wait_until_it_is_closed(
    plane: Plane, tmp_path: Path
) -> None:
    await put(plane)
    key = tmp_path / "keys" / "secrets.key"
    key.chmod(0o644)
    job = await submit(plane)
    agent = await plane.join("n1")
    said = await reason(plane, job)
    assert "the control plane can't open its secrets" in said
    assert str(key) not in said
    assert f"chmod 600 {key}" in plane.log_text()
    assert "starts_withheld" in (await plane.get("/metrics")).body.decode()
    key.chmod(0o600)
    assert (await agent.next_start()).env["HF_TOKEN"] == VALUE


async def test_a_job_without_secrets_starts_whatever_has_become_of_the_key(plane: Plane, tmp_path: Path) -> None:
    await put(plane)
    (tmp_path / "keys" / "secrets.key").unlink()
    await submit(plane, secrets={})
    await (await plane.join("n1")).next_start()


async def test_no_secret_goes_to_a_node_that_others_could_listen_to(plane: Plane) -> None:
    await put(plane)
    job = await submit(plane)
    agent = await plane.join("n1", private=False)
    assert "without TLS" in await reason(plane, job)
    other = await submit(plane, secrets={})
    start = await agent.next_start()
    assert str(start.key.job) == other
    await agent.end(start, cause=EndCause.EXITED)
    private = await plane.join("n2")
    assert (await private.next_start()).env["HF_TOKEN"] == VALUE, "it goes where nobody listens"


async def test_a_job_that_names_what_nobody_set_is_refused_with_what_there_is(plane: Plane) -> None:
    await put(plane)
    code, said = await refused(plane, secrets={"A": "HF_TOKEM"})
    assert code == "unknown_secret"
    assert "did you mean `HF_TOKEN`?" in said
    await plane.ask("DELETE", "/api/v1/secrets/HF_TOKEN")
    assert "stoker secret set HF_TOKEN" in (await refused(plane, secrets={"A": "HF_TOKEN"}))[1]


async def test_a_job_whose_secrets_can_not_become_variables_is_refused(plane: Plane) -> None:
    await put(plane)
    for number in range(3):
        await put(plane, f"BIG{number}", "x" * 60_000)
    cases: list[tuple[dict[str, object], str]] = [
        ({"secrets": {"A-B": "HF_TOKEN"}}, "bad_secret"),
        ({"secrets": {"A": "HF_TOKEN"}, "env": {"A": "1"}}, "bad_secret"),
        ({"secrets": {f"A{n}": "HF_TOKEN" for n in range(JOB_SECRETS_MAX + 1)}}, "too_many_secrets"),
        ({"secrets": {f"A{n}": f"BIG{n}" for n in range(3)}}, "text_too_long"),
        ({"secrets": ["HF_TOKEN"]}, "bad_field"),
    ]
    for body, code in cases:
        assert (await refused(plane, **body))[0] == code, body
    await submit(plane, secrets={f"A{n}": "HF_TOKEN" for n in range(JOB_SECRETS_MAX)})
