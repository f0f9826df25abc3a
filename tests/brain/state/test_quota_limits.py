"""The one check of limits: which of them would one more job break?"""

from stoker.brain.domain.demand import Demand, JobClass, Shape
from stoker.brain.domain.gpu import WHOLE_GPU
from stoker.brain.domain.ids import TenantName
from stoker.brain.domain.quota import WHOLE, Amount, Limits, Pools, Quota
from stoker.brain.domain.reason import Reason, ReasonCode
from stoker.brain.domain.tenant import Tenant
from stoker.brain.state.quota_limits import QuotaLimits, own_limit_broken
from stoker.brain.state.usage_ledger import UsageLedger

NOT_LENT = {"lend": False}


class Sharing:
    """Tenants, who holds how many GPUs, and what the walls say of one more job."""

    def __init__(self, gpus: int, pools: Pools | None = None) -> None:
        self.gpus, self.pools = gpus, pools or Pools()
        self.tenants: dict[TenantName, Tenant] = {}
        self.usage_ledger = UsageLedger(self.tenants)

    def tenant(self, name: str, guaranteed: int = 0, *, parent: str = "", **fields: object) -> "Sharing":
        quota = Quota(guaranteed=guaranteed, **fields)  # type: ignore[arg-type]  # a test passes fields by name
        tenant = Tenant(name=TenantName(name), parent=TenantName(parent), quota=quota)
        self.tenants[tenant.name] = tenant
        self.usage_ledger.tenant_changed(tenant.name, tenant)
        return self

    def holds(self, name: str, gpus: int, job_class: JobClass = JobClass.BATCH) -> "Sharing":
        self.usage_ledger.charge(TenantName(name), job_class, Amount(gpu_milli=gpus * WHOLE_GPU, cpus=gpus, jobs=1))
        return self

    def before(
        self, name: str, gpus: int = 1, *, tasks: int = 1, job_class: JobClass = JobClass.BATCH
    ) -> Reason | None:
        shape = Shape(TenantName(name), job_class, Demand(gpu_count=gpus, tasks=tasks))
        return QuotaLimits(self.tenants, self.pools, self.gpus * WHOLE_GPU).before(shape, self.usage_ledger)

    def code(self, name: str, gpus: int, **fields: object) -> ReasonCode | None:
        reason = self.before(name, gpus, **fields)  # type: ignore[arg-type]  # a test passes fields by name
        return reason.code if reason else None

    def most(self, name: str, job_class: JobClass = JobClass.BATCH) -> int:
        """The most GPUs that one more job of this tenant may ask for."""
        free = self.gpus - self.usage_ledger.held_milli // WHOLE_GPU
        return max(gpus for gpus in range(free + 1) if self.before(name, gpus, job_class=job_class) is None)


# -- L1 ----------------------------------------------------------------------------------------------------------


def test_l1_a_job_within_the_limits_of_its_tenant_and_of_all_above_it_meets_no_wall() -> None:
    sharing = Sharing(8).tenant("lab", limits=Limits(gpus=4)).tenant("team", parent="lab", limits=Limits(gpus=3))
    assert sharing.before("team", 3) is None
    assert sharing.code("team", 4) is ReasonCode.TENANT_LIMIT
    sharing.holds("lab", 2)
    assert sharing.before("team", 2) is None
    assert sharing.before("team", 3) == Reason(
        ReasonCode.TENANT_LIMIT, {"tenant": "lab", "what": "GPUs", "limit": 4, "used": 2, "asked": 3}
    )


def test_l1_a_gang_counts_as_a_whole() -> None:
    sharing = Sharing(8).tenant("lab", limits=Limits(gpus=5))
    assert sharing.before("lab", 2, tasks=2) is None
    assert sharing.code("lab", 2, tasks=3) is ReasonCode.TENANT_LIMIT


def test_l1_who_asks_for_none_of_what_is_used_up_starts() -> None:
    sharing = Sharing(8).tenant("lab", limits=Limits(gpus=2)).holds("lab", 3)
    assert sharing.before("lab", 0) is None
    assert sharing.code("lab", 1) is ReasonCode.TENANT_LIMIT


def test_l1_the_limits_of_tenants_beside_or_beneath_are_of_no_concern() -> None:
    sharing = Sharing(8).tenant("lab").tenant("team", parent="lab", limits=Limits(gpus=0)).tenant("other")
    assert sharing.before("lab", 8) is None
    assert sharing.before("other", 8) is None


def test_alone_asks_what_could_never_start() -> None:
    tenant = Tenant(name=TenantName("lab"), quota=Quota(guaranteed=2, borrow=False, limits=Limits(cpus=4)))
    assert own_limit_broken(tenant, Amount(gpu_milli=2_000, cpus=4)) is None
    over = [own_limit_broken(tenant, more) for more in (Amount(gpu_milli=3_000), Amount(cpus=5))]
    assert [(wall.limit, wall.asked) for wall in over if wall] == [(2_000, 3_000), (4, 5)]


# -- L2 ----------------------------------------------------------------------------------------------------------


def test_l2_where_pools_are_no_walls_each_may_use_everything() -> None:
    sharing = Sharing(10).tenant("lab")
    assert sharing.most("lab") == sharing.most("lab", JobClass.ONLINE) == 10


def test_l2_a_strict_pool_has_what_the_other_is_not_promised() -> None:
    sharing = Sharing(10, Pools(strict=True)).tenant("lab")
    assert (sharing.most("lab", JobClass.ONLINE), sharing.most("lab")) == (7, 3)
    sharing.holds("lab", 2)
    assert (sharing.most("lab", JobClass.ONLINE), sharing.most("lab")) == (7, 1)


def test_l2_what_neither_share_covers_may_be_borrowed_by_either() -> None:
    sharing = Sharing(10, Pools(online=500_000, batch=200_000, strict=True)).tenant("lab")
    assert (sharing.most("lab", JobClass.ONLINE), sharing.most("lab")) == (8, 5)
    sharing.holds("lab", 5)
    assert (sharing.most("lab", JobClass.ONLINE), sharing.most("lab")) == (5, 0)


def test_l2_after_a_forced_change_the_pool_beyond_its_share_starts_nothing_and_the_other_what_is_left() -> None:
    sharing = Sharing(10, Pools(online=WHOLE, batch=0, strict=True)).tenant("lab").holds("lab", 4)
    assert (sharing.most("lab", JobClass.ONLINE), sharing.most("lab")) == (6, 0)
    assert sharing.before("lab", 1) == Reason(
        ReasonCode.POOL_LIMIT, {"pool": "batch", "used": 4, "limit": 0, "asked": 1}
    )


def test_l2_rounding_strands_no_gpu_of_a_strict_cluster() -> None:
    for gpus in range(30):
        for online in (0, 333_333, 500_000, 700_000, WHOLE):
            sharing = Sharing(gpus, Pools(online=online, batch=WHOLE - online, strict=True)).tenant("lab")
            assert sharing.most("lab", JobClass.ONLINE) + sharing.most("lab") == gpus


def test_l2_who_asks_for_no_gpu_meets_no_pool() -> None:
    sharing = Sharing(2, Pools(online=WHOLE, batch=0, strict=True)).tenant("lab").holds("lab", 2)
    assert sharing.before("lab", 0) is None


# -- L3 ----------------------------------------------------------------------------------------------------------


def test_l3_what_a_tenant_that_does_not_lend_leaves_idle_is_left_alone_by_others() -> None:
    sharing = Sharing(8).tenant("svc", 3, **NOT_LENT).tenant("other")
    assert sharing.most("other") == 5
    assert sharing.before("other", 6) == Reason(ReasonCode.GUARANTEE_KEPT, {"free": 8, "kept": 3, "asked": 6})
    sharing.holds("svc", 1)
    assert sharing.most("other") == 5, "it now keeps two of seven"
    sharing.holds("svc", 4)
    assert sharing.most("other") == 3, "what it holds beyond its guarantee is held, and no more"


def test_l3_a_tenant_that_lends_keeps_nothing_from_the_walls() -> None:
    assert Sharing(8).tenant("svc", 3).tenant("other").most("other") == 8


def test_l3_the_tenant_itself_and_those_beneath_it_use_what_it_keeps() -> None:
    sharing = Sharing(8).tenant("svc", 8, **NOT_LENT).tenant("team", parent="svc").tenant("other")
    assert (sharing.most("svc"), sharing.most("team"), sharing.most("other")) == (8, 8, 0)


def test_l3_who_is_within_a_guarantee_of_his_own_is_not_kept_out() -> None:
    """More may be promised than there is: who comes first is served."""
    sharing = Sharing(4).tenant("svc", 4, **NOT_LENT).tenant("mine", 2)
    assert sharing.most("mine") == 2
    sharing.holds("mine", 2)
    assert sharing.code("mine", 1) is ReasonCode.GUARANTEE_KEPT


def test_l3_within_the_guarantee_of_a_tenant_above_what_others_beneath_that_one_keep_is_left_alone() -> None:
    sharing = Sharing(8).tenant("lab", 6).tenant("svc", 4, parent="lab", **NOT_LENT).tenant("team", parent="lab")
    assert sharing.most("team") == 4


def test_l3_what_is_kept_within_what_is_kept_counts_once() -> None:
    sharing = Sharing(8).tenant("lab", 4, **NOT_LENT).tenant("svc", 2, parent="lab", **NOT_LENT).tenant("other")
    assert sharing.most("other") == 4


def test_l3_an_inner_tenant_keeps_its_own_also_where_others_have_used_up_the_outer_guarantee() -> None:
    sharing = Sharing(8).tenant("lab", 4, **NOT_LENT).tenant("svc", 2, parent="lab", **NOT_LENT)
    sharing.tenant("team", parent="lab").tenant("other").holds("team", 4)
    assert sharing.most("other") == 2


def test_l3_is_no_reason_where_there_are_too_few_gpus_anyway() -> None:
    sharing = Sharing(4).tenant("svc", 2, **NOT_LENT).tenant("other").holds("other", 3)
    assert sharing.before("other", 2) is None
    assert sharing.code("other", 1) is ReasonCode.GUARANTEE_KEPT
