"""REST for GPUs, nodes and the whole cluster."""

from pathlib import Path

import pytest

from stoker.brain.domain.ids import JobId
from stoker.brain.domain.job import EndCause
from stoker.brain.domain.reason import ReasonCode
from stoker.live.settings.control import ControlSettings
from stoker.live.settings.policy import PolicySettings
from stoker.wire.rest.view import iso
from tests.api.http.plane import Plane, plane_in

GPUS, NODES, STATUS = "/api/v1/gpus", "/api/v1/nodes", "/api/v1/cluster/status"


async def counts(plane: Plane) -> tuple[int, int, int, int]:
    shown = (await plane.get(GPUS)).json
    listed = [gpu["status"] for gpu in shown["gpus"]]
    assert shown["total"] == len(listed)
    words = ("idle", "busy", "offline", "quarantined")
    assert [shown[word] for word in words] == [listed.count(word) for word in words]
    return shown["total"], shown["idle"], shown["busy"], shown["offline"]


async def test_gpus_are_counted_by_what_new_work_could_have(plane: Plane) -> None:
    agent = await plane.join("a")
    await plane.join("b")
    assert await counts(plane) == (8, 8, 0, 0)
    await plane.ask("POST", "/api/v1/jobs", {"command": "x", "gpu_count": 3})
    await plane.until(lambda: any(plane.control.committer.state.indexes.held.values()))
    assert await counts(plane) == (8, 5, 3, 0)
    held = next(iter(plane.control.committer.state.indexes.on_node))
    await plane.ask("POST", f"{NODES}/{held}/drain", {"reason": "fan"})
    assert await counts(plane) == (8, 4, 3, 1)
    assert agent is not None


async def test_a_gpu_shows_the_dialects_fields_and_its_uuid(plane: Plane) -> None:
    agent = await plane.join("host-with-3-dashes")
    await plane.ask("POST", "/api/v1/jobs", {"command": "x", "gpu_count": 1})
    await agent.run()
    busy = next(gpu for gpu in (await plane.get(GPUS)).json["gpus"] if gpu["status"] == "busy")
    assert busy["id"] == f"host-with-3-dashes-gpu-{busy['device_index']}"
    assert busy["uuid"] == f"GPU-host-with-3-dashes-{busy['device_index']}"
    assert (busy["node_id"], busy["current_task"], busy["memory"]) == ("host-with-3-dashes", "1", 32_768)
    assert busy["model"] == "Tesla V100-SXM2-32GB"
    assert busy["updated_at"].endswith("Z")


async def test_re_registration_adds_no_gpu(plane: Plane) -> None:
    """The seed added the node's GPUs to the total again."""
    await plane.join("a")
    await plane.join("a")
    assert (await counts(plane))[0] == 4


async def test_an_unreachable_node_has_its_gpus_offline(plane: Plane) -> None:
    from stoker.brain.domain.ids import CONTROL, NodeName
    from stoker.brain.state.commands import NodeSilent

    await plane.join("a")
    await plane.control.committer.ask(NodeSilent(by=CONTROL, node=NodeName("a")))
    assert await counts(plane) == (4, 0, 0, 4)
    node = (await plane.get(f"{NODES}/a")).json
    assert (node["state"], node["online"], node["schedulable"]) == ("unreachable", False, False)
    assert node["silent_since"] is not None


async def test_the_cluster_status_has_the_mvps_names(plane: Plane) -> None:
    agent = await plane.join("a")
    for _ in range(3):
        await plane.ask("POST", "/api/v1/jobs", {"command": "x", "gpu_count": 2})
    await agent.run()
    await agent.run()
    await plane.until(lambda: len(plane.control.committer.state.indexes.by_state["running"]) == 2)  # type: ignore[index]  # a StrEnum
    status = (await plane.get(STATUS)).json
    names = "total_gpus, available_gpus, total_nodes, online_nodes, total_jobs, pending_jobs, running_jobs"
    assert [status[name] for name in names.split(", ")] == [4, 0, 1, 1, 3, 1, 2]
    assert status["jobs"]["running"] == 2
    none = dict.fromkeys(("unreachable", "faulty", "draining", "drained", "paused", "forgotten"), 0)
    assert status["nodes"] == {"ready": 1, **none}
    assert status["cluster_id"]
    assert status["epoch"] == 1


async def test_the_cluster_status_counts_members_and_not_their_array(plane: Plane) -> None:
    agent = await plane.join("a")
    await plane.ask("POST", "/api/v1/jobs", {"command": "x", "gpu_count": 1, "array": "0-9%2"})
    await agent.run()
    await agent.run()
    await plane.until(lambda: len(plane.control.committer.state.indexes.by_state["running"]) == 3)  # type: ignore[index]  # a StrEnum
    status = (await plane.get(STATUS)).json
    assert (status["pending_jobs"], status["running_jobs"]) == (8, 2)


async def test_a_node_is_drained_and_resumed(plane: Plane) -> None:
    agent = await plane.join("a")
    await plane.ask("POST", "/api/v1/jobs", {"command": "x"})
    start = await agent.run()
    drained = (await plane.ask("POST", f"{NODES}/a/drain", {"reason": "fan is loud"})).json
    assert (drained["state"], drained["drain"], drained["jobs"]) == ("draining", "fan is loud", ["1"])
    await agent.end(start)
    assert (await plane.get(f"{NODES}/a")).json["state"] == "drained"
    resumed = (await plane.ask("POST", f"{NODES}/a/resume")).json
    assert (resumed["state"], resumed["drain"]) == ("ready", None)


async def test_a_node_in_a_pause_shows_until_when_and_so_does_a_job_that_waits_for_it(tmp_path: Path) -> None:
    # So that a job of which nothing ran ends too, where it may not be requeued.
    once = ControlSettings(policy=PolicySettings(attempts_max=1))
    async with plane_in(tmp_path, once) as plane:
        agent = await plane.join("a")
        for _ in range(3):
            await plane.ask("POST", "/api/v1/jobs", {"command": "x", "gpu_count": 4, "requeue": False})
            await agent.end(await agent.next_start(), cause=EndCause.NEVER_STARTED)
        shown = (await plane.get(f"{NODES}/a")).json
        assert (shown["state"], shown["online"], shown["schedulable"]) == ("paused", True, False)
        assert shown["pause"]["error"] == "never_started"
        assert (await plane.get(STATUS)).json["nodes"]["paused"] == 1
        await plane.ask("POST", "/api/v1/jobs", {"command": "x"})
        job, loop = plane.control.committer.state.jobs[JobId(4)], plane.control.loop
        await plane.until(lambda: loop.planned_reason(job.spec.shape).code is ReasonCode.NODES_PAUSED)
        why = (await plane.get("/api/v1/jobs/4/why")).json
        assert (why["code"], why["facts"]["node"], why["facts"]["paused"]) == ("nodes_paused", "a", 1)
        assert iso(why["facts"]["until_ms"]) == shown["pause"]["until"]
        meters = (await plane.get("/metrics")).body.decode()
        assert 'stoker_agent_count{status="paused"} 1' in meters
        assert "stoker_agent_paused_total 1" in meters
        resumed = (await plane.ask("POST", f"{NODES}/a/resume")).json
        assert (resumed["state"], resumed["pause"]) == ("ready", None)
        await agent.next_start()


async def test_a_drain_needs_no_body(plane: Plane) -> None:
    await plane.join("a")
    assert (await plane.ask("POST", f"{NODES}/a/drain")).json["state"] == "drained"


@pytest.mark.parametrize("reason", ["x" * 5_000, 7])
async def test_a_reason_for_a_drain_is_a_short_text(plane: Plane, reason: object) -> None:
    await plane.join("a")
    reply = await plane.ask("POST", f"{NODES}/a/drain", {"reason": reason})
    assert (reply.status, reply.json["code"]) == (400, "bad_field")


async def test_a_node_in_use_is_forgotten_only_by_force_and_its_gpus_leave_the_count(plane: Plane) -> None:
    agent = await plane.join("a")
    await plane.ask("POST", "/api/v1/jobs", {"command": "x", "requeue": False})
    await agent.run()
    refused = await plane.ask("DELETE", f"{NODES}/a")
    assert (refused.status, refused.json["code"]) == (409, "node_in_use")
    assert "--force" in refused.json["hint"]
    forgotten = await plane.ask("DELETE", f"{NODES}/a?force=true")
    assert (forgotten.status, forgotten.json["state"]) == (200, "forgotten")
    assert (await plane.get("/api/v1/jobs/1")).json["state"] == "node_failed"
    assert await counts(plane) == (0, 0, 0, 0)
    again = await plane.ask("POST", f"{NODES}/a/drain", {"reason": "x"})
    assert (again.status, again.json["code"]) == (409, "node_forgotten")


async def test_nodes_are_listed_by_name_with_what_is_free(plane: Plane) -> None:
    for name in ("b", "a"):
        await plane.join(name)
    shown = (await plane.get(NODES)).json
    assert shown["total"] == 2
    assert [node["name"] for node in shown["nodes"]] == ["a", "b"]
    assert shown["nodes"][0]["free"] == {"gpus": 4, "cpus": 16, "memory_mb": 64_000}


@pytest.mark.parametrize(("method", "tail"), [("GET", ""), ("DELETE", ""), ("POST", "/drain"), ("POST", "/resume")])
async def test_a_node_that_is_not_there_is_404(plane: Plane, method: str, tail: str) -> None:
    reply = await plane.ask(method, f"{NODES}/none{tail}")
    assert (reply.status, reply.json["code"]) == (404, "node_unknown")


@pytest.mark.parametrize("path", [GPUS, NODES, STATUS])
async def test_a_filter_that_isnt_there_is_refused(plane: Plane, path: str) -> None:
    assert (await plane.get(f"{path}?state=idle")).json["code"] == "unknown_parameter"
