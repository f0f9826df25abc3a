"""REST for partitions, and for labels and taints of nodes."""

import pytest

from tests.api.http.plane import Plane

PARTITIONS, NODES = "/api/v1/partitions", "/api/v1/nodes"


async def test_labels_are_set_and_taken_off_and_each_says_who_set_it(plane: Plane) -> None:
    await plane.join("a")
    change = {"labels": {"zone": "x", "disk": "ssd"}}
    shown = (await plane.ask("POST", f"{NODES}/a/labels", change)).json
    assert shown["labels"] == {
        "zone": "x",
        "disk": "ssd",
        "stoker.io/hostname": "a",
        "stoker.io/gpu-model": "Tesla-V100-SXM2-32GB",
    }
    assert shown["labels_by"]["zone"] == "people"
    assert shown["labels_by"]["stoker.io/hostname"] == "stoker"
    shown = (await plane.ask("POST", f"{NODES}/a/labels", {"remove": ["zone"]})).json
    assert "zone" not in shown["labels"]
    assert shown["labels"] == (await plane.get(f"{NODES}/a")).json["labels"]


async def test_taints_are_put_on_and_taken_off(plane: Plane) -> None:
    await plane.join("a")
    shown = (await plane.ask("POST", f"{NODES}/a/taints", {"taints": ["gpu=old:NoSchedule", "team:NoSchedule"]})).json
    assert (shown["taints"], shown["taints_by"]) == (
        ["gpu=old:NoSchedule", "team:NoSchedule"],
        {"gpu": "people", "team": "people"},
    )
    shown = (await plane.ask("POST", f"{NODES}/a/taints", {"remove": ["gpu"]})).json
    assert shown["taints"] == ["team:NoSchedule"]


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("labels", {"labels": {"a b": "c"}}, 400, "bad_label"),
        ("labels", {"labels": {"a": None}}, 400, "bad_field"),
        ("labels", {"lables": {}}, 400, "unknown_field"),
        ("labels", None, 400, "bad_json"),
        ("labels", {"remove": ["x"] * 1_001}, 400, "bad_field"),
        ("taints", {"taints": ["gpu=old:NoExecute"]}, 400, "bad_taint"),
        ("taints", {"taints": ["gpu"]}, 400, "bad_taint"),
    ],
)
async def test_what_can_not_be_put_on_a_node_is_refused(
    plane: Plane, path: str, body: object, status: int, code: str
) -> None:
    await plane.join("a")
    reply = await plane.ask("POST", f"{NODES}/a/{path}", body)
    assert (reply.status, reply.json["code"]) == (status, code)


async def test_a_node_that_is_not_there_is_not_labelled(plane: Plane) -> None:
    reply = await plane.ask("POST", f"{NODES}/nope/labels", {"labels": {}})
    assert (reply.status, reply.json["code"]) == (404, "node_unknown")


async def test_a_partition_is_made_shown_replaced_and_deleted(plane: Plane) -> None:
    await plane.join("a")
    await plane.join("b")
    await plane.ask("POST", f"{NODES}/a/labels", {"labels": {"zone": "x"}})
    body = {"name": "big", "where": "zone in (y,x)", "tolerate": ["gpu"], "time_default": "1h", "time_max": 120}
    made = await plane.ask("POST", PARTITIONS, body)
    assert made.status == 201
    assert made.json == {
        "name": "big",
        "where": "zone in (x,y)",
        "exclude": [],
        "tolerate": ["gpu"],
        "time_default_ms": 3_600_000,
        "time_max_ms": 7_200_000,
        "comment": "",
        "nodes": 1,
        "ready_nodes": 1,
        "total_gpus": 4,
        "free_gpus": 4,
        "pending_jobs": 0,
        "running_jobs": 0,
    }
    assert (await plane.get(f"{PARTITIONS}/big")).json == made.json
    replaced = await plane.ask("PUT", f"{PARTITIONS}/big", {"exclude": ["a"]})
    assert (replaced.status, replaced.json["where"], replaced.json["nodes"]) == (200, "", 1)
    listed = (await plane.get(PARTITIONS)).json
    assert listed == {"partitions": [replaced.json], "total": 1}
    deleted = await plane.ask("DELETE", f"{PARTITIONS}/big")
    assert (deleted.status, deleted.json) == (200, replaced.json)
    gone = await plane.get(f"{PARTITIONS}/big")
    assert (gone.status, gone.json["code"]) == (404, "partition_unknown")


async def test_putting_a_partition_that_is_not_there_makes_it(plane: Plane) -> None:
    assert (await plane.ask("PUT", f"{PARTITIONS}/p", {})).status == 200
    assert (await plane.get(f"{PARTITIONS}/p")).json["time_max_ms"] == 0


async def test_a_drained_node_of_a_partition_has_gpus_but_none_that_are_free(plane: Plane) -> None:
    await plane.join("a")
    await plane.join("b")
    await plane.ask("PUT", f"{PARTITIONS}/all", {})
    await plane.ask("POST", f"{NODES}/a/drain")
    shown = (await plane.get(f"{PARTITIONS}/all")).json
    counts = [shown[name] for name in ("nodes", "ready_nodes", "total_gpus", "free_gpus")]
    assert counts == [2, 1, 8, 4]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"name": "a b"}, 400, "bad_partition_name"),
        ({"name": ""}, 400, "bad_partition_name"),
        ({}, 400, "missing_field"),
        ({"name": "p", "where": "zone="}, 201, None),
        ({"name": "p", "where": "zone=a,,"}, 400, "bad_selector"),
        ({"name": "p", "tolerate": ["a:NoExecute"]}, 400, "bad_toleration"),
        ({"name": "p", "time_max": "25:99"}, 400, "bad_time"),
        ({"name": "p", "time_max": 0}, 400, "bad_field"),
        ({"name": "p", "time_default": -5}, 400, "bad_field"),
        ({"name": "p", "time_max": "90d"}, 422, "time_limit_too_long"),
        ({"name": "p", "time_default": "2h", "time_max": "1h"}, 422, "time_limit_too_long"),
        ({"name": "p", "exclude": ["nope"]}, 422, "unknown_node"),
        ({"name": "p", "exclude": "a,nope"}, 422, "unknown_node"),
        ({"name": "p", "exclude": [7]}, 400, "bad_field"),
        ({"name": "p", "where": "a in (" + ",".join(map(str, range(101))) + ")"}, 400, "too_many_terms"),
        ({"name": "p", "comment": "x" * 5_000}, 413, "text_too_long"),
        ({"name": "p", "nodes": ["a"]}, 400, "unknown_field"),
    ],
)
async def test_what_is_no_partition_is_refused_by_name(
    plane: Plane, body: dict[str, object], status: int, code: str | None
) -> None:
    await plane.join("a")
    reply = await plane.ask("POST", PARTITIONS, body)
    assert (reply.status, reply.json.get("code")) == (status, code)
    assert (await plane.get(PARTITIONS)).json["total"] == (code is None)


async def test_a_partition_of_a_name_that_is_taken_is_not_made(plane: Plane) -> None:
    await plane.ask("POST", PARTITIONS, {"name": "p"})
    reply = await plane.ask("POST", PARTITIONS, {"name": "p"})
    assert (reply.status, reply.json["code"]) == (409, "partition_exists")
