"""What people ask of the cluster: jobs of every kind, repeated cancels, drains, and nodes forgotten by force."""

from typing import Final

from stoker.brain.domain.array import JobRef, parse_array
from stoker.brain.domain.demand import Demand
from stoker.brain.domain.dependency import Dependency, DependencyKind
from stoker.brain.domain.ids import JobId, NodeName, Principal
from stoker.brain.domain.job import JobSpec
from stoker.brain.domain.job_changes import JobChanges
from stoker.brain.domain.label import Taint
from stoker.brain.domain.units import NEVER, Instant
from stoker.brain.domain.where import make_where
from stoker.brain.state.commands import (
    Cancel,
    Command,
    DrainNode,
    ForgetNode,
    Hold,
    LabelNode,
    Release,
    Requeue,
    ResumeNode,
    SignalJob,
    TaintNode,
    UpdateJob,
)
from stoker.brain.state.events.union import Event
from tests.rig.ailing_oracle import POISON_CPUS
from tests.rig.cast import Cast
from tests.rig.sharing import any_ownership, lift_limits, share

BOB: Final = Principal("user:bob")
FOR_EVER_S: Final = 100_000
"""Longer than any run: such a process ends only when somebody ends it."""


def act(cluster: Cast) -> None:
    """One request of somebody's."""
    roll = cluster.dice.random()
    if roll < 0.6 or not cluster.oracle.acknowledged:
        cluster.ask(submit(cluster, any_spec(cluster), cluster.dice.choice([1, 1, 3])))
    elif roll < 0.86:
        target = any_target(cluster)
        order = cluster.dice.choice([Cancel, Cancel, Cancel, Hold, Release, Requeue, None])
        if order is None and roll < 0.73:  # without dice of its own, so that seeds go on to mean what they meant
            changes = JobChanges(time_limit_ms=(2 + int(roll * 10_000) % 3) * 10_000, name="changed")
            cluster.ask(tell(cluster, UpdateJob(by=BOB, target=target, changes=changes)))
        elif order is None:
            cluster.ask(tell(cluster, SignalJob(by=BOB, target=target, signal=10)))
        else:
            given = {"hold": target.job % 2 == 0} if order is Requeue else {}
            cluster.ask(tell(cluster, order(by=BOB, target=target, **given), cluster.dice.choice([1, 1, 2, 3])))
    elif roll < 0.9:
        cluster.ask(drain_or_resume(cluster))
    elif roll < 0.96:
        cluster.ask(share(cluster))
    else:
        cluster.ask(label_or_taint(cluster))


def any_spec(cluster: Cast) -> JobSpec:
    dice = cluster.dice
    tasks = dice.choice([1, 1, 1, 1, 2, 3])
    gpus = dice.choice([0, 1, 1, 2, 3]) if tasks == 1 else dice.choice([1, 2])
    seconds = dice.choice([0.001, 0.001, 0.5, 0.5, 3, 3, 20, 20, FOR_EVER_S])
    exit_code = dice.choice([0, 0, 0, 1, 77])
    spec = JobSpec(
        name="rig",
        demand=Demand(gpu_count=gpus, tasks=tasks),
        command=f"{seconds} {exit_code} {dice.choice(['', '', 'trap', 'linger'])}".strip(),
        priority=dice.choice([100, 500, 1000]),
        time_limit_ms=30_000 if seconds == FOR_EVER_S else dice.choice([0, 0, 0, 5_000]),
        retries_max=dice.choice([0, 1, 2]),
        requeue=dice.random() < 0.9,
        array=dice.choice([*(None,) * 9, *map(parse_array, ("0-3", "1,5,9%1", "0-20:5%2"))]),
        after=any_dependencies(cluster),
        where=make_where(*dice.choice([*(("",),) * 12, ("zone=a",), ("zone!=b",), ("", ("n1",)), ("", (), ("x",))])),
        hold=dice.random() < 0.03,
        **any_ownership(cluster),
        begin=Instant(cluster.clock.now() + 20_000) if dice.random() < 0.05 else NEVER,
    )
    return spec if cluster.taking is None else cluster.taking.dressed(spec)


def poisonous_spec(cluster: Cast) -> JobSpec:
    """Of the shape that `oracle.ailing.poisoned` speaks of."""
    demand = Demand(gpu_count=cluster.dice.choice([0, 1]), cpus=POISON_CPUS)
    priority = cluster.dice.choice([100, 500, 1000])
    return JobSpec(name="poison", demand=demand, command="0.5 0", priority=priority, time_limit_ms=0)


def any_dependencies(cluster: Cast) -> tuple[Dependency, ...]:
    """Mostly none; else one or two on what is known, or was never there."""
    dice = cluster.dice
    if dice.random() < 0.85:
        return ()
    known = [*cluster.oracle.acknowledged, JobId(1_000_000)]
    kinds = list(DependencyKind)
    return tuple(
        Dependency(kind=dice.choice(kinds), job=dice.choice(known), index=dice.choice([None, None, None, 0, 5]))
        for _ in range(dice.choice([1, 2]))
    )


def any_target(cluster: Cast) -> JobRef:
    """A job, an array, or some of its members: often of what has none."""
    job = cluster.dice.choice(list(cluster.oracle.acknowledged))
    members = cluster.dice.choice([None, None, None, ((0, 0, 1),), ((5, 5, 1),), ((0, 5, 5),)])
    return JobRef(job, members)


async def submit(cluster: Cast, spec: JobSpec, count: int = 1) -> None:
    for job in await cluster.submitted(BOB, (spec,) * count):
        cluster.oracle.acknowledged[job] = None


async def tell(cluster: Cast, order: Command, times: int = 1) -> None:
    """Somebody impatient, or a client that repeats what wasn't answered."""
    if isinstance(order, Requeue):
        cluster.oracle.revived[order.target.job] = None
    for _ in range(times):
        answer = await cluster.answer(order)
        if answer is not None and isinstance(order, Cancel) and order.target.members is None:
            cluster.oracle.cancelled[order.target.job] = None


async def cancel(cluster: Cast, job: JobId, times: int = 1) -> None:
    await tell(cluster, Cancel(by=BOB, target=JobRef(job)), times)


async def release_all(cluster: Cast) -> None:
    """Nobody knows for sure which holds arrived."""
    for job in tuple(cluster.oracle.acknowledged):
        await _ask(cluster, Release(by=BOB, target=JobRef(job)))


async def drain_or_resume(cluster: Cast) -> None:
    node = cluster.dice.choice(cluster.agents).node
    if node in cluster.drained:
        del cluster.drained[node]
        await _ask(cluster, ResumeNode(by=BOB, node=node))
    else:
        cluster.drained[node] = None
        await _ask(cluster, DrainNode(by=BOB, node=node, reason="to look at a fan"))


async def label_or_taint(cluster: Cast) -> None:
    node, dice = cluster.dice.choice(cluster.agents).node, cluster.dice
    if dice.random() < 0.6:
        await _ask(cluster, LabelNode(by=BOB, node=node, labels={"zone": dice.choice(["a", "b"])}))
    else:
        await _ask(cluster, TaintNode(by=BOB, node=node, taints=(Taint("x", "y"),)))


async def no_wish_unmet(cluster: Cast) -> None:
    """What people still do once the faults have ended: nothing waits for a person or for a node of another kind."""
    await release_all(cluster)
    await lift_limits(cluster)
    for agent in cluster.agents:
        await _ask(cluster, LabelNode(by=BOB, node=agent.node, labels={"zone": "a"}))
        await _ask(cluster, TaintNode(by=BOB, node=agent.node, taints=(), remove=("x",)))


async def resume_all(cluster: Cast) -> None:
    """Nobody knows for sure which drains arrived."""
    for agent in cluster.agents:
        await _ask(cluster, ResumeNode(by=BOB, node=agent.node))


async def forget_any(cluster: Cast) -> None:
    """A person says that a node is gone; it may live all the same."""
    node = cluster.dice.choice(cluster.agents).node
    cluster.oracle.forgotten.add(node)
    await forget(cluster, node)


async def forget(cluster: Cast, node: NodeName) -> None:
    await _ask(cluster, ForgetNode(by=BOB, node=node, force=True))


async def _ask(cluster: Cast, command: Command) -> tuple[Event, ...]:
    """Empty as well when nobody answers, or the answer is no."""
    return await cluster.answer(command) or ()
