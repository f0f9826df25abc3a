"""Rules S1 to S3 of `engine/share_report.py`: what is told is what orders the queue."""

import pytest

from stoker.brain.domain.ids import JobId, TenantName
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.units import HOUR_MS, Instant
from stoker.brain.engine import share_report as report_module
from stoker.brain.engine.fair_share import WHOLE
from stoker.brain.engine.share_report import ShareReport, TenantShare, share_report
from tests.brain.engine.test_fair_share import HUNDRED, TREE, held_for_a_day, shared, team, used
from tests.builders import NOW, Cluster, cluster, job, node, running_on, tenant


def told(here: Cluster, policy: Policy = HUNDRED) -> ShareReport:
    return share_report(here, policy, NOW)


def lines(here: Cluster) -> dict[str, TenantShare]:
    return {line.tenant: line for line in told(here).lines}


def percent(part: int) -> int:
    return round(100 * part / WHOLE)


def test_a_line_tells_weight_use_points_and_what_runs_and_waits() -> None:
    here = cluster(
        node("n", gpus=8),
        team("a", 3),
        team("b"),
        job(1, tenant="a", gpus=1),
        running_on(job(2, tenant="b", gpus=2), ("n", [0, 1])),
    )
    held_for_a_day(here, {"b": used(40)})
    a, b = lines(here)["a"], lines(here)["b"]
    assert (a.weight, percent(a.entitled), a.used, a.resource, a.term) == (3, 75, 0, "", 100)
    assert (b.weight, percent(b.entitled), percent(b.used), b.resource, b.term) == (1, 25, 20, "gpus", None)
    assert (b.running_gpus, b.running_jobs) == (2, 1)


def test_s1_idle_tenants_take_no_part_and_one_that_is_idle_is_told_what_it_would_have() -> None:
    here = shared(team("a", 3), team("b"), team("idle", 4), gpus={}, queue="a b")
    found = {name: percent(line.entitled) for name, line in lines(here).items()}
    assert found == {"a": 75, "b": 25, "idle": 50, "default": 20}


def test_s1_a_tenant_beneath_another_is_entitled_to_a_part_of_its_part() -> None:
    here = shared(*TREE, gpus={}, queue="lab-a lab-b club-a")
    found = {name: percent(line.entitled) for name, line in lines(here).items()}
    assert (found["lab"], found["lab-a"], found["club-a"]) == (50, 25, 50)
    assert [line.path for line in told(here).lines if line.tenant == "lab-a"] == ["lab/lab-a"]


def test_the_order_of_lines_is_that_of_the_tree() -> None:
    here = shared(*TREE, gpus={}, queue="club-a")
    assert [line.tenant for line in told(here).lines] == ["club", "club-a", "default", "lab", "lab-a", "lab-b"]


def test_of_many_tenants_only_those_are_told_that_have_jobs_or_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_module, "LINES_MAX", 2)
    here = shared(team("a"), team("b"), team("c"), gpus={"b": 4}, queue="a")
    assert [line.tenant for line in told(here).lines] == ["a", "b"]
    assert not told(here).more
    assert told(shared(team("a"), team("b"), team("c"), gpus={"b": 4}, queue="a c")).more


# -- S3: who is next, and why --------------------------------------------------------------------------------------


def next_of(here: Cluster, policy: Policy = HUNDRED) -> tuple[JobId | None, str]:
    found = told(here, policy)
    return found.next.job if found.next else None, found.why


def test_next_is_a_job_of_the_tenant_that_has_used_least() -> None:
    here = shared(team("a"), team("b"), gpus={"b": 9}, queue="b a")
    assert next_of(here) == (2, "of the tenants in the queue a has used least for its weight")
    found = told(here).next
    assert found is not None
    assert (found.tenant, found.priority) == (TenantName("a"), (500, 0, 100))


def test_where_several_have_used_least_or_all_alike_that_is_said() -> None:
    two = shared(team("a"), team("b"), team("c"), gpus={"b": 9}, queue="b a c")
    assert next_of(two) == (2, "of the tenants in the queue a and c have used least for their weight, equally much")
    said = "the tenants in the queue have used equally much for their weight: priority, waiting and submission decide"
    assert next_of(shared(team("a"), team("b"), gpus={}, queue="b a")) == (1, said)


def test_where_priority_or_waiting_outweighs_use_that_is_said_with_the_difference() -> None:
    here = cluster(team("a"), team("b"), job(1, tenant="b", priority=600), job(2, tenant="a"))
    held_for_a_day(here, {"b": used(9)})
    job_id, said = next_of(here)
    assert job_id == 1
    assert said.startswith("tenant a has used less for its weight and gains 67 points more, but this job has more prio")


def test_a_job_within_a_guarantee_is_next_before_priority() -> None:
    here = cluster(
        node("n", gpus=8),
        tenant("a", guaranteed=2),
        team("b"),
        job(1, tenant="b", gpus=1, priority=900),
        job(2, tenant="a", gpus=1),
    )
    assert next_of(here) == (2, "it is within a guarantee that tenant a or its class has, which goes before priority")


def test_a_job_that_a_limit_keeps_is_not_next() -> None:
    here = cluster(tenant("a", gpus=0), team("b"), job(1, tenant="a", gpus=1), job(2, tenant="b", gpus=1))
    assert next_of(here) == (2, "tenant b alone has jobs in the queue: priority, waiting and submission decide")
    assert next_of(cluster(tenant("a", gpus=0), job(1, tenant="a", gpus=1))) == (
        None,
        "all jobs in the queue wait at a limit of their tenant or class",
    )


def test_an_empty_queue_and_fair_share_that_is_off_are_said() -> None:
    assert next_of(cluster(team("a"))) == (None, "nothing waits")
    off = shared(team("a"), team("b"), gpus={"b": 9}, queue="b a")
    assert next_of(off, Policy(fair_share_points=0)) == (
        1,
        "fair share is off: priority, waiting and submission decide",
    )


def test_the_same_is_told_a_second_time() -> None:
    here = shared(team("a"), team("b"), gpus={"b": 9}, queue="b a")
    assert told(here) == told(here)
    later = share_report(here, HUNDRED, Instant(NOW + HOUR_MS))
    assert later.lines != told(here).lines
