"""One seeded run of two control planes and their nodes: random commands, faults of every kind, then peace, then the
reckoning."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final
from unittest import mock

from stoker.agent.instructions import InstructionExecutor
from stoker.brain import cycle
from stoker.brain.domain.ids import Position
from stoker.brain.domain.instruction import Instruction
from stoker.brain.domain.plan import Plan
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.units import Instant
from stoker.brain.state.apply import dispatch
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.codec import Fact
from stoker.brain.state.view import View
from stoker.control import committer
from stoker.control.committer import Committer
from tests.rig.cast import Cast
from tests.rig.pair_cluster import PairCluster
from tests.rig.pair_faults import Fault, one_fault
from tests.rig.people import act, no_wish_unmet, resume_all
from tests.rig.process import RUNNING
from tests.rig.run import DAYS_S, Course, Report, poisonable, report, taking
from tests.rig.sharing import found
from tests.rig.virtual_loop import run_virtual

PAUSES_S: Final = (0.001, 0.01, 0.2, 3.0, 12.0, 30.0)
"""Between two steps of a run; in the last, whatever waits for a lease has come to an end."""


def simulate_pair(
    seed: int,
    *,
    nodes: int = 3,
    steps: int = 30,
    shared: bool = False,
    profile: str = "default",
    faults: Sequence[Fault] = (),
) -> Report:
    """Run one seed; raises AssertionError with the story when a promise is broken.

    `faults`: only these happen; empty = all kinds.
    """
    course = Course(steps, faults=faults, pauses_s=PAUSES_S)
    return run_virtual(lambda: _play(PairCluster(seed, nodes, shared=shared, profile=profile), seed, course))


def simulate_pair_taking(seed: int, *, steps: int = 30, faults: Sequence[Fault] = ()) -> Report:
    """As `simulate_pair`, each with a log of its own, with people who want to have what others hold."""
    cluster = partial(PairCluster, seed, 3)
    course = Course(steps, faults=faults, pauses_s=PAUSES_S)
    return run_virtual(lambda: _play(taking(cluster(), seed), seed, course))


def simulate_pair_days(seed: int, steps: int) -> Report:
    """As `simulate_pair`, each with a log of its own, over days."""
    cluster = partial(PairCluster, seed, 3, shared=False, profile="default")
    return run_virtual(lambda: _play(cluster(), seed, Course(steps, pauses_s=DAYS_S)))


async def _play(cluster: PairCluster, seed: int, course: Course) -> Report:
    dice = cluster.dice
    try:
        with watched(cluster):
            await cluster.start()
            await found(cluster)
            for _ in range(course.steps):
                for _ in range(dice.choice([0, 1, 1, 4])):
                    act(cluster)
                if cluster.taking is not None:
                    cluster.taking.act(cluster)
                await cluster.clock.sleep(dice.choice(course.pauses_s))
                cluster.look()
                if dice.random() < 0.6:
                    await one_fault(cluster, course.faults)
            await cluster.peace(_wishes)
            await cluster.reckon()
        return report(seed, cluster.pair.truth, cluster)
    finally:
        await cluster.close()


async def _wishes(cluster: Cast) -> None:
    """Nobody knows for sure what arrived while nobody was active."""
    await resume_all(cluster)
    await no_wish_unmet(cluster)


@contextmanager
def watched(cluster: PairCluster) -> Iterator[None]:
    """The oracle sees every event that whoever leads applies, every plan, and every acknowledgement before it is
    given; it changes nothing."""
    real, propose, announce = dispatch.apply, cycle.propose, Committer._announce
    pair, oracle = cluster.pair, cluster.oracle

    def led() -> ClusterState | None:
        return pair.leader.state if pair.leader is not None else None

    def seen(state: ClusterState, fact: Fact, position: Position) -> None:
        real(state, fact, position)
        if state is led():
            oracle.applied(state, fact)

    def planned(view: View, policy: Policy, now: Instant, seed: int, budget: int) -> Plan:
        plan = propose(view, policy, now, seed, budget)
        state, control = led(), pair.leading
        if state is not None and control is not None and RUNNING.get() is control.process:
            oracle.planned(state, plan, now)
        return plan

    def announced(writer: Committer, batch: "committer._Batch") -> None:
        pair.announced(writer, batch.entries, batch.records)
        announce(writer, batch)

    def carrying_out(name: str) -> "mock._patch[Any]":
        real = getattr(InstructionExecutor, name)

        def carried_out(orders: InstructionExecutor, instruction: Instruction) -> object:
            pair.carried_out(orders._ports.telemetry.who, instruction)  # type: ignore[attr-defined]  # the rig's
            return real(orders, instruction)

        return mock.patch.object(InstructionExecutor, name, carried_out)

    with (
        carrying_out("_start"),
        carrying_out("_stop"),
        carrying_out("_signal"),
        mock.patch.object(committer, "apply", seen),
        mock.patch.object(cycle, "propose", planned),
        mock.patch.object(Committer, "_announce", announced),
        poisonable(oracle),
    ):
        yield
