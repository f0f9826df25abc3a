"""What `why` answers over REST: the place in the queue, and who holds the GPUs of a guarantee."""

import pytest

from stoker.api.http.jobs import HOLDERS_NAMED_MAX, lent_view
from stoker.brain.domain.alternative import Alternative, AlternativeKind
from stoker.brain.domain.demand import Demand
from stoker.brain.domain.ids import JobId
from stoker.brain.domain.job_changes import JobChanges
from stoker.brain.domain.lifecycle import LIVE
from stoker.brain.domain.units import HOUR_MS, MINUTE_MS
from stoker.brain.state.quota_report import Holder, LentGuarantee
from stoker.wire.rest.why import alternative_view
from tests.api.http.people import People
from tests.api.http.plane import Plane

JOBS = "/api/v1/jobs"


async def test_why_of_an_array_tells_the_place_of_its_next_member(plane: Plane) -> None:
    await plane.ask("POST", JOBS, {"command": "true"})
    await plane.ask("POST", JOBS, {"command": "true", "array": "0-9"})
    why = (await plane.get(f"{JOBS}/2/why")).json
    assert (why["position"], why["waiting"], why["similar_ahead"]) == (2, 11, 1)
    assert (await plane.get(f"{JOBS}/2_4/why")).json["position"] == 6


async def test_why_tells_what_the_priority_is_made_of(plane: Plane) -> None:
    await plane.ask("POST", JOBS, {"command": "true", "priority": "high"})
    why = (await plane.get(f"{JOBS}/1/why")).json
    assert why["priority"] == {"effective": 1_099, "base": 1_000, "aging": 0, "fair_share": 99}
    await plane.ask("POST", f"{JOBS}/1/hold")
    assert (await plane.get(f"{JOBS}/1/why")).json["priority"] is None


def test_the_sentence_about_lent_gpus_names_the_guarantees_and_a_few_of_the_holders() -> None:
    of_class = LentGuarantee("class", "online", 0, 7, [Holder("class", "batch", 6)])
    of_tenant = LentGuarantee("tenant", "vision", 1, 4, [Holder("tenant", f"t{number}", 9) for number in range(20)])
    shown = lent_view([of_class, of_tenant])
    assert shown is not None
    assert shown.guarantees == ["class online", "tenant vision"]
    assert len(shown.holders) == 21
    assert "online jobs (0 of 7 GPUs used) and tenant vision (1 of 4 GPUs used)" in shown.message
    assert "batch jobs hold 6 beyond theirs, tenant t0 holds 9 beyond its own" in shown.message
    assert f"{21 - HOLDERS_NAMED_MAX} other tenants the rest" in shown.message
    assert "borrowers are told to end, but for those that" in shown.message
    assert lent_view([]) is None


async def test_why_names_who_holds_the_gpus_and_the_latest_end_as_far_as_the_asker_may_see(people: People) -> None:
    node = await people.plane.join("n1", gpus=2)
    held = await people.anna.submit(name="train", command="true", gpu_count=2, max_runtime_minutes=60)
    await node.run()
    own = await people.arno.submit(command="true", gpu_count=1)
    foreign = await people.bert.submit(command="true", gpu_count=1)
    loop, jobs = people.plane.control.loop, people.plane.control.committer.state.jobs
    shapes = [jobs[JobId(int(each))].spec.shape for each in (own, foreign)]
    await people.plane.until(lambda: all(loop.planned_reason(each).code != "awaiting_pass" for each in shapes))
    (seen,) = (await people.arno.get(f"{JOBS}/{own}/why")).json["blocked_by"]
    assert (seen["id"], seen["name"], seen["user"], seen["tenant"], seen["gpus"]) == (held, "train", "anna", "red", 2)
    why = (await people.bert.get(f"{JOBS}/{foreign}/why")).json
    (hidden,) = why["blocked_by"]
    assert (hidden["id"], hidden["name"], hidden["user"], hidden["tenant"]) == (held, "", "", "red")
    assert why["blocking_jobs"] == 1
    assert why["starts_by"] == hidden["ends_by"]
    assert (why["starts_on"], why["fits_by"]) == (["n1"], None)


async def test_why_tells_what_would_start_a_job_now_as_options_and_as_a_patch_that_does(plane: Plane) -> None:
    node = await plane.join("n1", gpus=4)
    await plane.ask("POST", JOBS, {"command": "true", "gpu_count": 1, "max_runtime_minutes": 60})
    await node.run()
    loop, jobs = plane.control.loop, plane.control.committer.state.jobs
    asked = {"command": "true", "gpu_count": 2, "tasks": 2, "cpus": 2, "memory_mb": 2048, "max_runtime_minutes": 600}
    await plane.ask("POST", JOBS, asked)
    await plane.until(lambda: loop.planned_reason(jobs[JobId(2)].spec.shape).code == "insufficient_gpus")
    (fewer,) = (await plane.get(f"{JOBS}/2/why")).json["alternatives"]
    assert fewer == {
        "kind": "fewer_gpus",
        "message": "as 3 tasks of 1 GPU each",
        "options": "--gpus 1 --tasks 3",
        "changes": {"gpu_count": 1, "tasks": 3},
    }
    assert (await plane.ask("PATCH", f"{JOBS}/2", fewer["changes"])).status == 200
    await plane.until(lambda: jobs[JobId(2)].state in LIVE)
    assert (await plane.get(f"{JOBS}/2/why")).json["alternatives"] == []


def test_an_alternative_is_written_as_options_of_the_command_line() -> None:
    told = Alternative(
        kind=AlternativeKind.MORE_TASKS,
        demand=Demand(gpu_count=1, tasks=2),
        changes=JobChanges(gpu_count=1, cpus=3, memory_mb=16_384, tasks=2, gpu_model="H100 80GB", tasks_per_node=0),
    )
    assert alternative_view(told).options == (
        "--gpus 1 --tasks 2 --tasks-per-node 0 --gpu-model 'H100 80GB' --cpus 3 --memory 16GiB"
    )
    for limit_ms, options, limit in ((HOUR_MS, "--time 1h", "1h"), (95 * MINUTE_MS, "--time 95m", "95m")):
        told = Alternative(kind=AlternativeKind.SHORTER, demand=Demand(), changes=JobChanges(time_limit_ms=limit_ms))
        assert (alternative_view(told).options, alternative_view(told).changes) == (options, {"time_limit": limit})


async def test_a_signal_says_whom_it_was_sent_to(plane: Plane) -> None:
    node = await plane.join("n1", gpus=2)
    await plane.ask("POST", JOBS, {"command": "true", "gpu_count": 1})
    await node.run()
    told = (await plane.ask("POST", f"{JOBS}/1/signal", {"signal": "USR1"})).json
    assert told["message"] == "USR1 was sent to 1 task on n1"


@pytest.mark.parametrize(
    ("body", "warning"),
    [
        (
            {"name": "big", "guaranteed_gpus": 9},
            "it is guaranteed 9 GPUs, and the cluster has 4: it can't get them all",
        ),
        ({"name": "fits", "guaranteed_gpus": 4}, None),
        ({"name": "none"}, None),
    ],
)
async def test_a_guarantee_of_more_than_the_cluster_has_warns(
    plane: Plane, body: dict[str, object], warning: str | None
) -> None:
    await plane.join("n1", gpus=4)
    told = (await plane.ask("POST", "/api/v1/tenants", body)).json
    assert told["warnings"] == ([] if warning is None else [warning])
    await plane.ask("POST", "/api/v1/tenants", {"name": "second", "guaranteed_gpus": 3})
    again = (await plane.ask("PUT", f"/api/v1/tenants/{body['name']}", {"comment": "c"})).json["warnings"]
    together = "tenants are guaranteed 7 GPUs together, and the cluster has 4"
    assert again == ([together] if body["name"] == "fits" else told["warnings"])
    assert (await plane.get(f"/api/v1/tenants/{body['name']}")).json["warnings"] == again  # nodes may go later
    loop, jobs = plane.control.loop, plane.control.committer.state.jobs
    for _ in range(2):
        await plane.ask("POST", JOBS, {"command": "true", "gpu_count": 4, "tenant_id": body["name"]})
    await plane.until(lambda: loop.planned_reason(jobs[JobId(2)].spec.shape).code == "insufficient_gpus")
    why = (await plane.get(f"{JOBS}/2/why")).json
    assert why["warnings"] == [words.replace("it is", f"tenant {body['name']} is", 1) for words in again]


async def test_a_cluster_without_a_gpu_yet_may_be_set_up_without_a_warning(plane: Plane) -> None:
    assert (await plane.ask("POST", "/api/v1/tenants", {"name": "t", "guaranteed_gpus": 9})).json["warnings"] == []
