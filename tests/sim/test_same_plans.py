"""One brain in three runtimes: for the same facts the live loop, the simulator and a replay of the log plan alike.

The live side is a whole control plane on virtual time: its writer, its loop, its log. Nodes are played: a task starts
in the instant in which it is placed and runs as long as its job's comment says, so that all three live through the same
instants. Each plan is held against the others as bytes, with the reasons of jobs that wait.
"""

import asyncio
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import msgspec
import pytest

from stoker.brain import cycle
from stoker.brain.domain.ids import CONTROL, Epoch, JobId, NodeName, Position, TenantName, node_principal
from stoker.brain.domain.instruction import TaskKey
from stoker.brain.domain.job import EndCause, JobSpec, TaskEnd
from stoker.brain.domain.plan import Plan
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.report import Registration, Started, TaskFinished, TaskInventory
from stoker.brain.domain.tenant import Tenant
from stoker.brain.domain.units import Instant
from stoker.brain.state import commands
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.codec import decode_fact
from stoker.brain.state.events.job import JobPlaced, JobSubmitted
from stoker.brain.state.view import View
from stoker.control.control_plane import ControlPlane, Runtime, active
from stoker.control.control_ports import ControlPorts
from stoker.control.feed import Entry
from stoker.control.settings import CoreSettings
from stoker.sim.recording import recorded
from stoker.sim.replay import replay
from stoker.sim.virtual_cluster import Run, VirtualCluster
from tests.control.stage import ANNA, inventory, spec, virtual
from tests.control.test_second_runtime import MemoryLog, NoHistory
from tests.rig.sim_ports import EPOCH_MS, Notes, SimClock, SimEntropy

NODES = {"a": 4, "b": 4, "c": 2}
TENANTS = ("default", "vision")
TIMELESS = Policy(aging_per_hour=0, fair_share_points=0)
"""Without what changes the order of the queue by the passing of time alone: the live loop looks at it every five
seconds, and the others when something happens."""
Plans = dict[Instant, list[bytes]]


@contextmanager
def plans_seen() -> Iterator[Plans]:
    """Every plan that is proposed meanwhile, by instant."""
    real, seen = cycle.propose, Plans()

    def propose(view: View, policy: Policy, now: Instant, seed: int, budget: int) -> Plan:
        plan = real(view, policy, now, seed, budget)
        encoded = msgspec.json.encode([plan.actions, list(plan.reasons.items()), plan.more])
        seen.setdefault(now, []).append(encoded)
        return plan

    with mock.patch.object(cycle, "propose", propose):
        yield seen


class RoundClock(SimClock):
    """A clock whose milliseconds are rounded, so that durations in floating point add up as whole numbers do."""

    def now(self) -> Instant:
        return Instant(EPOCH_MS + round(asyncio.get_running_loop().time() * 1_000))


class PlayedNodes:
    """Nodes that start what is placed at once, and end it in its time."""

    def __init__(self, control: ControlPlane) -> None:
        self._control = control
        self._running: set[asyncio.Task[None]] = set()
        control.committer.on_durable(self._note, of_ours=True)

    async def join(self) -> None:
        ask = self._control.committer.ask
        for name, gpus in NODES.items():
            for command in joining(name, gpus):
                await ask(command)

    def _note(self, entries: Sequence[Entry]) -> None:
        for _, fact in entries:
            if isinstance(fact.event, JobPlaced):
                task = asyncio.ensure_future(self._carry_out(fact.event))
                self._running.add(task)
                task.add_done_callback(self._running.discard)

    async def _carry_out(self, placed: JobPlaced) -> None:
        committer, clock = self._control.committer, self._control.clock
        tasks = [(TaskKey(placed.job, placed.attempt, rank), task.node) for rank, task in enumerate(placed.tasks)]
        duration_s = int(committer.state.jobs[placed.job].spec.comment)
        for key, node in tasks:
            started = Started(key=key, at=committer.now(), pid=1)
            committer.tell(commands.ReportStarted(by=node_principal(node), node=node, started=started))
        await clock.sleep(duration_s)
        end = TaskEnd(cause=EndCause.EXITED, at=committer.now(), exit_code=0)
        for key, node in tasks:
            finished = TaskFinished(node=node, key=key, end=end)
            committer.tell(commands.ReportFinished(by=node_principal(node), finished=finished))


def joining(name: str, gpus: int) -> Iterator[commands.Command]:
    node = NodeName(name)
    yield commands.Register(
        by=node_principal(node), registration=Registration(node=node, inventory=inventory(name, gpus))
    )
    nothing = TaskInventory(boot_id="boot-1", tasks=())
    yield commands.CompareInventory(by=node_principal(node), node=node, inventory=nothing)


def drawn_jobs(seed: int) -> list[tuple[float, JobSpec]]:
    """Jobs of several shapes, more than fit, and the pause before each. Ends and submissions never meet."""
    dice = random.Random(seed)
    drawn = []
    for number in range(40):
        gpus, tasks = dice.choice([(1, 1), (2, 1), (4, 1), (1, 3), (2, 2), (4, 2)])
        fields = {"tenant": TenantName(dice.choice(TENANTS)), "priority": dice.choice([100, 500, 500, 1_000])}
        duration_s = dice.randrange(20, 900)
        drawn.append(
            (dice.randrange(1, 60) + number / 1_000, spec(gpus=gpus, tasks=tasks, comment=str(duration_s), **fields))
        )
    return drawn


async def live(seed: int, folder: Path) -> tuple[Plans, list[bytes]]:
    """The plans of a live control plane, and its log."""
    clock, log = RoundClock(), MemoryLog()
    ports = ControlPorts(clock=clock, entropy=SimEntropy(seed), telemetry=Notes(clock, "live"))
    control = await ControlPlane.recover(
        Runtime(settings=CoreSettings(data_dir=folder, policy=TIMELESS), log=log, history=NoHistory(), ports=ports)
    )
    nodes = PlayedNodes(control)
    with plans_seen() as seen:
        async with active(control), asyncio.timeout(90_000):
            ask = control.committer.ask
            await ask(commands.PutTenant(by=ANNA, tenant=Tenant(name=TenantName("vision")), create=True))
            await nodes.join()
            for pause_s, each in drawn_jobs(seed):
                await clock.sleep(pause_s)
                await ask(commands.Submit(by=ANNA, specs=(each,)))
            while any(not job.is_final for job in control.committer.state.jobs.values()):
                await clock.sleep(1.0)
    return seen, log.records


def simulated(records: Sequence[bytes]) -> Plans:
    """The plans of a simulated cluster that is told the same."""
    facts = [decode_fact(record) for record in records]
    state = ClusterState()

    def run_of(job: JobId, _: int) -> Run:
        return Run(duration_ms=1_000 * int(state.jobs[job].spec.comment))

    cluster = VirtualCluster(state, facts[0].at, 0, run_of, lambda *_: None)
    with plans_seen() as seen:
        begin = CoreSettings(data_dir=Path("unused"), policy=TIMELESS)
        cluster.give(commands.BeginEpoch(by=CONTROL, epoch=Epoch(1), policy=begin.policy, pools=begin.pools))
        cluster.give(commands.PutTenant(by=ANNA, tenant=Tenant(name=TenantName("vision")), create=True))
        for name, gpus in NODES.items():
            for command in joining(name, gpus):
                cluster.give(command)
        for fact in facts:
            if isinstance(fact.event, JobSubmitted):
                submit = commands.Submit(by=fact.by, specs=(fact.event.spec,))
                cluster.at(fact.at, lambda submit=submit: cluster.give(submit))  # type: ignore[misc]  # its own
        cluster.run(lambda: False)
    return seen


def replayed(records: Sequence[bytes]) -> Plans:
    """The plans of a replay of the log."""
    recording = recorded("log", (), [(Position(at), record) for at, record in enumerate(records, 1)])
    with plans_seen() as seen:
        told = replay(recording, lambda policy: policy, lambda _: None)
    assert (told.compared, told.earlier, told.later) == (40, 0, 0)
    assert told.then == told.now
    return seen


def placing(plans: Plans) -> list[tuple[Instant, bytes]]:
    """The plans that place something, in order."""
    return [(at, plan) for at in sorted(plans) for plan in plans[at] if not plan.startswith(b"[[],")]


@pytest.mark.parametrize("seed", [1, 2, 3])
@virtual
async def test_live_simulator_and_replay_give_byte_equal_plans_for_the_same_facts(seed: int, tmp_path: Path) -> None:
    """The live loop looks once more after its period; all plans that the others make it has made too."""
    alive, records = await live(seed, tmp_path)
    facts = [decode_fact(record) for record in records]
    submitted = [fact.at for fact in facts if isinstance(fact.event, JobSubmitted)]
    assert len(placing(alive)) > 25
    for other in (simulated(records), replayed(records)):
        assert placing(other) == placing(alive)
        for at in submitted:
            first, *_ = alive[at]
            assert other[at][0] == first
