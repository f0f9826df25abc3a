"""REST for the class pools: right on a fresh cluster without any call, and changed at once or not at all."""

from pathlib import Path
from typing import Any

from stoker.brain.domain.access import Role
from stoker.brain.domain.ids import JobId
from stoker.live.settings.control import ControlSettings
from stoker.live.settings.policy import QuotaSettings
from tests.api.http.plane import Plane, plane_in
from tests.api.http.tokens import token_of

QUOTA, JOBS = "/api/v1/quota", "/api/v1/jobs"


async def pools(plane: Plane) -> Any:  # noqa: ANN401  # what the JSON holds
    return (await plane.get(QUOTA)).json


async def test_quota_is_right_on_a_fresh_cluster_without_any_call_and_no_gpu_is_stranded(plane: Plane) -> None:
    """dgpu's was 0 and 0 until somebody put it, and of 4 GPUs it gave 2 and 1."""
    shown = await pools(plane)
    assert (shown["total_gpus"], shown["online"]["quota"], shown["batch"]["quota"]) == (0, 0, 0)
    assert (shown["online_percent"], shown["batch_percent"], shown["strict"]) == (0.7, 0.3, False)
    for gpus in range(1, 12):
        await plane.join(f"n{gpus}", gpus=gpus % 3 + 1)
        shown = await pools(plane)
        assert shown["online"]["quota"] + shown["batch"]["quota"] == shown["total_gpus"] == shown["free_gpus"]
    assert shown["total_gpus"] == sum(gpus % 3 + 1 for gpus in range(1, 12))


async def test_a_job_of_each_class_runs_without_anybody_having_set_a_quota(plane: Plane) -> None:
    agent = await plane.join("n")
    for job_class in ("online", "batch"):
        await plane.ask("POST", JOBS, {"class": job_class, "command": "x", "gpu_count": 1})
        await agent.run()
    shown = await pools(plane)
    assert (shown["online"]["used"], shown["batch"]["used"], shown["free_gpus"]) == (1, 1, 2)


async def test_quota_follows_nodes_that_go_and_a_node_that_registers_again_counts_once(plane: Plane) -> None:
    """dgpu added a node's GPUs to the total at each registration."""
    await plane.join("a")
    for _ in range(3):
        await plane.join("b")
        assert (await pools(plane))["total_gpus"] == 8
    await plane.ask("POST", "/api/v1/nodes/b/drain", {})
    assert (await pools(plane))["total_gpus"] == 4
    await plane.ask("POST", "/api/v1/nodes/b/resume")
    assert (await pools(plane))["total_gpus"] == 8
    await plane.ask("DELETE", "/api/v1/nodes/b?force=true")
    shown = await pools(plane)
    assert (shown["total_gpus"], shown["online"]["quota"], shown["batch"]["quota"]) == (4, 3, 1)


async def test_a_late_or_repeated_end_gives_back_nothing_more(plane: Plane) -> None:
    """dgpu's count of what is used went below zero."""
    agent = await plane.join("n")
    await plane.ask("POST", JOBS, {"jobs": [{"command": "x", "gpu_count": 1}] * 2})
    first, second = await agent.run(), await agent.run()
    for _ in range(3):
        await agent.end(first)
        assert (await pools(plane))["batch"]["used"] == 1
    await agent.end(second)
    await agent.end(first)
    shown = await pools(plane)
    assert (shown["batch"]["used"], shown["online"]["used"], shown["free_gpus"]) == (0, 0, 4)


async def test_dgpus_own_put_changes_both_shares_at_once(plane: Plane) -> None:
    await plane.join("n", gpus=10)
    reply = await plane.ask("PUT", QUOTA, b'{"online_percent":0.6}')
    assert reply.status == 200
    assert (reply.json["online_percent"], reply.json["batch_percent"]) == (0.6, 0.4)
    assert (reply.json["online"]["quota"], reply.json["batch"]["quota"]) == (6, 4)
    assert reply.json == await pools(plane)


async def test_only_what_is_given_changes_and_a_rest_belongs_to_nobody(plane: Plane) -> None:
    await plane.join("n", gpus=10)
    shown = (await plane.ask("PUT", QUOTA, {"online_percent": 0.5, "batch_percent": 0.2})).json
    assert (shown["online"]["quota"], shown["batch"]["quota"], shown["strict"]) == (5, 2, False)
    shown = (await plane.ask("PUT", QUOTA, {"strict": True})).json
    assert (shown["online_percent"], shown["batch_percent"], shown["strict"]) == (0.5, 0.2, True)
    # What neither share covers may be borrowed by either, where shares are strict too.
    assert (shown["online"]["free"], shown["batch"]["free"]) == (8, 5)
    shown = (await plane.ask("PUT", QUOTA, {"batch_percent": 0.3})).json
    assert (shown["online_percent"], shown["batch_percent"]) == (0.5, 0.3)


async def test_a_pool_shows_what_it_borrows_and_what_is_kept_from_it(plane: Plane) -> None:
    agent = await plane.join("n", gpus=10)
    await plane.ask("POST", JOBS, {"jobs": [{"command": "x", "gpu_count": 1}] * 10})
    starts = [await agent.run() for _ in range(10)]
    await plane.ask("POST", JOBS, {"class": "online", "command": "x", "gpu_count": 4})
    shown = await pools(plane)
    batch, online = shown["batch"], shown["online"]
    assert (batch["guaranteed"], batch["used"], batch["borrowed"], batch["available"]) == (3, 10, 7, 0)
    assert (online["used"], online["available"], online["waiting_gpus"], online["free"]) == (0, 7, 4, 0)
    await agent.end(starts[0])
    shown = await pools(plane)
    assert (shown["free_gpus"], shown["online"]["free"], shown["batch"]["free"]) == (1, 1, 0)
    assert shown["batch"]["limit_now"] == 9


BAD: tuple[tuple[object, str], ...] = (
    ({"online_percent": 1.01}, "bad_share"),
    ({"online_percent": 70}, "bad_share"),
    ({"online_percent": -0.1}, "bad_share"),
    ({"batch_percent": 1.0000001}, "bad_share"),
    ({"online_percent": 0.6, "batch_percent": 0.5}, "bad_share"),
    ({"batch_percent": 0.5}, "bad_share"),
    ({"online_percent": 1e300}, "bad_share"),
    (b'{"online_percent": NaN}', "bad_json"),
    (b'{"online_percent": Infinity}', "bad_json"),
    (b'{"online_percent": 1e999}', "bad_field"),
    ({"online_percent": "0.6"}, "bad_field"),
    ({"online_percent": True}, "bad_field"),
    ({"online_percent": [0.6]}, "bad_field"),
    ({"strict": 1}, "bad_field"),
    ({"online_percent": 0.6, "force": "yes"}, "bad_field"),
    ({"onlinepercent": 0.6}, "unknown_field"),
    ({}, "missing_field"),
    ({"force": True}, "missing_field"),
    ({"online_percent": None}, "missing_field"),
)


async def test_a_share_that_is_none_is_one_refusal_with_a_hint_and_changes_nothing(plane: Plane) -> None:
    before = await pools(plane)
    position = plane.control.committer.state.position
    for body, code in BAD:
        reply = await plane.ask("PUT", QUOTA, body)
        assert (reply.status, reply.json["code"]) == (400, code), (body, reply.json)
        assert reply.json["hint"], body
    assert await pools(plane) == before
    assert plane.control.committer.state.position == position


async def test_where_shares_are_strict_one_below_what_is_in_use_is_refused_unless_forced(plane: Plane) -> None:
    agent = await plane.join("n", gpus=10)
    await plane.ask("PUT", QUOTA, {"online_percent": 0.7, "strict": True})
    await plane.ask("POST", JOBS, {"class": "online", "command": "x", "gpu_count": 6})
    await agent.run()
    refused = await plane.ask("PUT", QUOTA, {"online_percent": 0.5})
    assert (refused.status, refused.json["code"]) == (409, "share_below_use")
    forced = await plane.ask("PUT", QUOTA, {"online_percent": 0.5, "force": True})
    assert (forced.status, forced.json["online"]["borrowed"], forced.json["online"]["used"]) == (200, 1, 6)


async def test_everybody_reads_the_shares_and_only_admins_change_them(plane: Plane) -> None:
    admin = await token_of(plane, Role.ADMIN)
    for headers in (await token_of(plane, Role.VIEWER), await token_of(plane, Role.USER, "default")):
        assert (await plane.ask("GET", QUOTA, headers=headers)).status == 200
        refused = await plane.ask("PUT", QUOTA, {"online_percent": 0.1}, headers)
        assert (refused.status, refused.json["code"]) == (403, "not_allowed")
    assert (await plane.ask("PUT", QUOTA, {"online_percent": 0.1}, admin)).json["online_percent"] == 0.1


def configured(online: float) -> ControlSettings:
    return ControlSettings(quota=QuotaSettings(online_percent=online))


async def test_a_change_outlives_a_restart_until_the_settings_themselves_change(tmp_path: Path) -> None:
    async with plane_in(tmp_path, configured(0.5)) as plane:
        assert (await pools(plane))["online_percent"] == 0.5
        await plane.ask("PUT", QUOTA, {"online_percent": 0.9})
    async with plane_in(tmp_path, configured(0.5)) as plane:
        assert (await pools(plane))["online_percent"] == 0.9
    async with plane_in(tmp_path, configured(0.8)) as plane:
        assert (await pools(plane))["online_percent"] == 0.8
    async with plane_in(tmp_path, configured(0.8)) as plane:
        assert (await pools(plane))["online_percent"] == 0.8


async def test_a_job_that_a_guarantee_covers_is_told_who_holds_the_gpus_that_were_lent(plane: Plane) -> None:
    agent = await plane.join("n", gpus=10)
    await plane.ask("POST", "/api/v1/tenants", {"name": "vision", "guaranteed_gpus": 4})
    await plane.ask("POST", "/api/v1/tenants", {"name": "nlp", "guaranteed_gpus": 1})
    await plane.ask("POST", JOBS, {"tenant": "nlp", "command": "x", "gpu_count": 10})
    await agent.run()
    await plane.ask("POST", JOBS, {"tenant": "vision", "class": "online", "command": "x", "gpu_count": 2})
    state, loop = plane.control.committer.state, plane.control.loop
    await plane.until(lambda: loop.planned_reason(state.jobs[JobId(2)].spec.shape).code != "awaiting_pass")
    why = (await plane.get(f"{JOBS}/2/why")).json
    assert why["code"] == "insufficient_gpus"
    assert why["lent"]["guarantees"] == ["class online", "tenant vision"]
    assert why["lent"]["holders"] == [
        {"kind": "class", "name": "batch", "gpus": 7},
        {"kind": "tenant", "name": "nlp", "gpus": 9},
    ]
    assert "borrowers are told to end, but for those that" in why["lent"]["message"]
    assert "before whoever would borrow, whatever the place in the queue" in why["lent"]["message"]
    await plane.ask("POST", JOBS, {"tenant": "nlp", "command": "x", "gpu_count": 2})
    assert (await plane.get(f"{JOBS}/3/why")).json["lent"] is None
