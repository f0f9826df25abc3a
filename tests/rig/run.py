"""One seeded run of a whole cluster: random commands, faults of every kind, then peace, then the reckoning."""

import hashlib
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar
from unittest import mock

from stoker.brain import cycle
from stoker.brain.domain.ids import Position
from stoker.brain.domain.plan import Place, Plan
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.units import Instant
from stoker.brain.engine.queue_order import Candidate
from stoker.brain.engine.scheduling_pass import SchedulingPass
from stoker.brain.state.apply import dispatch
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.codec import Fact
from stoker.brain.state.view import View
from stoker.control import committer
from tests.rig.ailing_oracle import POISON_CPUS
from tests.rig.cast import Cast
from tests.rig.cluster import Cluster
from tests.rig.faults import Fault, one_fault
from tests.rig.oracle import Oracle
from tests.rig.people import act, forget_any, no_wish_unmet, resume_all
from tests.rig.sharing import found
from tests.rig.taking import TakingPeople
from tests.rig.virtual_loop import run_virtual

if TYPE_CHECKING:
    from tests.rig.pair_cluster import PairCluster


C = TypeVar("C", bound=Cast)
PAUSES_S: Final = (0.001, 0.01, 0.2, 3.0, 12.0)
"""Between two steps of a run."""
DAYS_S: Final = (0.2, 12.0, 120.0, 1_800.0, 7_200.0)
"""Of one in which days pass: people come and faults happen hours apart, as in a real cluster."""


class Course(NamedTuple):
    """What happens in a run."""

    steps: int = 30
    forgetting: bool = False
    history_fails: bool = False
    faults: Sequence[Fault] = ()
    """Only these; empty = all kinds."""
    pauses_s: Sequence[float] = PAUSES_S


@dataclass(frozen=True, slots=True)
class Report:
    """What a run came to. Equal seeds give equal digests, whatever the hash seed."""

    seed: int
    digest: str
    events: int
    simulated_s: float
    jobs: int
    faults: int
    happened: Mapping[str, int] = field(default_factory=dict)
    """What came about between people who take from each other, and how often."""


def simulate(
    seed: int,
    *,
    nodes: int = 3,
    steps: int = 30,
    forgetting: bool = False,
    history_fails: bool = False,
    faults: Sequence[Fault] = (),
) -> Report:
    """Run one seed; raises AssertionError with the story when a promise is broken.

    `faults`: only these happen; empty = all kinds.
    """
    course = Course(steps, forgetting, history_fails, faults)
    return run_virtual(lambda: play(Cluster(seed, nodes), seed, course))


def simulate_taking(seed: int, *, steps: int = 30, forgetting: bool = False, faults: Sequence[Fault] = ()) -> Report:
    """As `simulate`, with people who want to have what others hold."""
    course = Course(steps, forgetting, faults=faults)
    return run_virtual(lambda: play(taking(Cluster(seed, 3), seed), seed, course))


def taking(cluster: C, seed: int) -> C:
    """The cluster with such people."""
    cluster.let_in(TakingPeople(seed))
    return cluster


def simulate_days(seed: int, steps: int) -> Report:
    """As `simulate`, over days."""
    return run_virtual(lambda: play(Cluster(seed, 3), seed, Course(steps, pauses_s=DAYS_S)))


async def play(cluster: Cluster, seed: int, course: Course) -> Report:
    """From the start to the reckoning; the cluster is closed then."""
    dice = cluster.dice
    try:
        with watched(cluster):
            await cluster.start()
            await found(cluster)
            breaking = cluster.later(_break_history(cluster, random.Random(seed))) if course.history_fails else None
            for _ in range(course.steps):
                for _ in range(dice.choice([0, 1, 1, 4])):
                    act(cluster)
                if cluster.taking is not None:
                    cluster.taking.act(cluster)
                await cluster.clock.sleep(dice.choice(course.pauses_s))
                cluster.look()
                if dice.random() < 0.5:
                    await one_fault(cluster, course.faults)
                if course.forgetting and dice.random() < 0.1:
                    await forget_any(cluster)
            if breaking is not None:
                breaking.cancel()
            cluster.disk.archive.fault = ""
            await cluster.clock.sleep(1.0)  # what was asked last arrives before what follows
            await resume_all(cluster)
            await cluster.peace(no_wish_unmet)
            await cluster.reckon()
        return report(seed, cluster.disk.records, cluster)
    finally:
        await cluster.close()


async def _break_history(cluster: Cluster, dice: random.Random) -> None:
    """Its store fails and works by turns, and sometimes there is room for a few notes only."""
    while True:
        await cluster.clock.sleep(dice.choice([0.01, 0.2, 2.0, 20.0]))
        cluster.disk.archive.fault = dice.choice(["", "", "no space left on device"])
        if cluster.control.state is not None:
            cluster.control.parts.history._notes_max = dice.choice([3, 1_000])


@contextmanager
def watched(cluster: Cluster) -> Iterator[None]:
    """The oracle sees every event that the living control plane applies, and every plan; it changes nothing."""
    real, propose = dispatch.apply, cycle.propose

    def seen(state: ClusterState, fact: Fact, position: Position) -> None:
        real(state, fact, position)
        if state is cluster.control.state:
            cluster.oracle.applied(state, fact)

    def planned(view: View, policy: Policy, now: Instant, seed: int, budget: int) -> Plan:
        plan = propose(view, policy, now, seed, budget)
        if cluster.control.state is not None:
            cluster.oracle.planned(cluster.control.state, plan, now)
        return plan

    with (
        mock.patch.object(committer, "apply", seen),
        mock.patch.object(cycle, "propose", planned),
        poisonable(cluster.oracle),
    ):
        yield


@contextmanager
def poisonable(oracle: Oracle) -> Iterator[None]:
    """The engine raises when it is to place a job of the poisonous shape, while there is such a defect."""
    real = SchedulingPass.place

    def place(pass_: SchedulingPass, candidate: Candidate) -> Place | None:
        if oracle.ailing.poisoned and candidate.shape.demand.cpus == POISON_CPUS:
            raise RuntimeError("a defect that only this shape brings out")
        return real(pass_, candidate)

    with mock.patch.object(SchedulingPass, "place", place):
        yield


def report(seed: int, records: Iterable[bytes], cluster: "Cluster | PairCluster") -> Report:
    """`records`: of the log that counts."""
    digest = hashlib.blake2b(digest_size=8)
    for record in records:
        digest.update(record)
    oracle = cluster.oracle
    return Report(
        seed,
        digest.hexdigest(),
        oracle.events,
        cluster.clock.mono(),
        len(oracle.acknowledged),
        cluster.faults,
        dict(oracle.taking.happened),
    )
