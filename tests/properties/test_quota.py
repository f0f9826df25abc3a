"""Tenants and quotas by random trial: no limit is ever exceeded, no counter drifts, and who is owed goes first.

A random world has a tree of tenants, class pools and nodes that come and go, and jobs of every kind that end in every
way; the rules are those of `tests/naive_quota.py`, which counts everything anew after each event and at each pass.
"""

from collections.abc import Iterable
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stoker.brain.cycle import propose
from stoker.brain.domain.array import JobRef, parse_array
from stoker.brain.domain.demand import Demand, JobClass, Shape
from stoker.brain.domain.errors import Refusal
from stoker.brain.domain.ids import CONTROL, DEFAULT_TENANT, JobId, NodeName, Principal, TenantName
from stoker.brain.domain.job import EndCause, JobSpec, tasks_on
from stoker.brain.domain.lifecycle import LIVE
from stoker.brain.domain.plan import Plan
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.quota import WHOLE, Limits, Pools, Quota
from stoker.brain.domain.reason import Reason
from stoker.brain.domain.tenant import NO_TENANT, UNSTATED, Tenant, Tier
from stoker.brain.domain.units import HOUR_MS
from stoker.brain.domain.where import ANYWHERE, make_where
from stoker.brain.state import cluster
from stoker.brain.state import commands as ask
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.events.job import JobPlaced
from stoker.brain.state.events.union import Event
from stoker.brain.state.quota_limits import QuotaLimits, UsageTotals
from stoker.brain.state.state_view import StateView
from tests.brain.state.story import ANNA, Story, inventory, settle_all
from tests.naive_quota import NodeCapacity, count, ledger_faults, limit_faults, pass_faults

NODES = tuple(NodeName(f"n{number}") for number in range(3))
TENANTS = (DEFAULT_TENANT, *map(TenantName, ("lab", "a", "b", "a1", "solo")))
PARENTS = {"a": "lab", "b": "lab", "a1": "a"}
ENDS = (EndCause.EXITED, EndCause.EXITED, EndCause.EXITED, EndCause.RUNNER_LOST, EndCause.START_FAILED)


class SharedCluster(Story):
    """A cluster that people share, whatever chance makes of it."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.gpus = {name: self.chance.choice((1, 2, 4, 8)) for name in NODES}
        self.placements = 0
        self.limited = self.chance.choice((0.05, 0.05, 0.6))
        """How often a tenant has limits. Where few have any, much turns on who goes first."""
        super().__init__(
            Policy(backoff_first_ms=10, backoff_max_ms=50, requeues_max=3, reservations_max=Random(seed).choice((0, 8)))
        )
        for name in NODES:
            self.node(name, self.gpus[name], cpus=self.chance.choice((6, 64)))
        self.set_pools()
        for name in TENANTS:
            self.put_tenant(name)

    def apply(self, event: Event, by: Principal = CONTROL) -> None:
        """With the truths of quota checked after each event, and the limits at each placement."""
        super().apply(event, by)
        found = count(self.state)
        assert not list(ledger_faults(self.state, found))
        if isinstance(event, JobPlaced):
            self.placements += 1
            broken = limit_faults(self.state, found, self.state.jobs[event.job].spec, NodeCapacity(self.state).free)
            assert not list(broken)

    def decide(self, budget: int = 1_000) -> list[str]:
        """One pass; a plan that is carried out at once is accepted whole."""
        plan = self.proposed(budget)
        done = settle_all(self, plan)
        assert len(done) == len(plan.actions)
        return [self.job(action.job).label for action in plan.actions]

    def proposed(self, budget: int) -> Plan:
        plan = propose(StateView(self.state), self.state.policy, self.now, 1, budget)
        assert not list(pass_faults(self.state, plan))
        return plan

    def step(self) -> None:
        chance = self.chance
        self.wait(chance.choice((0, 1, 20, HOUR_MS)))
        turn = chance.random()
        if turn < 0.3:
            for _ in range(chance.choice((1, 1, 4))):
                self.ask(ask.Submit(by=ANNA, specs=(self.any_spec(),)))
        elif turn < 0.5:
            self.decide(chance.choice((1, 2, 100)))
        elif turn < 0.56:  # what changes between a plan and its settlement is heeded
            plan = self.proposed(100)
            self.change()
            settle_all(self, plan)
        elif turn < 0.8:
            self.end_some()
        elif turn < 0.86:
            self.order()
        else:
            self.change()
        self.all_due()

    def change(self) -> None:
        chance = self.chance
        kind = chance.random()
        if kind < 0.4:
            self.put_tenant(chance.choice(TENANTS))
        elif kind < 0.5:
            self.ask(ask.DeleteTenant(by=ANNA, name=chance.choice(TENANTS)))
        elif kind < 0.7:
            self.set_pools()
        else:
            self.change_node(chance.choice(NODES))

    def any_spec(self) -> JobSpec:
        chance = self.chance
        tasks = chance.choice((1, 1, 1, 2, 3))
        gpus = chance.choice((0, 1, 1, 2, 4, 8)) if tasks == 1 else chance.choice((1, 2))
        demand = Demand(
            gpu_count=gpus,
            gpu_memory_mb=chance.choice((0, 1_000)) if gpus else 0,
            tasks=tasks,
            cpus=chance.choice((1, 1, 2)),
            memory_mb=chance.choice((0, 500)),
        )
        return JobSpec(
            name="j",
            command="true",
            demand=demand,
            time_limit_ms=0,
            tenant=chance.choice((*self.state.tenants,)),
            job_class=chance.choice((JobClass.BATCH, JobClass.BATCH, JobClass.ONLINE)),
            priority=chance.choice((UNSTATED, UNSTATED, 100)),
            retries_max=chance.choice((0, 2)),
            requeue=chance.random() < 0.8,
            array=parse_array(chance.choice(("0-3", "0-5%2"))) if chance.random() < 0.15 else None,
            where=make_where("", [chance.choice(NODES)]) if chance.random() < 0.1 else ANYWHERE,
        )

    def any_quota(self) -> Quota:
        chance = self.chance
        few = (None, None, None, 0, 1, 2, 4, 8)
        limits = Limits(
            gpus=chance.choice(few),
            gpu_memory_mb=chance.choice((None, None, None, 0, 2_000, 8_000)),
            cpus=chance.choice((None, None, None, 4, 9)),
            memory_mb=chance.choice((None, None, None, 1_000, 3_000)),
            jobs=chance.choice(few),
            pending=chance.choice((None, None, None, 3)),
        )
        return Quota(
            guaranteed=chance.choice((0, 0, 1, 2, 4, 8)),
            limits=limits if chance.random() < self.limited else Limits(),
            borrow=chance.random() > self.limited / 3,
            lend=chance.random() > self.limited / 3,
        )

    def put_tenant(self, name: TenantName) -> None:
        parent = TenantName(PARENTS.get(name, NO_TENANT))
        tier = self.chance.choice((None, None, None, *Tier))
        tenant = Tenant(name=name, parent=parent, quota=self.any_quota(), tier=tier)
        create = name not in self.state.tenants
        answer = self.ask(ask.PutTenant(by=ANNA, tenant=tenant, create=create))
        if create and isinstance(answer, Refusal):  # its guarantee was more than its parent's
            self.ask(ask.PutTenant(by=ANNA, tenant=Tenant(name=name, parent=parent), create=True))

    def set_pools(self) -> None:
        online = self.chance.choice((0, 300_000, 500_000, 700_000, WHOLE))
        batch = self.chance.choice((WHOLE - online, WHOLE - online, 0))
        pools = Pools(online=online, batch=batch, strict=self.chance.random() < self.limited / 2)
        self.ask(ask.SetPools(by=ANNA, pools=pools, force=self.chance.random() < 0.5))

    def change_node(self, name: NodeName) -> None:
        kind = self.chance.randrange(6)
        if kind == 0:
            self.do(ask.NodeSilent(by=CONTROL, node=name))
        elif kind == 1:
            self.ask(ask.DrainNode(by=ANNA, node=name, reason="fan"))
        elif kind == 2:
            self.ask(ask.ForgetNode(by=ANNA, node=name, force=True))
        elif kind == 3:  # some GPUs are gone, or back
            self.register(name, inventory(name, self.chance.randint(1, self.gpus[name])))
        else:
            self.back(name)

    def back(self, name: NodeName) -> None:
        self.register(name, inventory(name, self.gpus[name]))
        self.compare(name, *(self.status(job, rank) for job, rank in self.held_on(name)))
        self.ask(ask.ResumeNode(by=ANNA, node=name))

    def held_on(self, name: NodeName) -> list[tuple[JobId, int]]:
        return [
            (job.id, task.placement.rank) for job in tuple(self.state.jobs.values()) for task in tasks_on(job, name)
        ]

    def end_some(self) -> None:
        for job in [job for job in self.state.jobs.values() if job.state in LIVE]:
            for rank, task in enumerate(job.attempts[-1].tasks):
                if task.end is None and self.chance.random() < 0.4:
                    cause = self.chance.choice(ENDS)
                    exit_code = self.chance.choice((0, 0, 1)) if cause is EndCause.EXITED else None
                    self.end(job.id, rank, cause=cause, exit_code=exit_code)

    def order(self) -> None:
        jobs = list(self.state.jobs)
        if jobs:
            order = self.chance.choice((ask.Cancel, ask.Requeue, ask.Requeue, ask.Hold, ask.Release))
            self.ask(order(by=ANNA, target=JobRef(self.chance.choice(jobs))))

    def finish_all(self) -> None:
        """Nothing new, no faults, no limits: all of it ends."""
        self.do(ask.SetPools(by=ANNA, pools=Pools(), force=True))
        for tenant in tuple(self.state.tenants.values()):
            free = Tenant(name=tenant.name, parent=tenant.parent, quota=Quota(guaranteed=tenant.quota.guaranteed))
            self.do(ask.PutTenant(by=ANNA, tenant=free, create=False))
        for name in NODES:
            self.back(name)
        for _ in range(200):
            self.wait(1_000).all_due()
            for job in tuple(self.state.jobs):
                self.ask(ask.Release(by=ANNA, target=JobRef(job)))
            self.decide()
            for name in NODES:
                for job, rank in self.held_on(name):
                    self.end(job, rank)
            if all(job.is_final for job in self.state.jobs.values()):
                return
        raise AssertionError([job.story() for job in self.state.jobs.values() if not job.is_final])


def test_it_would_be_noticed_if_limits_were_not_asked_again_when_a_plan_is_carried_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rig's own mutants can't show it: there hardly anything happens between a plan and its settlement."""

    class Open(QuotaLimits):
        def before(self, shape: Shape, spent: UsageTotals) -> Reason | None:
            return None

    monkeypatch.setattr(cluster, "QuotaLimits", Open)
    with pytest.raises(AssertionError):
        _live_all(range(20, 60))  # the third of these noticed when this was written


@example(seed=387_439_039, steps=40)  # who has a claim starts elsewhere, and only what was kept for him was in the way
@given(seed=st.integers(0, 1 << 32), steps=st.integers(1, 60))
def test_no_limit_is_exceeded_no_counter_drifts_and_who_is_owed_goes_first(seed: int, steps: int) -> None:
    _live(seed, steps)


@settings(max_examples=20)
@given(seed=st.integers(0, 1 << 32), dice=st.randoms(use_true_random=False))
def test_a_plan_does_not_depend_on_the_order_in_which_tenants_and_nodes_came(seed: int, dice: Random) -> None:
    world = SharedCluster(seed)
    for _ in range(20):
        world.step()
    tenants, nodes = list(world.state.tenants.values()), list(world.state.nodes.values())
    dice.shuffle(tenants)
    dice.shuffle(nodes)
    shuffled = ClusterState()
    shuffled.policy, shuffled.pools = world.state.policy, world.state.pools
    for tenant in tenants:
        shuffled.put_tenant(tenant)
    for node in nodes:
        shuffled.put_node(node)
    for job in world.state.jobs.values():
        shuffled.put_job(job)
    shuffled.decayed_usage.load(world.state.decayed_usage.record())
    shuffled.claims = dict(world.state.claims)
    one, two = (propose(StateView(each), Policy(), world.now, 1, 100) for each in (world.state, shuffled))
    assert one == two


def _live_all(seeds: Iterable[int]) -> None:
    for seed in seeds:
        _live(seed, 60)


def _live(seed: int, steps: int) -> None:
    world = SharedCluster(seed)
    for _ in range(steps):
        world.step()
    world.finish_all()
    usage_ledger = world.state.indexes.usage_ledger
    assert (usage_ledger.by_class, usage_ledger.by_tenant, usage_ledger.pending) == ({}, {}, {})
