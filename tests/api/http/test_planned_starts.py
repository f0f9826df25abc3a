"""Planned starts: which jobs have a reservation, from when at the latest and where, as far as the asker may see it."""

from typing import Any

import pytest

from stoker.brain.domain.ids import JobId
from tests.api.http.people import People
from tests.api.http.plane import Plane

JOBS = "/api/v1/jobs"


async def submit(plane: Plane, **body: Any) -> str:  # noqa: ANN401  # whatever a person may send
    reply = await plane.ask("POST", JOBS, {"command": "true", **body})
    assert reply.status == 201, reply.body
    return str(reply.json["id"])


async def until_planned(plane: Plane, *jobs: str) -> None:
    loop = plane.control.loop
    await plane.until(lambda: all(loop.reservation(JobId(int(job))) is not None for job in jobs))


async def busy(plane: Plane) -> None:
    """Four GPUs, of which one is busy for an hour, and two for two. Jobs of two shapes may have reservations then."""
    node = await plane.join("gpu-1", gpus=4)
    for gpus, minutes in ((2, 120), (1, 60)):
        await submit(plane, gpu_count=gpus, max_runtime_minutes=minutes)
        await node.run()


async def test_jobs_with_a_reservation_say_when_they_start_at_the_latest_and_where_and_no_others_do(
    plane: Plane,
) -> None:
    await busy(plane)
    late, soon = await submit(plane, gpu_count=2, cpus=2), await submit(plane, gpu_count=2, priority="high")
    await until_planned(plane, late, soon)
    shown = {job["id"]: job for job in (await plane.get(JOBS)).json["jobs"]}
    assert [shown[job]["planned_nodes"] for job in (late, soon)] == [["gpu-1"], ["gpu-1"]]
    assert shown[soon]["planned_start"] < shown[late]["planned_start"]
    assert all("planned_start" not in shown[job] for job in ("1", "2"))
    for job in (late, soon):
        assert (await plane.get(f"{JOBS}/{job}")).json["planned_start"] == shown[job]["planned_start"]
        assert (await plane.get(f"{JOBS}/{job}/why")).json["starts_by"] == shown[job]["planned_start"]


async def test_the_list_of_planned_starts_has_the_earliest_first_and_takes_filters_but_no_order(plane: Plane) -> None:
    await busy(plane)
    late = await submit(plane, gpu_count=2, cpus=2, name="late")
    soon = await submit(plane, gpu_count=2, name="soon", priority="high")
    await until_planned(plane, late, soon)
    listed = (await plane.get(f"{JOBS}?planned=true")).json
    assert ([job["id"] for job in listed["jobs"]], listed["total"], listed["next"]) == ([soon, late], 2, None)
    assert [job["id"] for job in (await plane.get(f"{JOBS}?planned=true&name=late")).json["jobs"]] == [late]
    first = (await plane.get(f"{JOBS}?planned=true&limit=1")).json
    assert ([job["id"] for job in first["jobs"]], first["total"]) == ([soon], 2)
    for beside in ("sort=gpus", "offset=1", f"after={late}"):
        refused = await plane.get(f"{JOBS}?planned=true&{beside}")
        assert (refused.status, refused.json["code"]) == (400, "bad_parameter")
        assert "left out beside" in refused.json["message"]


async def test_a_member_that_is_no_record_yet_is_a_row_and_its_array_says_when_the_next_one_starts(
    plane: Plane,
) -> None:
    await busy(plane)
    array = await submit(plane, gpu_count=3, array="3-9")
    await until_planned(plane, str(int(array) + 1))
    (member,) = (await plane.get(f"{JOBS}?planned=true")).json["jobs"]
    assert (member["id"], member["planned_nodes"]) == (f"{array}_3", ["gpu-1"])
    shown = (await plane.get(f"{JOBS}/{array}")).json
    assert shown["planned_start"] == member["planned_start"]
    why = (await plane.get(f"{JOBS}/{array}/why")).json
    assert (why["starts_by"], why["starts_on"]) == (member["planned_start"], ["gpu-1"])
    assert "planned_start" not in (await plane.get(f"{JOBS}/{array}_4")).json


async def test_a_job_that_is_held_or_gone_since_the_last_pass_has_no_planned_start(plane: Plane) -> None:
    await busy(plane)
    jobs = [await submit(plane, gpu_count=4) for _ in range(2)]
    await until_planned(plane, jobs[0])
    held = (await plane.ask("POST", f"{JOBS}/{jobs[0]}/hold")).json
    assert "planned_start" not in held
    assert jobs[0] not in [job["id"] for job in (await plane.get(f"{JOBS}?planned=true")).json["jobs"]]


async def test_people_of_other_tenants_see_the_time_and_not_the_nodes(people: People) -> None:
    node = await people.plane.join("gpu-1", gpus=2)
    await people.anna.submit(command="true", gpu_count=2, max_runtime_minutes=60)
    await node.run()
    waiting = await people.anna.submit(command="true", gpu_count=1)
    await until_planned(people.plane, waiting)
    (own,) = (await people.anna.get(f"{JOBS}?planned=true")).json["jobs"]
    (foreign,) = (await people.bert.get(f"{JOBS}?planned=true")).json["jobs"]
    assert (own["planned_nodes"], foreign.get("planned_nodes")) == (["gpu-1"], None)
    assert foreign["planned_start"] == own["planned_start"]
    assert foreign["reduced"]


@pytest.mark.parametrize("other", ["--sort gpus", "--sort=-id"])
def test_start_and_another_order_contradict_each_other(other: str) -> None:
    from click.testing import CliRunner

    from stoker.cli.main import root

    done = CliRunner().invoke(root, ["list", "--server", "http://127.0.0.1:1", "--start", *other.split()])
    assert (done.exit_code, done.stdout) == (2, "")
    assert "--start or --sort" in done.stderr
