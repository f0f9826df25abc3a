"""One control plane on virtual time over a disk that waits when the test says so, and agents played in nouns."""

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import pytest

from stoker.brain.domain.array import JobRef
from stoker.brain.domain.demand import Demand
from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.gpu import Gpu
from stoker.brain.domain.ids import Epoch, GpuUuid, JobId, NodeName, Position, Principal
from stoker.brain.domain.instruction import Start, Stop, TaskKey, Warn
from stoker.brain.domain.job import EndCause, Job, JobSpec, TaskEnd
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.domain.node import Inventory
from stoker.brain.domain.reason import Reason
from stoker.brain.domain.report import Beat, Registration, Started, TaskFinished, TaskInventory, TaskPhase, TaskStatus
from stoker.brain.state.commands import Cancel, Submit
from stoker.brain.state.events.job import JobSubmitted
from stoker.brain.state.wait_reason import wait_reason
from stoker.control.control_plane import active
from stoker.control.control_ports import AuditSink, ControlPorts, Messenger
from stoker.control.supervisor import Duties
from stoker.live.control_plane import LiveControlPlane, recover_control
from stoker.live.settings.control import ControlSettings
from stoker.live.streams import BeatAnswer, Message
from stoker.ports import LogFailed
from tests.rig.sim_history import SimHistory
from tests.rig.sim_log import SimDisk, SimLog
from tests.rig.sim_ports import Notes, SimClock, SimEntropy
from tests.rig.virtual_loop import run_virtual

ANNA = Principal("user:anna")


def virtual(body: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that runs on virtual time."""

    @functools.wraps(body)
    def test(*args: object, **kwargs: object) -> None:
        run_virtual(lambda: body(*args, **kwargs))

    return test


class GatedLog(SimLog):
    """A disk that can be made to wait at the next append, and then to take a few."""

    def __init__(self, disk: SimDisk, clock: SimClock, entropy: SimEntropy) -> None:
        super().__init__(disk, clock, entropy)
        self.gate = asyncio.Event()
        self.gate.set()
        self._left = 0
        self.appends: list[int] = []
        """Records of each transaction."""

    async def append(self, epoch: Epoch, position: Position, records: Sequence[bytes]) -> None:
        self.appends.append(len(records))
        await self.gate.wait()
        if self._left == 1:
            self.gate.clear()
        self._left = max(0, self._left - 1)
        await super().append(epoch, position, records)

    def let_through(self, appends: int) -> None:
        """Open for so many, then wait again."""
        self._left = appends
        self.gate.set()


class Stage:
    def __init__(self, control: LiveControlPlane, log: GatedLog, disk: SimDisk, duties: Duties, notes: Notes) -> None:
        self.control = control
        self.log = log
        self.disk = disk
        self.duties = duties
        self.notes = notes
        self.committer = control.committer
        self.state = control.committer.state

    async def submit(self, *, gpus: int = 1, tasks: int = 1, **fields: object) -> JobId:
        (event,) = await self.committer.ask(Submit(by=ANNA, specs=(spec(gpus=gpus, tasks=tasks, **fields),)))
        assert isinstance(event, JobSubmitted)
        return event.job

    async def cancel(self, job: JobId) -> None:
        await self.committer.ask(Cancel(by=ANNA, target=JobRef(job)))

    def job(self, job: JobId) -> Job:
        return self.state.jobs[job]

    def why(self, job: JobId) -> Reason:
        """Why it waits."""
        return wait_reason(self.state, self.job(job), self.control.loop.planned_reason)

    async def until(self, holds: Callable[[], bool], within_s: float = 60) -> None:
        async with asyncio.timeout(within_s):
            while not holds():
                await self.control.clock.sleep(0.01)

    async def until_state(self, job: JobId, state: JobState) -> None:
        await self.until(lambda: self.job(job).state is state)

    async def pause(self, seconds: float = 1.0) -> None:
        await self.control.clock.sleep(seconds)

    async def join(self, name: str, gpus: int = 8, *tasks: TaskStatus, leases: bool = False) -> "Player":
        player = await self.register(name, gpus, leases=leases)
        await player.say_inventory(*tasks)
        return player

    async def register(self, name: str, gpus: int = 8, *, leases: bool = False) -> "Player":
        welcome = await self.control.sessions.register(
            Registration(node=NodeName(name), inventory=inventory(name, gpus, leases=leases))
        )
        return Player(self, NodeName(name), welcome.session)


class Player:
    """An agent that does only what the test says."""

    def __init__(self, stage: Stage, node: NodeName, session: str) -> None:
        self.node = node
        self.session = session
        self.stage = stage
        self.stream = stage.control.sessions.attach(session)
        self.heard: list[Message] = []
        self.ended: StokerError | None = None
        self.over = asyncio.Event()
        self._news = asyncio.Event()
        self._listening = asyncio.ensure_future(self._listen())
        self._sequence = 0

    async def _listen(self) -> None:
        try:
            async for message in self.stream.outgoing():
                self.heard.append(message)
                self._news.set()
        except StokerError as fault:
            self.ended = fault
        self.over.set()

    @property
    def starts(self) -> list[Start]:
        return [message for message in self.heard if isinstance(message, Start)]

    @property
    def warnings(self) -> list[Warn]:
        return [message for message in self.heard if isinstance(message, Warn)]

    @property
    def stops(self) -> list[Stop]:
        return [message for message in self.heard if isinstance(message, Stop)]

    @property
    def beats(self) -> list[BeatAnswer]:
        return [message for message in self.heard if isinstance(message, BeatAnswer)]

    async def next_start(self, count: int = 1, within_s: float = 60) -> Start:
        async with asyncio.timeout(within_s):
            while len(self.starts) < count:
                self._news.clear()
                await self._news.wait()
        return self.starts[count - 1]

    async def say_inventory(self, *tasks: TaskStatus) -> None:
        await self.stream.receive(TaskInventory(boot_id="boot-1", tasks=tasks))

    async def say_started(self, key: TaskKey) -> None:
        await self.stream.receive(Started(key=key, at=self.stage.control.clock.now(), pid=7))

    async def beat(self, *ending: TaskKey) -> None:
        self._sequence += 1
        await self.stream.receive(Beat(sequence=self._sequence, ending=ending))

    async def keep_beating(self, every_s: float = 5.0) -> None:
        while True:
            await self.beat()
            await self.stage.control.clock.sleep(every_s)

    async def end(
        self, key: TaskKey, exit_code: int = 0, cause: EndCause = EndCause.EXITED, node_fault: str = ""
    ) -> None:
        end = TaskEnd(cause=cause, at=self.stage.control.clock.now(), exit_code=exit_code, node_fault=node_fault)
        await self.stage.control.sessions.finished(TaskFinished(node=self.node, key=key, end=end))

    async def run_to_end(self, job: JobId, exit_code: int = 0) -> None:
        """The next start of this job, its confirmation and its end."""
        await self.stage.until(lambda: any(start.key.job == job for start in self.starts))
        (*_, start) = (start for start in self.starts if start.key.job == job)
        await self.say_started(start.key)
        await self.end(start.key, exit_code)

    def leave(self) -> None:
        """The connection breaks."""
        self.stage.control.sessions.detach(self.stream)


def running(key: TaskKey, *gpus: str) -> TaskStatus:
    return TaskStatus(key=key, phase=TaskPhase.RUNNING, gpus=tuple(GpuUuid(gpu) for gpu in gpus))


def inventory(name: str, gpus: int = 8, *, leases: bool = False) -> Inventory:
    found = tuple(Gpu(uuid=GpuUuid(f"{name}-{i}"), index=i, model="H100", memory_mb=81_920) for i in range(gpus))
    return Inventory(
        boot_id="boot-1", address=f"addr-{name}", gpus=found, cpus=64, memory_mb=1 << 20, keeps_leases=leases
    )


def spec(*, gpus: int = 1, tasks: int = 1, **fields: object) -> JobSpec:
    given: dict[str, object] = {"name": "j", "command": "true", "priority": 500, "time_limit_ms": 3_600_000, **fields}
    return JobSpec(demand=Demand(gpu_count=gpus, tasks=tasks), **given)  # type: ignore[arg-type]  # given by name


@asynccontextmanager
async def stage(
    disk: SimDisk | None = None,
    *,
    fails: bool = False,
    clock: SimClock | None = None,
    settings: ControlSettings | None = None,
    sink: AuditSink | None = None,
    messenger: Messenger | None = None,
) -> AsyncIterator[Stage]:
    """Active from entry to a clean stop at exit; with `fails`, to the end of a writer that must have failed."""
    disk = disk or SimDisk()
    clock, entropy = clock or SimClock(), SimEntropy(1)
    notes = Notes(clock, "control")
    log = GatedLog(disk, clock, entropy)
    await log.open()
    world = ControlPorts(clock=clock, entropy=entropy, telemetry=notes, audit_sink=sink, messenger=messenger)
    control = await recover_control(settings or ControlSettings(), log, SimHistory(disk.archive, clock), world)
    with pytest.raises(LogFailed) if fails else nullcontext():
        async with active(control) as duties:
            yield Stage(control, log, disk, duties, notes)
