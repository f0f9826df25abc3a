"""What Prometheus reads: valid text, the seeds' names, and numbers that agree with the state."""

import math
from collections import Counter

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from stoker.api.http.state_metrics import METERS
from stoker.brain.domain.array import JobRef, parse_array
from stoker.brain.domain.dependency import Dependency, DependencyKind
from stoker.brain.domain.ids import JobId
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.domain.reason import ReasonCode
from stoker.brain.state.commands import Cancel, Hold, Release
from stoker.brain.state.quota_report import OTHERS, TENANTS_MAX, tenant_usage
from stoker.control.queries.job_details import queue_by_reason
from tests.api.http.plane import Plane
from tests.control.stage import ANNA, Stage, stage, virtual


async def scrape(plane: Plane) -> dict[str, Metric]:
    reply = await plane.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    text = reply.body.decode()
    assert text.endswith("\n")
    families = list(text_string_to_metric_families(text))
    types = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(types) == len(set(types)), "a family may appear once"
    return {sample.name: family for family in families for sample in family.samples}


def values(family: Metric, label: str = "") -> dict[str, float]:
    return {sample.labels.get(label, ""): sample.value for sample in family.samples}


async def test_every_metric_parses_is_ours_and_says_what_it_means(plane: Plane) -> None:
    agent = await plane.join("n")
    await plane.ask("POST", "/api/v1/jobs", {"command": "x", "gpu_count": 1})
    await agent.end(await agent.run())
    await plane.until(lambda: plane.control.committer.state.indexes.pending_count == 0)
    for name, family in (await scrape(plane)).items():
        assert name.startswith(("stoker_", "process_")), name
        assert family.documentation, name
        assert family.documentation.endswith("."), name
        assert not any(math.isnan(sample.value) for sample in family.samples), name
        if family.type == "counter":
            assert name.endswith("_total"), name
        if name.endswith("_total") and family.type == "gauge":
            assert "A gauge, in spite of the name" in family.documentation, name


async def test_the_names_that_the_seeds_promise_are_there_with_their_labels(plane: Plane) -> None:
    agent = await plane.join("n", gpus=4)
    await plane.ask("POST", "/api/v1/jobs", {"command": "x", "gpu_count": 1, "priority": "high"})
    await plane.ask("POST", "/api/v1/jobs", {"command": "x", "gpu_count": 4})
    start = await agent.run()
    state, loop = plane.control.committer.state, plane.control.loop
    await plane.until(lambda: len(state.indexes.by_state[JobState.RUNNING]) == 1)
    waiting = state.jobs[JobId(2)].spec.shape
    await plane.until(lambda: loop.planned_reason(waiting).code is ReasonCode.INSUFFICIENT_GPUS)
    found = await scrape(plane)
    assert values(found["stoker_task_submitted_total"], "priority") == {"high": 1, "normal": 1}
    assert values(found["stoker_task_scheduled_total"], "priority") == {"high": 1}
    assert values(found["stoker_task_pending_total"]) == values(found["stoker_queue_size"]) == {"": 1}
    assert values(found["stoker_task_running_total"]) == {"": 1}
    told = ("gpu_total", "gpu_idle_total", "gpu_busy_total", "gpu_offline_total", "scheduler_is_master")
    assert [values(found[f"stoker_{name}"])[""] for name in told] == [4, 3, 1, 0, 1]
    assert values(found["stoker_agent_count"], "status")["ready"] == 1
    assert values(found["stoker_jobs_total"])[""] == 2
    assert values(found["stoker_pending_jobs"], "reason")["insufficient_gpus"] == 1
    assert "stoker_scheduling_latency_seconds_bucket" in found
    assert "stoker_admission_wait_seconds_bucket" in found
    await agent.end(start, exit_code=1)
    await plane.until(lambda: len(plane.control.committer.state.indexes.by_state[JobState.FAILED]) == 1)
    await plane.control.committer.settled()
    found = await scrape(plane)
    assert values(found["stoker_task_finished_total"], "status") == {"failed": 1}
    assert values(found["stoker_task_running_total"]) == {"": 0}


async def test_no_number_is_made_up_for_a_gpu_that_nobody_measured(plane: Plane) -> None:
    """Agents don't report utilisation yet: a zero would be a lie."""
    await plane.join("n")
    assert not any("utilization" in name or name.startswith("DCGM") for name in await scrape(plane))


def test_a_meter_has_one_name_and_a_sentence() -> None:
    names = [meter.name for meter in METERS]
    assert len(names) == len(set(names))
    assert all(meter.words.endswith(".") for meter in METERS)


async def brute(s: Stage) -> dict[str, int]:
    """Each waiting job and member asked by itself."""
    counts: Counter[str] = Counter()
    for job in s.state.jobs.values():
        if job.members is not None:
            if not job.is_final and job.members.waiting:
                counts[s.why(job.id).code] += job.members.waiting
        elif job.state in (JobState.PENDING, JobState.HELD):
            counts[s.why(job.id).code] += 1
    return {code.value: count for code, count in counts.items()}


@virtual
async def test_y1_the_reasons_add_up_to_those_who_wait_whatever_they_wait_for() -> None:
    async with stage() as s:
        player = await s.join("n1", 4)

        async def agree() -> None:
            counted = await queue_by_reason(s.control)
            assert {code.value: count for code, count in counted.items() if count} == await brute(s)
            assert sum(counted.values()) == s.state.indexes.pending_count

        await agree()
        first = await s.submit(gpus=4)
        await s.submit(gpus=2)
        held = await s.submit(hold=True)
        held_array = await s.submit(hold=True, array=parse_array("0-6"))
        await s.submit(begin=s.committer.now() + 8_000)
        await s.submit(begin=s.committer.now() + 8_000, array=parse_array("1-3"))
        await s.submit(after=(Dependency(kind=DependencyKind.OK, job=first),))
        await s.submit(after=(Dependency(kind=DependencyKind.ANY, job=first),), array=parse_array("0-1"))
        throttled = await s.submit(array=parse_array("0-9%2"))
        await s.pause()
        await agree()
        await s.committer.ask(Release(by=ANNA, target=JobRef(held_array)))
        await s.committer.ask(Release(by=ANNA, target=JobRef(held)))
        await s.pause()
        await agree()
        start = await player.next_start()
        await player.say_started(start.key)
        await player.end(start.key)
        await s.pause()
        await agree()
        await s.committer.ask(Hold(by=ANNA, target=JobRef(throttled, ((7, 9, 1),))))
        await s.pause(9)
        await agree()
        await s.committer.ask(Cancel(by=ANNA, target=JobRef(throttled)))
        await s.pause()
        await agree()


async def test_the_class_pools_have_the_names_of_the_seeds(plane: Plane) -> None:
    agent = await plane.join("n", gpus=10)
    await plane.ask("POST", "/api/v1/jobs", {"command": "x", "gpu_count": 2, "class": "online"})
    await agent.run()
    found = await scrape(plane)
    said = {name: values(found[f"stoker_quota_{name}"])[""] for name in ("total", "online_limit", "online_used")}
    said |= {name: values(found[f"stoker_quota_{name}"])[""] for name in ("batch_limit", "batch_used")}
    assert said == {"total": 10, "online_limit": 7, "online_used": 2, "batch_limit": 3, "batch_used": 0}


async def test_tenants_have_figures_with_all_beneath_them_and_no_more_series_than_there_may_be(plane: Plane) -> None:
    agent = await plane.join("n", gpus=8)
    for name, parent in (("org", None), ("vision", "org")):
        fields = {"max_gpus": 6, "guaranteed_gpus": 0 if parent else 2}
        await plane.ask("POST", "/api/v1/tenants", {"name": name, "parent": parent, **fields})
    await plane.ask("POST", "/api/v1/jobs", {"jobs": [{"command": "x", "gpu_count": 3, "tenant": "vision"}] * 3})
    await agent.run()
    await agent.run()
    found = await scrape(plane)
    figures = {
        name: values(found[f"stoker_tenant_{name}"], "tenant")
        for name in ("gpus", "guaranteed_gpus", "limit_gpus", "running_jobs", "pending_jobs")
    }
    assert figures == {
        "gpus": {"org": 6, "vision": 6, "default": 0},
        "guaranteed_gpus": {"org": 2, "vision": 0, "default": 0},
        "limit_gpus": {"org": 6, "vision": 6},
        "running_jobs": {"org": 2, "vision": 2, "default": 0},
        "pending_jobs": {"org": 1, "vision": 1, "default": 0},
    }
    state = plane.control.committer.state
    few = tenant_usage(state, 1)
    assert {name: usage.gpu_milli for name, usage in few.items()} == {"org": 6_000, OTHERS: 0}, "vision is within org"
    for number in range(TENANTS_MAX + 20):
        await plane.ask("POST", "/api/v1/tenants", {"name": f"t{number}"})
    assert len(values((await scrape(plane))["stoker_tenant_gpus"], "tenant")) == TENANTS_MAX + 1
    assert values((await scrape(plane))["stoker_tenants"]) == {"": TENANTS_MAX + 23}
