"""What people ask of the cluster: jobs of every kind, repeated cancels, drains, and nodes forgotten by force."""

from typing import Final

from stoker.brain.domain.array import JobRef
from stoker.brain.domain.demand import Demand
from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.ids import JobId, Principal
from stoker.brain.domain.job import JobSpec
from stoker.brain.state.commands import Cancel, Command, DrainNode, ForgetNode, ResumeNode, Submit
from stoker.brain.state.events.job import JobSubmitted
from stoker.brain.state.events.union import Event
from tests.rig.cluster import Cluster

BOB: Final = Principal("user:bob")
FOR_EVER_S: Final = 100_000
"""Longer than any run: such a process ends only when somebody ends it."""


def act(cluster: Cluster) -> None:
    """One request of somebody's."""
    roll = cluster.dice.random()
    if roll < 0.7 or not cluster.oracle.acknowledged:
        cluster.ask(submit(cluster, any_spec(cluster), cluster.dice.choice([1, 1, 3])))
    elif roll < 0.92:
        job = cluster.dice.choice(list(cluster.oracle.acknowledged))
        cluster.ask(cancel(cluster, job, cluster.dice.choice([1, 1, 2, 3])))
    else:
        cluster.ask(drain_or_resume(cluster))


def any_spec(cluster: Cluster) -> JobSpec:
    dice = cluster.dice
    tasks = dice.choice([1, 1, 1, 1, 2, 3])
    gpus = dice.choice([0, 1, 1, 2, 3]) if tasks == 1 else dice.choice([1, 2])
    seconds = dice.choice([0.001, 0.001, 0.5, 0.5, 3, 3, 20, 20, FOR_EVER_S])
    exit_code = dice.choice([0, 0, 0, 1, 77])
    return JobSpec(
        name="rig",
        demand=Demand(gpu_count=gpus, tasks=tasks),
        command=f"{seconds} {exit_code} {dice.choice(['', '', 'trap', 'linger'])}".strip(),
        priority=dice.choice([100, 500, 1000]),
        time_limit_ms=30_000 if seconds == FOR_EVER_S else dice.choice([0, 0, 0, 5_000]),
        retries_max=dice.choice([0, 1, 2]),
        requeue=dice.random() < 0.9,
    )


async def submit(cluster: Cluster, spec: JobSpec, count: int = 1) -> None:
    for event in await _ask(cluster, Submit(by=BOB, specs=(spec,) * count)):
        assert isinstance(event, JobSubmitted)
        cluster.oracle.acknowledged[event.job] = None


async def cancel(cluster: Cluster, job: JobId, times: int = 1) -> None:
    """Somebody impatient, or a client that repeats what wasn't answered."""
    for _ in range(times):
        await _ask(cluster, Cancel(by=BOB, target=JobRef(job)))


async def drain_or_resume(cluster: Cluster) -> None:
    node = cluster.dice.choice(cluster.agents).node
    if node in cluster.drained:
        del cluster.drained[node]
        await _ask(cluster, ResumeNode(by=BOB, node=node))
    else:
        cluster.drained[node] = None
        await _ask(cluster, DrainNode(by=BOB, node=node, reason="to look at a fan"))


async def resume_all(cluster: Cluster) -> None:
    """Nobody knows for sure which drains arrived."""
    for agent in cluster.agents:
        await _ask(cluster, ResumeNode(by=BOB, node=agent.node))


async def forget_any(cluster: Cluster) -> None:
    """A person says that a node is gone; it may live all the same."""
    node = cluster.dice.choice(cluster.agents).node
    cluster.oracle.forgotten.add(node)
    await _ask(cluster, ForgetNode(by=BOB, node=node, force=True))


async def _ask(cluster: Cluster, command: Command) -> tuple[Event, ...]:
    """Empty as well when nobody answers, or the answer is no."""
    committer = cluster.reach()
    if committer is None:
        return ()
    try:
        return await committer.ask(command)
    except StokerError:
        return ()
