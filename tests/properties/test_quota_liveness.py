"""Who is owed starts in the end, however many borrow, and however small and important their jobs are."""

from random import Random
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.brain.domain.demand import JobClass
from stoker.brain.domain.gpu import WHOLE_GPU
from stoker.brain.domain.ids import JobId, NodeName, TenantName
from stoker.brain.domain.job import JobSpec
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.quota import Pools, Quota
from stoker.brain.domain.tenant import Tenant
from stoker.brain.engine.guarantee_hold import GuaranteeHold
from stoker.brain.state.commands import DrainNode, PutTenant, SetPools
from tests.brain.state.story import ANNA, Story, spec

GPUS: Final = 4
"""Of each node."""
QUEUE: Final = 3
"""So many borrowers at least wait after each pass."""
LAB, TEAM, CROWD = map(TenantName, ("lab", "team", "crowd"))


class Crowd(Story):
    """Borrowers with one GPU each hold every GPU, run for some turns, and more of them wait at any time."""

    def __init__(self, seed: int, nodes: int, turns_max: int, borrower: JobSpec) -> None:
        super().__init__(Policy(ended_jobs_max=0, preemptions_max=0))
        self.chance, self.turns_max, self.borrower = Random(seed), turns_max, borrower
        self.names = [NodeName(f"n{number}") for number in range(nodes)]
        for name in self.names:
            self.node(name, GPUS)
        for name, parent, guaranteed in ((LAB, "", 0), (TEAM, LAB, 0), (CROWD, "", 0)):
            self.promise(name, guaranteed, parent)
        self.ends: dict[JobId, int] = {}
        """When each that is live ends."""
        self.turn = 0

    def promise(self, name: TenantName, guaranteed: int, parent: str = "") -> None:
        tenant = Tenant(name=name, parent=TenantName(parent), quota=Quota(guaranteed=guaranteed))
        self.do(PutTenant(by=ANNA, tenant=tenant, create=name not in self.state.tenants))

    def next_turn(self) -> None:
        """Some end, others come, and a pass is made."""
        self.turn += 1
        self.wait(1_000)
        for job in [job for job, end in self.ends.items() if end <= self.turn]:
            del self.ends[job]
            self.end(job)
        self.all_due()
        lacking = self.state.indexes.free_milli // WHOLE_GPU + QUEUE - self.state.indexes.usage_ledger.pending_of(CROWD)
        self.submit(*[self.borrower] * max(1, lacking))
        self.decide()
        for job in self.state.jobs.values():
            if job.live_attempt and job.id not in self.ends:
                self.ends[job.id] = self.turn + self.chance.randint(1, self.turns_max)

    def turns_until_live(self, job: JobId, turns_most: int) -> int:
        """A job that is live ends later, so it is asked about at each turn."""
        for passed in range(turns_most):
            if self.job(job).live_attempt:
                return passed
            self.next_turn()
        raise AssertionError(f"starved for {turns_most} turns: {self.job(job).story()}")

    def fill(self) -> None:
        for _ in range(self.turns_max):
            self.next_turn()
        assert not self.state.indexes.free_milli, "idle GPUs are lent"


def _crowd(tenant: TenantName = CROWD, **fields: object) -> JobSpec:
    return spec(1, tenant=tenant, **{"priority": 2_000, **fields})


@settings(max_examples=15)
@given(
    seed=st.integers(0, 1 << 32),
    nodes=st.integers(1, 3),
    turns_max=st.integers(1, 4),
    above=st.booleans(),
    gang=st.integers(1, 3),
)
def test_a_job_within_a_guarantee_starts_although_borrowers_with_more_priority_keep_coming(
    seed: int, nodes: int, turns_max: int, above: bool, gang: int
) -> None:
    """Whole nodes drain for it. Where the tenant's parent has the guarantee it is no different."""
    story = Crowd(seed, nodes, turns_max, _crowd())
    tasks = min(gang, nodes)
    story.promise(LAB, GPUS * tasks)
    story.promise(TEAM, 0 if above else GPUS * tasks, LAB)
    story.fill()
    owed = story.submit(spec(GPUS, tasks=tasks, tenant=TEAM, priority=1))
    assert story.turns_until_live(owed, GPUS * tasks * turns_max + 2) >= 1


@settings(max_examples=10)
@given(seed=st.integers(0, 1 << 32), turns_max=st.integers(1, 4))
def test_a_job_within_the_guarantee_of_its_pool_starts_although_the_other_pool_keeps_borrowing(
    seed: int, turns_max: int
) -> None:
    story = Crowd(seed, 2, turns_max, _crowd())
    story.do(SetPools(by=ANNA, pools=Pools(online=500_000, batch=500_000)))
    story.fill()
    owed = story.submit(spec(GPUS, job_class=JobClass.ONLINE, priority=1))
    assert story.turns_until_live(owed, GPUS * turns_max + 2) >= 1


@settings(max_examples=10)
@given(seed=st.integers(0, 1 << 32), turns_max=st.integers(1, 3), sizes=st.lists(st.integers(1, 3), max_size=4))
def test_a_large_job_starts_behind_small_ones_of_its_own_tenant(seed: int, turns_max: int, sizes: list[int]) -> None:
    story = Crowd(seed, 3, turns_max, _crowd())
    sizes.append(GPUS)
    story.promise(LAB, sum(sizes))
    story.fill()
    jobs = [story.submit(spec(size, tenant=LAB)) for size in sizes]
    for job in jobs:
        if job in story.state.jobs:  # else it has ended meanwhile
            story.turns_until_live(job, (3 * GPUS + len(sizes)) * turns_max + 2)


def test_it_would_starve_if_nothing_were_kept_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GuaranteeHold, "hold", lambda *_: False)
    story = Crowd(1, 1, 8, _crowd())
    story.promise(LAB, GPUS)
    story.fill()
    owed = story.submit(spec(GPUS, tenant=LAB))
    with pytest.raises(AssertionError, match="starved"):
        story.turns_until_live(owed, GPUS * 8 + 2)


def test_a_target_that_is_drained_is_left_for_another_node() -> None:
    story = Crowd(1, 2, 5, _crowd())
    story.promise(LAB, GPUS)
    story.fill()
    owed = story.submit(spec(GPUS, tenant=LAB))
    story.next_turn()
    story.next_turn()
    assert story.state.indexes.free_milli, "some GPUs are kept for it, not enough yet"
    most = max(story.names, key=story.free_gpus)
    story.do(DrainNode(by=ANNA, node=most, reason="fan"))
    story.turns_until_live(owed, GPUS * 5 + 2)
    assert story.key(owed)[1] != most


def test_what_nobody_is_owed_is_lent_and_the_guarantee_is_served_as_soon_as_it_is_asked_for() -> None:
    story = Crowd(1, 1, 1, _crowd())
    story.promise(LAB, 2)
    story.fill()
    jobs = [story.submit(spec(1, tenant=LAB, priority=1)) for _ in range(3)]
    story.next_turn()
    live = [bool(story.job(job).live_attempt) for job in jobs]
    assert live == [True, True, False], "beyond its guarantee it is one of many"
    assert story.state.indexes.usage_ledger.used_by(CROWD).gpu_milli == (GPUS - 2) * WHOLE_GPU
