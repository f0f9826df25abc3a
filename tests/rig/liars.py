"""Agents and control planes that lie, beside honest ones.

`LyingNode` has joined under a name of its own, with a certificate that the servers have checked: what is here is what
such an agent can still say. It knows all tasks and GPUs of the cluster, and says of them whatever it likes. What was
given to itself is at its mercy; nothing else is.

`OldControl` was a control plane of this cluster once, and its certificate is still good: agents find it at one of their
addresses. It has an epoch that is over. It says what it likes; no agent may do anything of it.
"""

import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from stoker.agent.ports import LinkDown
from stoker.brain.domain.errors import StokerError, refuse
from stoker.brain.domain.gpu import Gpu
from stoker.brain.domain.ids import Epoch, GpuUuid, JobId, NodeName
from stoker.brain.domain.instruction import Signal, Start, Stop, TaskKey
from stoker.brain.domain.job import EndCause, StopCause, TaskEnd
from stoker.brain.domain.node import Inventory
from stoker.brain.domain.report import (
    Beat,
    LogChunk,
    Registration,
    Report,
    Started,
    TaskFinished,
    TaskInventory,
    TaskPhase,
    TaskStatus,
)
from stoker.brain.domain.units import Instant
from stoker.brain.state.cluster import ClusterState
from stoker.live.sessions import AgentStream, RegistrationReply
from stoker.live.streams import BeatAnswer, LogChannel, Message
from stoker.wire import agent_codec as codec
from tests.rig import run
from tests.rig.cluster import Cluster
from tests.rig.faults import Fault
from tests.rig.people import forget
from tests.rig.sim_network import CONTROL, Served
from tests.rig.virtual_loop import run_virtual

T = TypeVar("T")
LIAR: Final = NodeName("liar")
OLD: Final = "old-control"
"""The address at which agents find `OldControl`."""
_STREAMS_MAX: Final = 3
"""Streams that the liar keeps open or remembers; the control plane keeps one."""


class LyingNode:
    """An agent that says of its own tasks, of others' and of tasks that never were whatever the dice give."""

    def __init__(self, cluster: Cluster, dice: random.Random) -> None:
        self._cluster, self._dice = cluster, dice
        self._streams: list[AgentStream] = []
        self._given: list[TaskKey] = []
        """Tasks that it was told to start."""
        self.said = 0
        self.silent = False
        cluster.oracle.liars.add(LIAR)

    async def run(self) -> None:
        while not self.silent:
            await self._cluster.clock.sleep(self._dice.choice([0.01, 0.3, 2.0]))
            await self._one()

    async def _one(self) -> None:
        served = self._cluster.network.controls.get(CONTROL)
        state = self._cluster.ledger()
        if served is None or state is None:
            return
        deeds: list[Callable[[Served, ClusterState], Coroutine[Any, Any, None]]] = [
            *(self._register, self._inventory, self._log),
            *((self._finish, self._report) * 3),
        ]
        self.said += 1
        # What no message of the wire can hold is ValueError here, and refused by the servers there.
        with suppress(StokerError, LinkDown, ValueError):
            deed = self._dice.choice(deeds if self._streams else [self._register])
            await self._cluster.network.call(LIAR, served, deed(served, state))

    # --- what it says -------------------------------------------------------------------------------------------

    async def _register(self, served: Served, state: ClusterState) -> None:
        """Mostly as a node with GPUs and nothing running; else with what others have, or with what no machine has."""
        dice = self._dice
        others = [gpu.uuid for node in state.nodes.values() for gpu in node.inventory.gpus]
        mine = ["GPU-liar-0", "GPU-liar-1"]
        odd = dice.random() < 0.4

        def mostly(usual: T, *odds: T) -> T:
            return dice.choice([usual, *odds]) if odd else usual

        uuids = mostly(mine, [], mine * 2, [dice.choice(others or mine)])
        inventory = Inventory(
            boot_id=mostly("one", "two", ""),
            address=mostly("10.0.0.99", "10.0.0.1", ""),
            gpus=tuple(_gpu(GpuUuid(uuid), mostly(81_559, 0, 1 << 40)) for uuid in uuids),
            cpus=mostly(8, 0, 1 << 30),
            memory_mb=mostly(1 << 16, 0, 1 << 40),
            labels=mostly({}, {"zone": "a"}, {"zone": "\n"}),
            taints=mostly((), ("x=y:NoSchedule",), ("nonsense",)),
            agent_uid=mostly("uid-liar", ""),
            fault=mostly("", "it says that its disk is full"),
        )
        said = codec.encode_registration(Registration(node=LIAR, inventory=inventory))
        reply = await served.sessions.register(codec.decode_registration(said))
        stream = served.sessions.attach(reply.session)
        self._streams = [*self._streams, stream][-_STREAMS_MAX:]
        self._cluster.network.spawn(self._listen(stream), served.process)
        if dice.random() < 0.8:
            await stream.receive(TaskInventory(boot_id=inventory.boot_id, tasks=()))

    async def _listen(self, stream: AgentStream) -> None:
        with suppress(StokerError):
            async for message in stream.outgoing():
                if isinstance(message, Start):
                    self._given.append(message.key)

    async def _inventory(self, served: Served, state: ClusterState) -> None:
        dice = self._dice
        tasks = tuple(
            TaskStatus(key=self._key(state), phase=dice.choice(list(TaskPhase)), gpus=(self._gpu(state),))
            for _ in range(dice.choice([0, 1, 5]))
        )
        kept = tuple(self._key(state) for _ in range(dice.choice([0, 5])))
        await self._say(TaskInventory(boot_id=dice.choice(["one", "elsewhere"]), tasks=tasks, kept=kept))

    async def _report(self, served: Served, state: ClusterState) -> None:
        dice, key = self._dice, self._key(state)
        started = Started(key=key, at=Instant(dice.choice([0, -1, 1 << 60])), pid=dice.choice([0, -1, 1]))
        beat = Beat(sequence=dice.choice([0, 1, 1 << 60]), ending=(key,), tasks_sum=dice.choice([None, 0, 7]))
        await self._say(dice.choice([started, beat]))

    async def _say(self, report: Report) -> None:
        """On its stream, or on one that is over."""
        said = codec.decode_report(codec.encode_report(report))
        assert said is not None
        await self._dice.choice(self._streams).receive(said)

    async def _finish(self, served: Served, state: ClusterState) -> None:
        dice = self._dice
        end = TaskEnd(
            cause=dice.choice(list(EndCause)),
            at=Instant(dice.choice([0, -1, 1 << 60])),
            exit_code=dice.choice([None, 0, 0, 99, -1]),
            signal=dice.choice([0, 9]),
            peak_memory_mb=dice.choice([0, 1 << 60]),
            error="so it says",
        )
        said = codec.encode_finished(TaskFinished(node=LIAR, key=self._key(state), end=end))
        await served.sessions.finished(codec.decode_finished(said))

    async def _log(self, served: Served, state: ClusterState) -> None:
        stream = self._dice.choice(self._streams)
        stream.log.answer(LogChunk(request=self._dice.choice([0, 1, 7]), offset=0, data=b"lies", size=-1, ended=True))

    # --- of what ------------------------------------------------------------------------------------------------

    def _key(self, state: ClusterState) -> TaskKey:
        """One of its own, of another node's that runs now, of one that ran, or of none at all."""
        dice = self._dice
        held = [TaskKey(JobId(key[0]), *key[1:]) for keys in state.indexes.held.values() for key in keys]
        over = [TaskKey(job.id, 1, 0) for job in state.jobs.values()]
        none = [TaskKey(JobId(1 << 50), 1, 0), TaskKey(JobId(-1), -1, -1), TaskKey(JobId(1), 1 << 30, 1 << 30)]
        return dice.choice(dice.choice([each for each in (self._given[-9:], held, held, over, none) if each]))

    def _gpu(self, state: ClusterState) -> GpuUuid:
        return self._dice.choice([*state.indexes.gpu_owner, GpuUuid("GPU-none")])


def _gpu(uuid: GpuUuid, memory_mb: int) -> Gpu:
    return Gpu(uuid=uuid, index=0, model="NVIDIA H100 80GB HBM3", memory_mb=memory_mb, simulated=True)


class OldControl:
    """A control plane whose epoch is over. It stands at its address in place of the `Sessions` of one that leads."""

    def __init__(self, cluster: Cluster, dice: random.Random) -> None:
        self._cluster, self._dice = cluster, dice
        self.let_in = 0
        """Agents that asked it, and were told a session."""

    async def register(self, registration: Registration) -> RegistrationReply:
        """To an agent that has never obeyed anybody it says nothing: that one can't know better."""
        obeyed = next(each.obeyed for each in self._cluster.agents if each.node == registration.node)
        if obeyed.epoch == 0:
            raise StokerError(refuse("not_active", "a standby", "ask the other one"))
        self.let_in += 1
        return RegistrationReply(
            epoch=Epoch(self._dice.randrange(obeyed.epoch)),
            cluster_id=self._dice.choice(["", obeyed.cluster_id]),
            session=registration.node,
            heartbeat_ms=self._dice.choice([1_000, 3_000]),
        )

    def attach(self, session: str) -> "OldStream":
        return OldStream(self._cluster, self._dice, NodeName(session))

    opened = attach

    def detach(self, stream: "OldStream") -> None:
        return None

    async def finished(self, finished: TaskFinished) -> Epoch:
        """Says that the end is kept, and keeps nothing."""
        return Epoch(0)


class OldStream:
    """What it says to an agent: starts of what nobody placed there, stops and signals of what runs, answered beats."""

    def __init__(self, cluster: Cluster, dice: random.Random, node: NodeName) -> None:
        self._cluster, self._dice, self.node = cluster, dice, node
        self.log = LogChannel(1)

    async def receive(self, report: Report) -> None:
        return None

    async def outgoing(self) -> AsyncGenerator[Message, None]:
        while True:
            await self._cluster.clock.sleep(self._dice.choice([0.01, 0.5]))
            yield self._lie()

    def _lie(self) -> Message:
        dice, (agent,) = self._dice, (each for each in self._cluster.agents if each.node == self.node)
        epoch = Epoch(dice.randrange(agent.obeyed.epoch))
        job = JobId(dice.choice([*self._cluster.oracle.acknowledged, 1 << 50]))
        key = dice.choice([*agent.machine.records, TaskKey(job, dice.choice([1, 2]), 0)])
        gpus = tuple(gpu.uuid for gpu in agent.gpus()[: dice.choice([0, 4])])
        start = Start(key=key, epoch=epoch, command="1 0", env={}, workdir="", gpus=gpus, cpus=1, memory_mb=0)
        stop = Stop(key=key, epoch=epoch, grace_ms=0, cause=dice.choice([None, *StopCause]))
        beat = BeatAnswer(sequence=1 << 50, epoch=epoch)
        return dice.choice([start, start, stop, Signal(key=key, epoch=epoch, signal=9), beat])


class LyingCluster(Cluster):
    """One more node and an old control plane lie all the time, until people find out."""

    def __init__(self, seed: int, nodes: int) -> None:
        super().__init__(seed, nodes, (CONTROL, OLD))
        dice = random.Random(seed)
        self.lying_node, self.old_control = LyingNode(self, dice), OldControl(self, dice)

    async def start(self) -> None:
        await super().start()
        self.network.serve(Served(OLD, self.old_control))  # type: ignore[arg-type]  # it stands in for `Sessions`
        self.later(self.lying_node.run())

    async def peace(self, meanwhile: Callable[[Cluster], Awaitable[None]]) -> None:
        """Nobody is at that address any more, and the node is forgotten for good."""
        assert self.lying_node.said, "it never lied"
        del self.network.controls[OLD]
        self.network.break_all(OLD)
        self.lying_node.silent = True
        await forget(self, LIAR)
        await super().peace(meanwhile)


def simulate_among_liars(seed: int, *, nodes: int = 3, steps: int = 30, faults: Sequence[Fault] = ()) -> run.Report:
    """As `simulate` does, beside a node and a control plane that lie."""
    return run_virtual(lambda: run.play(LyingCluster(seed, nodes), seed, run.Course(steps, faults=faults)))
