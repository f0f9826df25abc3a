"""A simulated node: its kernel and its disk, and processes that run and end by themselves.

A machine outlives its agents and its runners. The oracle reads the machine, so that a test can say what really ran
and not only what was reported.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from stoker.agent.ports import StartTask, TaskOver
from stoker.brain.domain.ids import GpuUuid
from stoker.brain.domain.instruction import TaskKey
from stoker.brain.domain.units import Instant
from stoker.ports import Clock, Entropy
from tests.rig.gate import Gate

if TYPE_CHECKING:
    from tests.rig.sim_runner import RunnerProcess

TRAP: Final = "trap"
"""In a command: its process ignores the terminate signal."""
LINGER: Final = "linger"
"""In a command: its leader leaves a child behind, which goes on for LINGER_S."""
LINGER_S: Final = 2.0
INFINITY: Final = float("inf")


@dataclass(slots=True)
class Process:
    """A simulated process tree."""

    key: TaskKey
    pid: int
    gpus: tuple[GpuUuid, ...]
    started_at: Instant
    task: asyncio.Task[None] | None = None
    alive: bool = True
    """Does any of the tree live?"""
    exit_code: int | None = None
    """What its leader really exited with. None = it didn't exit by itself (yet)."""
    stopped: bool = False
    ending: bool = False
    signals: list[int] = field(default_factory=list)
    """Those of people and of warnings, in order. A simulated process notes them and goes on."""
    warned: int = -1
    """Number under which it was warned last."""
    to_be_stopped: bool = False
    """Was it warned by a stop, whose lead may not be over?"""


@dataclass(slots=True)
class Machine:
    """One node's hardware, kernel and disk."""

    name: str
    clock: Clock
    entropy: Entropy
    boot_id: str = "boot-1"
    started: dict[TaskKey, int] = field(default_factory=dict)
    """How often the process of each key was started, over the machine's whole life."""
    records: dict[TaskKey, StartTask] = field(default_factory=dict)
    """Start records on disk."""
    booted: dict[TaskKey, str] = field(default_factory=dict)
    """The boot id in each start record."""
    ends: dict[TaskKey, TaskOver] = field(default_factory=dict)
    """End records on disk."""
    settled: dict[TaskKey, None] = field(default_factory=dict)
    processes: dict[TaskKey, Process] = field(default_factory=dict)
    ports_taken: set[int] = field(default_factory=set)
    runner: "RunnerProcess | None" = None
    guarded: bool = False
    """Do its processes end with their runner, and with their leases?"""
    frozen: bool = False
    """Suspended: nothing on it moves, and time goes on."""
    thawed: Gate = field(default_factory=Gate)
    pids: int = 100
    recorded: asyncio.Event = field(default_factory=asyncio.Event)
    """Set whenever a start record is written: its process isn't there yet."""
    disk_full: bool = False
    """No room for its runner's records."""
    folders_full: bool = False
    """No room for folders of jobs, which lie on a disk of their own."""
    sick: bool = False
    """Every start fails in the kernel (EAGAIN)."""
    tasks_max: int = 0
    """Tasks at once for which it has files and processes. 0 = for any number."""
    revoked: dict[TaskKey, None] = field(default_factory=dict)
    """Starts that its agent has taken back from a runner that didn't answer."""
    ailing_since_s: float = INFINITY
    """When it last came to lack something of which people must be told, in seconds of the loop."""
    on_start: "Callable[[Machine, Process], None] | None" = None
    """Called whenever a process begins to live."""

    def live(self) -> list[Process]:
        """Those that may do something."""
        return [] if self.frozen else self.left()

    def left(self) -> list[Process]:
        """Those that are there, also on a machine that is suspended."""
        return [process for process in self.processes.values() if process.alive]

    def lasts(self, process: Process) -> bool:
        """Would it run for more than an hour?"""
        return float(str(self.records[process.key].start.command).split()[0]) > 3_600

    async def sleep(self, seconds: float) -> None:
        await self.clock.sleep(seconds)
        await self.thawed.passed()

    def suspend(self) -> None:
        self.frozen = True
        self.thawed.shut()

    def resume(self) -> None:
        """What has outlived its lease is killed before anything else runs."""
        if self.frozen:
            if self.runner is not None:
                self.runner.end_leases()
            if self.ailing_since_s != INFINITY:
                self.ails()  # what slept could tell nobody
            self.frozen = False
            self.thawed.open()

    # --- what it lacks ------------------------------------------------------------------------------------------

    def ails(self) -> None:
        """From now on people must be told."""
        self.ailing_since_s = asyncio.get_running_loop().time()

    @property
    def cannot_work(self) -> str:
        """What keeps its runner from starting anything; empty = nothing."""
        if self.disk_full:
            return "its disk is full"
        return "its runner is stopped" if self.runner is not None and not self.runner.gate.is_open else ""

    def fill_disk(self) -> None:
        self.disk_full = True
        self.ails()

    def free_disk(self) -> None:
        """What waited for room is written."""
        self.disk_full, self.ailing_since_s = False, INFINITY
        if self.runner is not None and self.runner.gate.is_open:
            self.runner.write_waiting()

    def stop_runner(self) -> None:
        """SIGSTOP"""
        if self.runner is not None:
            self.runner.gate.shut()
            self.ails()

    def continue_runner(self) -> None:
        """SIGCONT. What has outlived its lease is killed before anything else runs."""
        if self.runner is not None and not self.runner.gate.is_open:
            self.runner.gate.open()
            self.ailing_since_s = INFINITY
            if self.guarded:
                self.runner.end_leases()
            if not self.disk_full:
                self.runner.write_waiting()

    def limit_tasks(self, most: int) -> None:
        """From its next runner on, which has another limit of files and processes."""
        self.tasks_max = most
        self.kill_runner()

    def cure(self) -> None:
        """It lacks nothing any more."""
        self.continue_runner()
        if self.disk_full:
            self.free_disk()
        if self.tasks_max:
            self.limit_tasks(0)
        self.folders_full = self.sick = False

    def kill_runner(self) -> None:
        if self.runner is not None:
            self.runner.die()
            self.runner = None
            self.ailing_since_s = INFINITY
            if self.disk_full or self.tasks_max:
                self.ails()
            if self.guarded:
                for process in self.left():
                    end_process(process)

    def reboot(self) -> None:
        """Power goes: processes and runner are gone, disks stay."""
        self.kill_runner()
        for process in self.left():
            end_process(process)
        self.frozen = False
        self.thawed.open()
        self.boot_id = f"boot-{int(self.boot_id.split('-')[1]) + 1}"

    def begin_process(self, task: StartTask) -> Process:
        key = task.start.key
        self.pids += 1
        process = self.processes[key] = Process(key, self.pids, task.start.gpus, self.clock.now())
        self.started[key] = self.started.get(key, 0) + 1
        if self.on_start is not None:
            self.on_start(self, process)
        return process


def end_process(process: Process) -> None:
    process.alive = False
    if process.task is not None and process.task is not asyncio.current_task():
        process.task.cancel()
