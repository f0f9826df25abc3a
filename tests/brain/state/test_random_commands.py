"""Whatever is asked and reported in whatever order: nothing ends the writer, every truth holds, and all of it ends.

Ended jobs are forgotten at once or soon, so orders are about members that are lazy, held, cancelled, forgotten, or of
arrays that ended by a dependency, were requeued or are gone. Tenants come, change and go, and so do shares and tokens;
what they allow is `tests/properties/test_quota.py`'s to judge.
"""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.brain.cycle import propose
from stoker.brain.domain.access import Role, Token, TokenId
from stoker.brain.domain.allocation import TaskPlacement
from stoker.brain.domain.array import ArraySpec, JobRef, indexes_of, member_id, spans_of
from stoker.brain.domain.demand import JobClass
from stoker.brain.domain.dependency import Dependency, DependencyKind
from stoker.brain.domain.errors import Refusal
from stoker.brain.domain.ids import (
    CONTROL,
    DEFAULT_TENANT,
    Epoch,
    JobId,
    NodeName,
    PartitionName,
    Position,
    Principal,
    TenantName,
    node_principal,
)
from stoker.brain.domain.instruction import TaskKey
from stoker.brain.domain.job import EndCause, Job, JobSpec, StopCause, Task, TaskEnd, WarnSignal, tasks_on
from stoker.brain.domain.job_changes import JobChanges
from stoker.brain.domain.lifecycle import LIVE, JobState
from stoker.brain.domain.partition import Partition
from stoker.brain.domain.plan import Plan, Preempt, Victim
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.quota import WHOLE, Limits, Pools, Quota
from stoker.brain.domain.report import Registration, Started, TaskFinished, TaskInventory, TaskPhase, TaskStatus
from stoker.brain.domain.tenant import NO_TENANT, UNSTATED, Tenant, Tier
from stoker.brain.domain.units import NEVER, Instant
from stoker.brain.state import commands as ask
from stoker.brain.state.apply.dispatch import apply
from stoker.brain.state.arrays import member_counts
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.codec import decode_fact, load_snapshot, snapshot_chunks
from stoker.brain.state.events.job import JobFinished, JobPlaced
from stoker.brain.state.events.union import Event
from stoker.brain.state.state_view import StateView
from tests.brain.state.story import ANNA, Story, inventory, settle_all, spec

NODES = (NodeName("a"), NodeName("b"))
TENANTS = (DEFAULT_TENANT, *map(TenantName, ("lab", "team", "other")))
ARRAYS = (((0, 3, 1),), ((0, 6, 2),), ((1, 1, 1), (3, 5, 1)), ((0, 0, 1),))
ROUNDS_MAX = 400


class Chaos(Story):
    """A cluster that is told and tells whatever chance says."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.plan = Plan(actions=(), reasons={})
        self.placed: set[tuple[JobId, int]] = set()
        self.seen: list[tuple[NodeName, TaskKey]] = [(NODES[0], TaskKey(JobId(1), 1, 0))]
        ended_max = self.chance.choice((0, 2, 6))
        super().__init__(
            Policy(
                ended_jobs_max=ended_max,
                submit_keys_max=2,
                requeues_max=2,
                backoff_first_ms=10,
                backoff_max_ms=50,
                preemptions_max=3,
                attempt_lease_ms=self.chance.choice((0, 1_000)),
                attempt_lease_min_ms=1_000,
            )
        )
        for name in NODES:
            self.node(name, self.chance.choice((1, 3)), leases=self.chance.random() < 0.8)
        for name in TENANTS[1:3]:
            self.ask(ask.PutTenant(by=ANNA, tenant=Tenant(name=name), create=True))

    def apply(self, event: Event, by: Principal = CONTROL) -> None:
        if isinstance(event, JobPlaced):
            assert (event.job, event.attempt) not in self.placed, "agents take it for the one that has ended"
            self.placed.add((event.job, event.attempt))
        super().apply(event, by)

    def step(self) -> None:
        chance = self.chance
        self.wait(chance.choice((0, 0, 1, 10, 40)))
        turn = chance.random()
        if turn < 0.25:
            budget = chance.choice((1, 3, 100))
            self.plan = propose(StateView(self.state), self.state.policy, self.now, 1, budget)
        if turn < 0.2 or 0.25 <= turn < 0.3:  # also of a plan that was made for another day
            settle_all(self, self.plan)
        elif turn < 0.36:
            for _ in range(8):  # most of them may not be
                settle_all(self, self.preemption())
        else:
            answer = self.ask(self.command())
            ends = [] if isinstance(answer, Refusal) else [each.job for each in answer if isinstance(each, JobFinished)]
            assert len(set(ends)) == len(ends), "something ends twice"
        self.look()

    def look(self) -> None:
        for job in self.state.jobs.values():
            array = self.state.jobs.get(job.array_of)
            assert not (job.blocked and job.state in LIVE), job.story()
            assert array is not None or not job.array_of, f"its array is gone: {job.story()}"
            if job.members is not None:
                counts = member_counts(job, self.state.indexes.arrays[job.id])
                assert sum(counts.values()) == job.as_array[0].count
                assert min(counts.values()) > 0
        for job_id in range(1, self.state.next_job_id + 2):
            self.state.find(JobRef(JobId(job_id)))

    def command(self) -> ask.Command:
        chance, node = self.chance, self.chance.choice(NODES)
        kind = chance.random()
        if kind < 0.16:
            specs = tuple(self.spec() for _ in range(chance.choice((1, 1, 3))))
            return ask.Submit(by=ANNA, specs=specs, key=chance.choice(("", "", "k1", "k2", "k3")), digest="d")
        if kind < 0.4:
            order = chance.choice((ask.Cancel, ask.Cancel, ask.Hold, ask.Release, ask.Requeue, ask.Requeue))
            return order(by=ANNA, target=self.ref())
        if kind < 0.43:
            if chance.random() < 0.6:
                return ask.UpdateJob(by=ANNA, target=self.ref(), changes=self.changes())
            return ask.SignalJob(by=ANNA, target=self.ref(), signal=10)
        if kind < 0.5:
            return ask.RunDeadlines(by=CONTROL)
        if kind < 0.58:
            return self.of_tenants()
        if kind < 0.85:
            return self.report()
        if kind < 0.89:
            return self.inventory(node)
        if kind < 0.92:
            self.ask(ask.NodeSilent(by=CONTROL, node=node))
            return ask.LoseSilent(by=CONTROL, node=node, silent_ms=chance.choice((15_000, 17_000, 60_000)))
        return self.of_node(node)

    def preemption(self) -> Plan:
        """Some job is to get what some others hold, whether or not it may."""
        chance, jobs = self.chance, self.state.jobs.values()
        waiting = [job for job in jobs if job.state is JobState.PENDING]
        live = [job for job in jobs if job.live_attempt]
        if not waiting or not live:
            return Plan(actions=(), reasons={})
        job, array = chance.choice(waiting), JobId(0)
        job_id, demand = job.id, job.spec.demand
        if job.members is not None and job.spec.array is not None:
            index = chance.choice(list(indexes_of(job.members.lazy or job.spec.array.indexes)))
            job_id, array = member_id(job.id, job.spec.array, index), job.id
        losers = chance.sample(live, chance.choice((1, 1, min(2, len(live)))))
        pool = [(task.placement.node, gpu) for each in losers for task in tasks_of(each) for gpu in task.placement.gpus]
        pool += [(node, gpu.uuid) for node, free in self.state.indexes.free.items() for gpu in free.gpus]
        places: list[TaskPlacement] = []
        for rank in range(demand.tasks):
            node = chance.choice(pool)[0] if pool else NODES[0]
            gpus = tuple(uuid for at, uuid in pool if at == node)[: demand.gpu_count]
            pool = [each for each in pool if each[1] not in gpus]
            places.append(TaskPlacement(rank=rank, node=node, gpus=gpus, cpus=demand.cpus, memory_mb=0))
        victims = tuple(Victim(each.id, each.newest_attempt) for each in losers)
        cause = chance.choice((StopCause.PREEMPTED, StopCause.RECLAIMED))
        action = Preempt(job=job_id, array=array, tasks=tuple(places), victims=victims, cause=cause)
        return Plan(actions=(action,), reasons={})

    def changes(self) -> JobChanges:
        chance, spec = self.chance, self.spec()
        return chance.choice(
            (
                JobChanges(after=tuple(each for each in spec.after if each.sibling is None)),
                JobChanges(gpu_count=spec.demand.gpu_count, tasks=chance.choice((1, 2))),
                JobChanges(begin=spec.begin, comment="x" * chance.choice((0, 9))),
                JobChanges(warn=chance.choice((None, WarnSignal(12, 5))), preemptible=chance.random() < 0.5),
                JobChanges(time_limit_ms=chance.choice((1, 50, 100_000)), priority=chance.choice((100, 500))),
            )
        )

    def spec(self) -> JobSpec:
        chance = self.chance
        fields: dict[str, object] = {}
        if chance.random() < 0.45:
            fields["array"] = ArraySpec(indexes=chance.choice(ARRAYS), running_max=chance.choice((0, 0, 1, 2)))
        if chance.random() < 0.45:
            fields["after"] = tuple(self.condition() for _ in range(chance.randint(1, 2)))
        if chance.random() < 0.15:
            fields["begin"] = Instant(self.now + chance.randint(-5, 40))
        if chance.random() < 0.15:
            fields["partition"] = PartitionName("p")
        tenants = TENANTS if chance.random() < 0.05 else tuple(self.state.tenants)
        fields |= {"tenant": chance.choice(tenants), "job_class": chance.choice(list(JobClass))}
        fields |= {"priority": chance.choice((UNSTATED, UNSTATED, 100, 500))}
        fields |= {"hold": chance.random() < 0.1, "retries_max": chance.choice((0, 0, 2))}
        fields |= {"lost_after_ms": chance.choice((None, None, 0, 5_000))}
        fields |= {"preemptible": chance.random() < 0.7, "warn": chance.choice((None, WarnSignal(10, 20)))}
        fields |= {"requeue": chance.random() < 0.8, "time_limit_ms": chance.choice((0, 30, 10_000))}
        return spec(chance.choice((0, 1, 1, 2)), tasks=chance.choice((1, 1, 2)), **fields)

    def condition(self) -> Dependency:
        chance = self.chance
        kind, index = chance.choice(list(DependencyKind)), chance.choice((None, None, chance.randint(0, 5)))
        if chance.random() < 0.15:
            return Dependency(kind=kind, sibling=chance.randint(0, 2), index=index)
        job = max(1, self.state.next_job_id + chance.randint(-12, 2))
        return Dependency(kind=kind, job=JobId(job), index=index)

    def ref(self) -> JobRef:
        chance, jobs = self.chance, self.state.jobs
        arrays = [job for job in jobs.values() if job.members is not None]
        if arrays and chance.random() < 0.5:
            array = chance.choice(arrays)
            members = list(indexes_of(array.as_array[0].indexes)) if chance.random() < 0.7 else list(range(9))
            some = spans_of(sorted(chance.sample(members, chance.randint(1, len(members)))))
            return JobRef(array.id, None if chance.random() < 0.3 else some)
        job = JobId(chance.randint(1, self.state.next_job_id + 1))
        if jobs and chance.random() < 0.7:
            job = chance.choice(list(jobs))
        index = chance.randint(0, 5)
        return JobRef(job, ((index, index, 1),) if chance.random() < 0.15 else None)

    def report(self) -> ask.Command:
        chance = self.chance
        live = [
            (task.placement.node, TaskKey(job.id, job.live_attempt.number, task.placement.rank))
            for job in self.state.jobs.values()
            if job.live_attempt
            for task in job.live_attempt.tasks
        ]
        self.seen.append(chance.choice(live or self.seen))
        node, key = chance.choice(live if live and chance.random() < 0.9 else self.seen)
        by, kind = node_principal(node), chance.random()
        if kind < 0.4:
            return ask.ReportStarted(by=by, node=node, started=Started(key=key, at=self.now, pid=3))
        if kind < 0.5:
            return ask.ReportEnding(by=by, node=node, keys=(key,))
        end = TaskEnd(
            cause=chance.choice([EndCause.EXITED] * 6 + list(EndCause)),
            at=Instant(self.now + chance.randint(-50, 50)),
            exit_code=chance.choice((0, 0, 1, None)),
            signal=chance.choice((0, 0, 9)),
            oom=chance.random() < 0.1,
        )
        return ask.ReportFinished(by=by, finished=TaskFinished(node=node, key=key, end=end))

    def inventory(self, node: NodeName) -> ask.Command:
        chance = self.chance
        there = [each for each in self.held_on(node) if chance.random() < 0.8]
        if chance.random() < 0.4:
            there.append(TaskStatus(key=chance.choice(self.seen)[1], phase=TaskPhase.RUNNING))
        tasks = TaskInventory(boot_id="boot-1", tasks=tuple(there))
        return ask.CompareInventory(by=node_principal(node), node=node, inventory=tasks)

    def held_on(self, node: NodeName) -> list[TaskStatus]:
        jobs = [self.job(job) for job in self.state.indexes.on_node.get(node, ())]
        keys = [
            TaskKey(job.id, job.attempts[-1].number, task.placement.rank)
            for job in jobs
            for task in tasks_on(job, node)
        ]
        return [TaskStatus(key=key, phase=TaskPhase.RUNNING) for key in keys]

    def of_node(self, node: NodeName) -> ask.Command:
        chance, by = self.chance, node_principal(node)
        leases = chance.random() < 0.8
        found = inventory(node, chance.randint(1, 3), boot=chance.choice(("boot-1", "boot-2")), leases=leases)
        return chance.choice(
            (
                ask.NodeSilent(by=CONTROL, node=node),
                ask.NodeResponded(by=by, node=node),
                ask.DrainNode(by=ANNA, node=node, reason="x"),
                ask.ResumeNode(by=ANNA, node=node),
                ask.ForgetNode(by=ANNA, node=node, force=chance.random() < 0.5),
                ask.Register(by=by, registration=Registration(node=node, inventory=found)),
                ask.LabelNode(by=ANNA, node=node, labels={"x": chance.choice("ab")}),
                ask.TaintNode(by=ANNA, node=node, taints=(), remove=("t",)),
                ask.PutPartition(by=ANNA, partition=Partition(name=PartitionName("p")), create=False),
                ask.DeletePartition(by=ANNA, name=PartitionName("p")),
                ask.BeginEpoch(
                    by=CONTROL,
                    epoch=Epoch(self.state.epoch + 1),
                    policy=self.state.policy,
                    pools=chance.choice((Pools(), Pools(online=0, batch=WHOLE))),
                ),
            )
        )

    def of_tenants(self) -> ask.Command:
        chance, name = self.chance, self.chance.choice(TENANTS)
        few = (None, None, None, None, 0, 1, 2, 5)
        limits = Limits(gpus=chance.choice(few), jobs=chance.choice(few), pending=chance.choice(few))
        quota = Quota(guaranteed=chance.choice((0, 0, 1, 2)), limits=limits, lend=chance.random() < 0.8)
        parent = chance.choice((NO_TENANT, NO_TENANT, *TENANTS))
        tenant = Tenant(name=name, parent=parent, quota=quota, tier=chance.choice((None, None, *Tier)))
        online = chance.choice((0, 500_000, WHOLE, WHOLE + 1))
        pools = Pools(online=online, batch=chance.choice((0, WHOLE - online)), strict=chance.random() < 0.5)
        expires = chance.choice((NEVER, NEVER, Instant(self.now + chance.randint(-5, 50))))
        token = Token(
            id=TokenId(f"t{len(self.log)}"),
            digest=f"digest-{len(self.log)}",
            role=chance.choice(list(Role)),
            tenant=chance.choice((NO_TENANT, *TENANTS)),
            user=chance.choice(("", "anna")),
            expires_at=expires,
        )
        known = chance.choice((*self.state.tokens, TokenId("none")))
        return chance.choice(
            (
                ask.PutTenant(by=ANNA, tenant=tenant, create=chance.random() < 0.5),
                ask.PutTenant(by=ANNA, tenant=tenant, create=name not in self.state.tenants),
                ask.DeleteTenant(by=ANNA, name=name),
                ask.DeleteTenant(by=ANNA, name=name),
                ask.SetPools(by=ANNA, pools=pools, force=chance.random() < 0.5),
                ask.CreateToken(by=ANNA, token=token),
                ask.RevokeToken(by=ANNA, id=known),
            )
        )

    def lift_limits(self) -> None:
        self.do(ask.SetPools(by=ANNA, pools=Pools(), force=True))
        for name in TENANTS:
            if name in self.state.tenants:
                open_ = Quota(guaranteed=self.state.tenants[name].quota.guaranteed)
                changed = Tenant(name=name, parent=self.state.tenants[name].parent, quota=open_)
                self.do(ask.PutTenant(by=ANNA, tenant=changed, create=False))

    def calm(self) -> None:
        """No faults any more, all is released: everything must end."""
        for name in NODES:
            self.register(name, inventory(name, 3))
            self.do(ask.ResumeNode(by=ANNA, node=name))
        self.lift_limits()
        for _ in range(ROUNDS_MAX):
            self.wait(10_000)
            for job in [job.id for job in self.state.jobs.values() if job.state is JobState.HELD]:
                self.ask(ask.Release(by=ANNA, target=JobRef(job)))
            for name in NODES:
                self.compare(name, *self.held_on(name))
                for status in self.held_on(name):
                    self.finish(name, status.key)
            self.all_due()
            self.decide()
            if all(job.is_final for job in self.state.jobs.values()):
                return
        raise AssertionError([job.story() for job in self.state.jobs.values() if not job.is_final])


def tasks_of(job: Job) -> tuple[Task, ...]:
    attempt = job.live_attempt
    return attempt.open_tasks if attempt else ()


def _bytes(state: ClusterState) -> bytes:
    return b"".join(snapshot_chunks(state))


def _replayed(log: list[bytes], snapshot_at: int) -> ClusterState:
    state = ClusterState()
    for place, record in enumerate(log):
        if place == snapshot_at:
            state = load_snapshot(list(snapshot_chunks(state)))
        apply(state, decode_fact(record), Position(place + 1))
    return state


@settings(max_examples=2 * settings().max_examples)
@given(seed=st.integers(0, 1 << 32), steps=st.integers(1, 120))
def test_no_order_and_no_report_breaks_a_truth_and_everything_ends(seed: int, steps: int) -> None:
    chaos = Chaos(seed)
    for _ in range(steps):
        chaos.step()
    chaos.calm()
    assert not chaos.state.indexes.held
    assert chaos.state.indexes.pending_count == 0
    assert chaos.state.claims == {}
    usage_ledger = chaos.state.indexes.usage_ledger
    assert (usage_ledger.by_class, usage_ledger.by_tenant, usage_ledger.pending) == ({}, {}, {})
    state = _replayed(chaos.log, chaos.chance.randint(0, len(chaos.log)))
    assert _bytes(state) == _bytes(chaos.state)
