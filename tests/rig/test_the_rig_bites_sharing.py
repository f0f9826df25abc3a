"""A promise about tenants, quotas or tokens broken on purpose is noticed, as in `test_the_rig_bites.py`."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final

import pytest

from stoker.brain.domain import partition
from stoker.brain.domain.access import TokenId
from stoker.brain.domain.demand import JobClass, Shape
from stoker.brain.domain.ids import TenantName
from stoker.brain.domain.job import EndCause, Job
from stoker.brain.domain.quota import Amount, Quota
from stoker.brain.domain.tenant import Tenant
from stoker.brain.domain.where import ANYWHERE, Where, named_like
from stoker.brain.engine.guarantee_hold import GuaranteeHold
from stoker.brain.engine.quota_order import FIRST, QuotaOrder
from stoker.brain.engine.reservation import ReservationBook
from stoker.brain.state import quota_limits
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.indexes import Indexes
from stoker.brain.state.quota_limits import QuotaLimit, QuotaLimits
from stoker.brain.state.usage_ledger import UsageLedger
from tests.rig.planted import Bugs, Plant, cases, must_be_noticed
from tests.rig.run import simulate

SEEDS_MAX: Final = 60
Patch = Bugs


def _unless(patch: Patch, forgets: Callable[[Job | None, Job | None], bool]) -> None:
    """The books don't follow such a change of a job."""
    real = Indexes._follow_usage_ledger

    def follow(indexes: Indexes, old: Job | None, new: Job | None) -> None:
        if not forgets(old, new):
            real(indexes, old, new)

    patch.setattr(Indexes, "_follow_usage_ledger", follow)


def what_the_last_task_of_an_attempt_held_is_charged_for_ever(patch: Patch) -> None:
    """Fault 3."""
    _unless(patch, lambda old, new: bool(new and new.live_attempt and not new.live_attempt.open_tasks))


def what_a_forgotten_node_held_is_charged_for_ever(patch: Patch) -> None:
    def forgets(old: Job | None, new: Job | None) -> bool:
        tasks = new.attempts[-1].tasks if old and new and new.attempts else ()
        return any(task.end is not None and task.end.cause is EndCause.FORGOTTEN for task in tasks)

    _unless(patch, forgets)


def tasks_of_a_gang_that_have_ended_are_charged_until_all_have(patch: Patch) -> None:
    _unless(patch, lambda old, new: bool(old and new and old.live_attempt and new.live_attempt))


def only_the_jobs_own_tenant_is_charged(patch: Patch) -> None:
    real = UsageLedger.charge

    def charge(usage_ledger: UsageLedger, tenant: TenantName, job_class: JobClass, more: Amount) -> None:
        usage_ledger._paths = {tenant: (tenant,)}
        real(usage_ledger, tenant, job_class, more)
        usage_ledger._paths = {}

    patch.setattr(UsageLedger, "charge", charge)


def those_who_wait_are_not_counted(patch: Patch) -> None:
    patch.setattr(UsageLedger, "wait", lambda usage_ledger, tenant, more: None)


def limits_are_not_looked_at(patch: Patch) -> None:
    patch.setattr(QuotaLimits, "before", lambda limits, shape, used: None)


def only_the_limits_of_the_jobs_own_tenant_count(patch: Patch) -> None:
    real = QuotaLimits._limits_on

    def own(limits: QuotaLimits, shape: Shape) -> list[QuotaLimit]:
        return [limit for limit in real(limits, shape) if limit.tenant == shape.tenant]

    patch.setattr(QuotaLimits, "_limits_on", own)


def the_guarantee_of_who_may_not_borrow_is_no_limit(patch: Patch) -> None:
    def limits_of(quota: Quota) -> Iterator[tuple[int, int]]:
        limits = quota.limits
        all_ = (limits.gpus, limits.gpu_memory_mb, limits.cpus, limits.memory_mb, limits.jobs)
        return ((at, limit) for at, limit in enumerate(all_) if limit is not None)

    patch.setattr(quota_limits, "limits_of", limits_of)


def strict_pools_are_none(patch: Patch) -> None:
    patch.setattr(QuotaLimits, "pool_limit", lambda limits, job_class, used: limits.gpu_milli)


def what_is_not_lent_is_borrowed(patch: Patch) -> None:
    patch.setattr(QuotaLimits, "_unlent", lambda limits, name, gpus, used: None)


def whose_turn_it_is_does_not_matter(patch: Patch) -> None:
    patch.setattr(QuotaOrder, "_standing_by", lambda order, known: FIRST)


def nothing_is_kept_for_who_is_owed(patch: Patch) -> None:
    patch.setattr(GuaranteeHold, "hold", lambda hold, candidates, shape, reserved=(): False)
    patch.setattr(ReservationBook, "reserve", lambda book, job, demand, candidates: False)  # which keeps it mostly


def a_revoked_token_stays(patch: Patch) -> None:
    real = ClusterState.drop_token

    def drop(state: ClusterState, token: TokenId) -> None:
        kept = state.tokens[token]
        real(state, token)
        state.token_of_digest[kept.digest] = token

    patch.setattr(ClusterState, "drop_token", drop)


def the_nodes_of_tenants_do_not_matter(patch: Patch) -> None:
    patch.setattr(partition, "nodes_allowed", lambda tenants, name: ANYWHERE)


def only_the_nodes_of_the_jobs_own_tenant_count(patch: Patch) -> None:
    def own(tenants: Mapping[TenantName, Tenant], name: TenantName) -> Where:
        return named_like([tenants[name].nodes]) if tenants[name].nodes else ANYWHERE

    patch.setattr(partition, "nodes_allowed", own)


MUTANTS: Final[tuple[tuple[Plant, str, int], ...]] = (
    (what_the_last_task_of_an_attempt_held_is_charged_for_ever, "O16 ", 0),
    (what_a_forgotten_node_held_is_charged_for_ever, "O16 ", 1),
    (tasks_of_a_gang_that_have_ended_are_charged_until_all_have, "O16 ", 0),
    (only_the_jobs_own_tenant_is_charged, "O16 ", 3),
    (those_who_wait_are_not_counted, "O16 ", 0),
    (limits_are_not_looked_at, "O15 ", 0),
    (only_the_limits_of_the_jobs_own_tenant_count, "O15 ", 30),
    (the_guarantee_of_who_may_not_borrow_is_no_limit, "O15 ", 1),
    (strict_pools_are_none, "O15 ", 18),
    (what_is_not_lent_is_borrowed, "O15 ", 5),
    (whose_turn_it_is_does_not_matter, "O17 .*F[12] ", 3),
    (nothing_is_kept_for_who_is_owed, "O17 .*F3 ", 37),
    (a_revoked_token_stays, "O18 ", 19),
    (the_nodes_of_tenants_do_not_matter, "O24 ", 1),
    (only_the_nodes_of_the_jobs_own_tenant_count, "O24 ", 10),
)
"""With the seed to begin with: it noticed when this was written. When it doesn't any more another will."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("found", cases(MUTANTS))
def test_it_is_noticed_when(found: tuple[Plant, str, int]) -> None:
    mutant, promise, first = found
    seeds = (first, *range(SEEDS_MAX))
    must_be_noticed(mutant, promise, (partial(simulate, seed, forgetting=seed % 2 == 1) for seed in seeds))
