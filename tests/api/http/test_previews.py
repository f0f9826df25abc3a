"""What would become of a job, asked before it is submitted, and the last hour of a node's GPUs."""

from typing import Any

from stoker.brain.domain.gpu_telemetry import GpuReading
from stoker.brain.domain.ids import GpuUuid, NodeName
from stoker.brain.domain.report import Beat
from stoker.brain.domain.units import Instant, Mono
from tests.api.http.people import People
from tests.api.http.plane import Plane

PREVIEW = "/api/v1/jobs/preview"


async def told(plane: Plane, **body: object) -> Any:  # noqa: ANN401  # JSON
    reply = await plane.ask("POST", PREVIEW, {"command": "true", **body})
    assert reply.status == 200, reply.body
    return reply.json


async def test_a_job_that_would_start_is_told_where_and_isnt_submitted(plane: Plane) -> None:
    await plane.join("n1", 4)
    said = await told(plane, gpu_count=2)
    assert (said["outcome"], said["nodes"], said["message"]) == ("starts", ["n1"], "it would start now on n1")
    assert (await plane.get("/api/v1/jobs")).json["total"] == 0
    assert int(plane.control.committer.state.next_job_id) == 1


async def test_a_job_that_would_wait_is_told_why_and_what_would_help(plane: Plane) -> None:
    agent = await plane.join("n1", 4)
    await plane.ask("POST", "/api/v1/jobs", {"command": "true", "gpu_count": 3})
    await agent.run()
    said = await told(plane, gpu_count=2)
    assert (said["outcome"], said["code"]) == ("waits", "insufficient_gpus")
    assert "1" in said["message"]
    assert said["hint"]
    assert (await told(plane, gpu_count=1, hold=True))["code"] == "held"
    assert (await told(plane, gpu_count=1, begin="now+1h"))["code"] == "begin_time"
    assert (await told(plane, gpu_count=1, array="0-9"))["outcome"] == "starts"


async def test_what_a_submit_refuses_is_part_of_the_answer_and_no_row_of_the_audit_trail(people: People) -> None:
    await people.plane.join("n1", 1)
    reply = await people.anna.ask("POST", PREVIEW, {"command": "true", "gpu_count": 2})
    assert (reply.json["outcome"], reply.json["code"]) == ("refused", "demand_unsatisfiable")
    reply = await people.anna.ask("POST", PREVIEW, {"command": "true", "tenant": "nobodys"})
    assert reply.json["outcome"] == "refused"
    rows = (await people.admin.get("/api/v1/audit")).json["rows"]
    assert [row for row in rows if row["action"] == "submit"] == []
    assert (await people.prometheus.ask("POST", PREVIEW, {"command": "true"})).status == 403


async def test_the_last_hour_of_a_node_has_a_column_of_each_figure(plane: Plane) -> None:
    await plane.join("n1", 2)
    reading = GpuReading(uuid=GpuUuid("GPU-n1-0"), utilization_percent=93, power_mw=312_345)
    book = plane.control.sessions.book
    now = plane.control.clock.mono()
    book.take(NodeName("n1"), Beat(sequence=1, gpus=(reading,)), Instant(0), Mono(now - 60))
    said = (await plane.get("/api/v1/nodes/n1/figures")).json
    first, second = said["gpus"]
    assert (first["device_index"], first["utilization_percent"], first["power_w"]) == (0, [93], [312.3])
    assert first["temperature_c"] == [None]
    assert first["age_s"][0] in (60, 61)
    assert second["age_s"] == []
    assert (await plane.get("/api/v1/nodes/n2/figures")).json["code"] == "node_unknown"
