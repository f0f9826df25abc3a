"""What fair share adds up to over days, on the brain's own state in virtual time: shares, newcomers, and no starvation.

Bounds: with L the longest job, H the half-life and T the length of a run
        B1  endless queues of equal age: each tenant's part of the GPU time is that of its weight within 2 L / T
        B2  a newcomer beside queues of any age has its first start after `aging_max / aging_per_hour` and L at most:
            then all have aged as far as they can
        B3  others start again after H * log2(1 + w / W) and L at most, w being the newcomer's weight and W theirs: by
            then it has caught up with their decayed use
"""

from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from math import log2
from random import Random

import pytest

from stoker.brain import cycle
from stoker.brain.domain.array import parse_array
from stoker.brain.domain.ids import CONTROL, Epoch, JobId, NodeName, Position, TenantName, node_principal
from stoker.brain.domain.instruction import TaskKey
from stoker.brain.domain.job import EndCause, TaskEnd
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.quota import Pools, Quota
from stoker.brain.domain.report import Registration, Started, TaskFinished, TaskInventory
from stoker.brain.domain.tenant import Tenant
from stoker.brain.domain.units import DAY_MS, HOUR_MS, MINUTE_MS, Instant
from stoker.brain.state import commands
from stoker.brain.state.admit.dispatch import admit
from stoker.brain.state.apply.dispatch import apply
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.codec import Fact
from stoker.brain.state.invariants import violations
from stoker.brain.state.state_view import StateView
from tests.brain.state.story import ANNA, inventory, spec

NODE = NodeName("n")
GPUS = 8
LONGEST_MS = 4 * HOUR_MS
HALF_LIFE_MS = DAY_MS


class BusyCluster:
    """One node on which one-GPU jobs of chance lengths run, of tenants that have more of them than ever run."""

    def __init__(self, seed: int, weights: Mapping[str, int], policy: Policy | None = None) -> None:
        self.state = ClusterState()
        self.now = Instant(1_000 * HOUR_MS)
        self.dice = Random(seed)
        self.ends: list[tuple[int, JobId]] = []
        self.starts: list[tuple[int, str]] = []
        self.gpu_ms = dict.fromkeys(weights, 0)
        policy = policy or Policy(fair_share_half_life_ms=HALF_LIFE_MS)
        self.give(commands.BeginEpoch(by=CONTROL, epoch=Epoch(1), policy=policy, pools=Pools(online=0, batch=0)))
        by = node_principal(NODE)
        self.give(commands.Register(by=by, registration=Registration(node=NODE, inventory=inventory(NODE, GPUS))))
        nothing = TaskInventory(boot_id="boot-1", tasks=())
        self.give(commands.CompareInventory(by=by, node=NODE, inventory=nothing))
        for name, weight in weights.items():
            made = Tenant(name=TenantName(name), quota=Quota(weight=weight))
            self.give(commands.PutTenant(by=ANNA, tenant=made, create=True))

    def give(self, command: commands.Command) -> None:
        answer = admit(self.state, command, self.now, lambda: "uid")
        assert isinstance(answer, tuple), answer
        self.apply(answer)

    def apply(self, events: Sequence[object]) -> None:
        for event in events:
            fact = Fact(at=self.now, by=CONTROL, event=event)  # type: ignore[arg-type]  # events, by whoever made them
            apply(self.state, fact, Position(self.state.position + 1))

    def queue(self, *tenants: str) -> None:
        """Each gets more jobs than it will ever run."""
        for name in tenants:
            self.give(commands.Submit(by=ANNA, specs=(spec(1, tenant=TenantName(name), array=parse_array("0-9999")),)))

    def run_for(self, ms: int) -> None:
        until = self.now + ms
        self.place()
        while self.ends[0][0] <= until:
            at, job = heappop(self.ends)
            self.now = Instant(at)
            self.end(job)
            self.place()
        self.now = Instant(until)

    def place(self) -> None:
        state, seed = self.state, 1
        plan = cycle.propose(StateView(state), state.policy, self.now, seed, 100)
        for events in cycle.settle(state, plan, decided_at=state.position, seed=seed):
            self.apply(events)
        for each in plan.actions:
            key = TaskKey(each.job, 1, 0)
            started = Started(key=key, at=self.now, pid=7)
            self.give(commands.ReportStarted(by=node_principal(NODE), node=NODE, started=started))
            lasts = self.dice.randrange(10 * MINUTE_MS, LONGEST_MS)
            tenant = state.jobs[each.job].spec.tenant
            self.gpu_ms[tenant] += lasts
            self.starts.append((self.now, tenant))
            heappush(self.ends, (self.now + lasts, each.job))

    def end(self, job: JobId) -> None:
        end = TaskEnd(cause=EndCause.EXITED, at=self.now, exit_code=0)
        finished = TaskFinished(node=NODE, key=TaskKey(job, 1, 0), end=end)
        self.give(commands.ReportFinished(by=node_principal(NODE), finished=finished))

    def first_start(self, tenant: str, after: int) -> int:
        """How long after that time the tenant has its first start."""
        return next(at for at, name in self.starts if name == tenant and at >= after) - after


def part(cluster: BusyCluster, tenant: str) -> float:
    return cluster.gpu_ms[tenant] / sum(cluster.gpu_ms.values())


@pytest.mark.parametrize("seed", [1, 2])
def test_b1_endless_queues_get_gpu_time_by_weight(seed: int) -> None:
    run_ms = 10 * DAY_MS
    cluster = BusyCluster(seed, {"one": 1, "three": 3})
    cluster.queue("one", "three")
    cluster.run_for(run_ms)
    assert abs(part(cluster, "one") - 1 / 4) <= 2 * LONGEST_MS / run_ms
    assert violations(cluster.state) == []


def test_b1_without_fair_share_the_queue_that_was_there_first_gets_all() -> None:
    """What is tested above isn't so by itself."""
    cluster = BusyCluster(1, {"one": 1, "three": 3}, Policy(fair_share_points=0))
    cluster.queue("one", "three")
    cluster.run_for(2 * DAY_MS)
    assert part(cluster, "one") == 1


def test_b1_holds_after_a_change_of_weights_too() -> None:
    cluster = BusyCluster(3, {"a": 1, "b": 1})
    cluster.queue("a", "b")
    cluster.run_for(3 * DAY_MS)
    made = Tenant(name=TenantName("b"), quota=Quota(weight=4))
    cluster.give(commands.PutTenant(by=ANNA, tenant=made, create=False))
    cluster.run_for(4 * HALF_LIFE_MS)  # until the old balance is forgotten
    cluster.gpu_ms = dict.fromkeys(cluster.gpu_ms, 0)
    cluster.run_for(6 * DAY_MS)
    assert abs(part(cluster, "a") - 1 / 5) <= 2 * LONGEST_MS / (6 * DAY_MS)


@pytest.mark.parametrize(("seed", "weight"), [(4, 1), (5, 3)])
def test_b2_b3_a_newcomer_is_not_starved_and_starves_the_others_no_longer_than_it_takes_to_catch_up(
    seed: int, weight: int
) -> None:
    cluster = BusyCluster(seed, {"a": 1, "b": 1, "new": weight})
    cluster.queue("a", "b")
    cluster.run_for(4 * DAY_MS)
    came = cluster.now
    cluster.queue("new")
    cluster.run_for(6 * DAY_MS)
    policy = cluster.state.policy
    aged_ms = policy.aging_max * HOUR_MS // policy.aging_per_hour
    waited = cluster.first_start("new", came)
    assert waited <= aged_ms + LONGEST_MS
    catches_up = HALF_LIFE_MS * log2(1 + weight / 2) + LONGEST_MS
    for other in ("a", "b"):
        gaps = [at for at, name in cluster.starts if name == other and at >= came + waited]
        pauses = [after - before for before, after in zip([came + waited, *gaps], gaps, strict=False)]
        assert max(pauses) <= catches_up
    assert violations(cluster.state) == []


def test_a_newcomer_with_the_same_age_of_queue_is_next() -> None:
    cluster = BusyCluster(6, {"a": 1, "new": 1})
    cluster.queue("a")
    cluster.run_for(3 * HOUR_MS)
    came = cluster.now
    cluster.queue("new")
    cluster.run_for(DAY_MS)
    assert cluster.first_start("new", came) <= LONGEST_MS
