"""Which guarantees are lent, and to whom (L1 and L2 of `quota_report`); what the class pools hold and want."""

import pytest

from stoker.brain.domain.array import parse_array
from stoker.brain.domain.demand import JobClass
from stoker.brain.domain.gpu import WHOLE_GPU
from stoker.brain.domain.ids import TenantName
from stoker.brain.domain.quota import Limits, Pools, Quota
from stoker.brain.domain.reason import AWAITING_PASS, Reason, ReasonCode
from stoker.brain.domain.tenant import Tenant
from stoker.brain.state import quota_report
from stoker.brain.state.commands import PutTenant, SetPools
from stoker.brain.state.quota_report import Holder, LentGuarantee, lent_guarantees, pool_demands
from tests.brain.state.story import ANNA, Story, spec

NO_GPUS = Reason(ReasonCode.INSUFFICIENT_GPUS)
ONE_CLASS = Pools(online=0, batch=0)
"""No guarantee of a class, so that only those of tenants are told of."""


class QuotaCluster(Story):
    """A cluster of one node with tenants, and who holds how much of it."""

    def __init__(self, gpus: int, pools: Pools = ONE_CLASS) -> None:
        super().__init__()
        self.node("n1", gpus, cpus=1_000)
        self.do(SetPools(by=ANNA, pools=pools))
        self.taken = 0

    def tenant(self, name: str, guaranteed: int = 0, parent: str = "") -> None:
        tenant = Tenant(name=TenantName(name), parent=TenantName(parent), quota=Quota(guaranteed=guaranteed))
        self.do(PutTenant(by=ANNA, tenant=tenant, create=True))

    def holds(self, tenant: str, gpus: int, job_class: JobClass = JobClass.BATCH) -> None:
        self.place(self.submit(spec(gpus, tenant=TenantName(tenant), job_class=job_class)), ("n1", self.taken))
        self.taken += gpus

    def told(
        self, tenant: str, gpus: int = 1, reason: Reason | None = NO_GPUS, **fields: object
    ) -> list[LentGuarantee]:
        job = self.submit(spec(gpus, tenant=TenantName(tenant), **fields))
        return lent_guarantees(self.state, self.job(job), reason)


def takes(story: QuotaCluster, job_class: JobClass) -> int:
    """Idle GPUs that jobs of this class may take."""
    state = story.state
    return state.pools.shares(state.indexes.free_milli, pool_demands(state))[job_class].takes // WHOLE_GPU


def online_waiting(story: QuotaCluster) -> int:
    return pool_demands(story.state)[JobClass.ONLINE].waiting // WHOLE_GPU


def holders(told: list[LentGuarantee]) -> dict[str, int]:
    return {holder.name: holder.gpus for each in told for holder in each.holders}


def test_l1_a_job_within_the_guarantee_of_its_class_is_told_how_much_the_other_class_borrows() -> None:
    story = QuotaCluster(10, Pools())
    story.holds("default", 9)
    told = story.told("default", 2, job_class=JobClass.ONLINE)
    assert told == [LentGuarantee("class", "online", 0, 7, [Holder("class", "batch", 6)])]


def test_l1_a_job_that_would_borrow_or_asks_for_more_than_its_guarantee_has_left_is_told_nothing() -> None:
    story = QuotaCluster(10, Pools())
    story.holds("default", 9)
    assert story.told("default", 1) == []
    assert story.told("default", 8, job_class=JobClass.ONLINE) == []


def test_l1_who_waits_for_no_gpus_is_told_nothing() -> None:
    story = QuotaCluster(10, Pools())
    story.holds("default", 9)
    assert story.told("default", 0, job_class=JobClass.ONLINE) == []
    for reason in (None, AWAITING_PASS, Reason(ReasonCode.TENANT_LIMIT), Reason(ReasonCode.INSUFFICIENT_CPUS)):
        assert story.told("default", 2, reason, job_class=JobClass.ONLINE) == []


def test_l1_where_nobody_holds_more_than_his_guarantee_nothing_is_lent() -> None:
    story = QuotaCluster(10)
    story.tenant("vision", 4)
    story.tenant("nlp", 6)
    story.holds("nlp", 6)
    assert story.told("vision") == []


def test_l2_tenants_beside_it_are_told_with_all_beneath_them_and_only_once() -> None:
    story = QuotaCluster(10)
    story.tenant("vision", 4)
    story.tenant("lab")
    story.tenant("robots", parent="lab")
    story.tenant("nlp", 1)
    story.holds("robots", 3)
    story.holds("lab", 1)
    story.holds("nlp", 3)
    told = story.told("vision")
    assert holders(told) == {"lab": 4, "nlp": 2}
    assert [each.name for each in told] == ["vision"]


def test_l2_within_a_tree_the_siblings_and_the_tenant_above_are_told_as_far_as_they_hold_what_is_promised() -> None:
    story = QuotaCluster(12)
    story.tenant("org", 10)
    story.tenant("vision", 4, "org")
    story.tenant("speech", 2, "org")
    story.holds("speech", 3)
    story.holds("org", 7)
    assert holders(story.told("vision")) == {"org": 3, "speech": 1}


def test_a_job_is_covered_by_a_tenant_above_where_its_own_has_no_guarantee() -> None:
    story = QuotaCluster(10)
    story.tenant("org", 5)
    story.tenant("team", parent="org")
    story.holds("default", 8)
    assert story.told("team", 3) == [LentGuarantee("tenant", "org", 0, 5, [Holder("tenant", "default", 8)])]


def test_no_more_holders_are_named_than_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota_report, "HOLDERS_MAX", 5)
    story = QuotaCluster(20)
    story.tenant("vision", 4)
    for number in range(5 + 2):
        story.tenant(f"t{number}")
        story.holds(f"t{number}", 1)
    assert len(story.told("vision")[0].holders) == 5


def test_what_is_kept_for_a_class_is_what_its_waiting_jobs_may_have_and_its_guarantee_covers() -> None:
    story = QuotaCluster(10, Pools())
    story.tenant("full")
    story.holds("default", 8)
    assert takes(story, JobClass.BATCH) == 2
    story.submit(spec(9, job_class=JobClass.ONLINE))
    assert (online_waiting(story), takes(story, JobClass.BATCH)) == (9, 2), "more than the guarantee of 7 has left"
    limited = Tenant(name=TenantName("full"), quota=Quota(limits=Limits(gpus=1)))
    story.submit(spec(2, job_class=JobClass.ONLINE, tenant=limited.name))
    assert takes(story, JobClass.BATCH) == 0
    story.do(PutTenant(by=ANNA, tenant=limited, create=False))
    assert (online_waiting(story), takes(story, JobClass.BATCH)) == (11, 2), "its tenant may not have more"
    story.submit(spec(1, job_class=JobClass.ONLINE))
    assert takes(story, JobClass.BATCH) == 1


def test_members_of_an_array_want_as_much_as_its_own_limit_lets_start() -> None:
    story = QuotaCluster(10, Pools())
    story.submit(spec(1, job_class=JobClass.ONLINE, array=parse_array("0-9%2")))
    assert (online_waiting(story), takes(story, JobClass.BATCH)) == (2, 8)
