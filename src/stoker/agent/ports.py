"""Ports of the agent: the Protocols Link and Runner, between which the daemon's logic sits, and two smaller ones.

`link_grpc.py` and `runner_socket.py` implement Link and Runner in production, simulated twins do in `tests/rig`; both
pass the same contract tests.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from stoker.agent.container_ports import Containers, NoContainers
from stoker.agent.gpu_ports import GpuCare, Locality, NoLocality, Placement
from stoker.brain.domain.gpu_telemetry import FigureWatch
from stoker.brain.domain.ids import Epoch, JobId
from stoker.brain.domain.instruction import Instruction, Start, TaskKey
from stoker.brain.domain.job import TaskEnd
from stoker.brain.domain.report import (
    LogChunk,
    LogRequest,
    Registration,
    Report,
    SessionOpening,
    TaskFinished,
    TaskStatus,
    TunnelFrame,
)
from stoker.brain.domain.units import Instant, Mono
from stoker.ports import Clock, Entropy, Telemetry


class LinkDown(Exception):
    """A control plane that can't be reached, or a stream that broke. The message says which address and why."""


class LinkStandby(LinkDown):
    """Only standbys answered: there is no active control plane just now. The message says which answered."""


class LinkRefused(Exception):
    """Refusal of this agent by the control plane; trying again at once won't help. Carries its message."""


class BeatAnswered(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of a control plane, active under this epoch, that it has heard this beat and all beats before it."""

    sequence: int
    epoch: Epoch


class LinkSession(Protocol):
    """Stream to an active control plane. Every method raises LinkDown once it is broken."""

    @property
    def epoch(self) -> Epoch: ...

    @property
    def cluster_id(self) -> str:
        """Id of the cluster whose control plane this is. Empty = one of an older version, which doesn't tell."""
        ...

    @property
    def heartbeat_s(self) -> float:
        """Seconds between two beats that this control plane wants. Greater than 0."""
        ...

    async def send(self, *reports: Report) -> None:
        """Send reports, in this order. One call at a time: the next begins when this one has returned."""
        ...

    def instructions(self) -> AsyncGenerator[Instruction | BeatAnswered | FigureWatch, None]:
        """Yield what the control plane sends, in order. Ends or raises LinkDown when the stream breaks."""
        ...

    async def finish(self, *ends: TaskFinished) -> None:
        """Report ends, and return when the control plane has all of them on disk."""
        ...

    def log_requests(self) -> AsyncGenerator[LogRequest, None]: ...

    async def send_log(self, chunk: LogChunk) -> None: ...

    def tunnel_frames(self) -> AsyncGenerator[TunnelFrame, None]:
        """Yield frames of tunnels. Nothing comes from a control plane that knows no tunnels."""
        ...

    async def send_frame(self, frame: TunnelFrame) -> None: ...

    async def close(self) -> None: ...


class Link(Protocol):
    """Way to the control planes of the cluster."""

    @property
    def has_alternatives(self) -> bool:
        """Whether several control planes are configured: then one that doesn't answer is left for another."""
        ...

    async def connect(self, registration: Registration) -> LinkSession:
        """Register and open the streams, trying each configured address once, the last one that took us first.

        Raises: LinkStandby when there are only standbys, LinkDown when none answers, LinkRefused when one refuses for
        another reason.
        """
        ...


class Obeyed(msgspec.Struct, frozen=True):
    """Cluster and epoch of the control plane that an agent obeyed last: nothing older is obeyed ever again."""

    cluster_id: str = ""
    epoch: Epoch = Epoch(0)


class Fence(Protocol):
    """Storage of an agent's `Obeyed`, so that a restart doesn't let an older control plane back in."""

    def read(self) -> Obeyed:
        """Return what was kept last, by this process or by one before it; `Obeyed()` = nothing ever was."""
        ...

    async def keep(self, obeyed: Obeyed) -> None:
        """Keep it, and return when it would survive a power loss. Raises OSError: then it must not be acted on."""
        ...


class NoFence:
    """Fence that remembers only for as long as the process lives."""

    def __init__(self) -> None:
        self._obeyed = Obeyed()

    def read(self) -> Obeyed:
        return self._obeyed

    async def keep(self, obeyed: Obeyed) -> None:
        self._obeyed = obeyed


class Folders(Protocol):
    """Folders in which jobs keep checkpoints. `adapters/checkpoint_folders.py` is the real one."""

    def serve(self, cluster_id: str) -> None:
        """Give the folders of this cluster from now on; jobs of another have the same numbers. Empty = unknown."""
        ...

    def keep(self, jobs: Iterable[JobId]) -> None:
        """Note which jobs have tasks here: their folders stay, however old they are."""
        ...

    async def claim(self, job: JobId) -> str:
        """Return the path of the job's folder, which all its attempts and ranks share; empty = there is none.

        It is made by the job's own process, so that nothing else waits for a storage that hangs.

        Raises: OSError with the path when the job can't have it now.
        """
        ...

    def close(self, job: JobId) -> None:
        """Remove the job's folder if it is empty, since no task of the job is left here."""
        ...


class NoFolders:
    """A node that keeps no checkpoints: jobs see no STOKER_CHECKPOINT_DIR."""

    def serve(self, cluster_id: str) -> None:
        return None

    def keep(self, jobs: Iterable[JobId]) -> None:
        return None

    async def claim(self, job: JobId) -> str:
        return ""

    def close(self, job: JobId) -> None:
        return None


class TaskRunning(msgspec.Struct, frozen=True, kw_only=True):
    """Report that the runner started a task's process."""

    key: TaskKey
    pid: int
    at: Instant


class TaskEnding(msgspec.Struct, frozen=True, kw_only=True):
    """Report that the leader of a task has ended, or was told to; its tree isn't proved gone."""

    key: TaskKey


class TaskOver(msgspec.Struct, frozen=True, kw_only=True):
    """Report that a task's tree is gone and its end record is on disk."""

    key: TaskKey
    end: TaskEnd


class TaskForgotten(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to a `recall`: no record of that task is kept (any more)."""

    key: TaskKey


class SiteProgramEnded(msgspec.Struct, frozen=True, kw_only=True):
    """Report that a prolog or an epilog is over that wrote something or failed."""

    key: TaskKey
    program: str
    """`prolog` or `epilog`."""
    fault: str
    """What is wrong with the node; empty = nothing. The end of the task says it too."""
    output: str
    """The last of what it wrote."""


class RunnerInventory(msgspec.Struct, frozen=True, kw_only=True):
    """First report on each connection: every record that the runner holds, after its own search for leftovers."""

    tasks: tuple[TaskStatus, ...]
    """Those that have ended too, as `ENDED` and oldest first."""
    ends: tuple[TaskOver, ...]
    """Ends that the control plane hasn't been heard to have. Of the others `recall` tells each."""
    keeps_leases: bool = False
    """R8, also when this very runner is killed or stopped. False = a runner of an older version, or it has no guard."""
    fault: str | None = ""
    """As in `RunnerHealth`. None = a runner of an older version, which doesn't answer `ask`."""
    tasks_max: int = 0
    """Tasks that it takes at once, since it is short of something. 0 = as many as there are CPUs."""
    short_of: str = ""
    """Of what, in words."""
    cgroups: bool = True
    """Whether each task has a cgroup, in which it is held and ended as a whole. True = or a runner of an older version,
    which doesn't say."""
    keeps_scripts: bool = True
    """Whether it knows scripts that come with a start. False = a runner of an older version."""
    notes: tuple[str, ...] = ()
    """What it can't hold tasks to, in sentences for people."""
    runs_containers: bool = True
    """Whether it knows containers. False = a runner of an older version, which would start a bare process."""


class RunnerHealth(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to an `ask`: what keeps the runner from starting tasks and from reporting ends; empty = nothing."""

    fault: str


class LeasesUnkept(msgspec.Struct, frozen=True, kw_only=True):
    """Report that R8 holds no longer if this runner is killed: its guard is gone. The next runner has another."""


class RunnerGone(msgspec.Struct, frozen=True, kw_only=True):
    """Report that the runner process died. The next `connect` starts another, which sweeps what this one left."""

    error: str


RunnerReport = (
    RunnerInventory
    | RunnerHealth
    | TaskRunning
    | TaskEnding
    | TaskOver
    | TaskForgotten
    | SiteProgramEnded
    | LeasesUnkept
    | RunnerGone
)


class StartTask(msgspec.Struct, frozen=True, kw_only=True):
    """A start that the daemon has checked: epoch current, GPUs free here."""

    start: Start
    env: dict[str, str]
    """The whole environment of the process."""
    folder: str = ""
    """Made before the process runs, unless it is there. Empty = none."""
    memory_mb: int = 0
    """Limit of a task that asked for no memory. 0 = none."""
    placement: Placement = Placement()
    container: Mapping[str, object] | None = None
    """Run it in this container, whose image is here: `ContainerFields` of `runner.protocol`. None = as a process."""

    def __repr__(self) -> str:
        return f"StartTask({self.start!r})"  # its environment may hold secrets


class TaskWarning(msgspec.Struct, frozen=True, kw_only=True):
    """Warning to a task's processes that they are to end."""

    signal: int
    """Sent to every process (R7). 0 = none."""
    text: str
    """Content of the file that STOKER_PREEMPT_FILE names, which is written before the signal is sent."""
    lead_ms: int = 0
    """How long after it a stop terminates them, unless the leader has ended."""


class LogSlice(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of a task's output from `offset`; `size` counts all that was ever written."""

    offset: int
    data: bytes
    size: int
    ended: bool


class Runner(Protocol):
    """The process that starts jobs and outlives the agent.

    Rules: R1  a start whose record exists is answered by what the record knows, never acted on again
           R2  the start record is on disk before the process exists, the end record before the end is reported; but a
           task of which the disk took no record is over at once
           R3  one `TaskOver` per key, when the whole tree is gone
           R4  an end is kept for 24 h or until newer than `ends_max` others, also after `settle`
           R5  after a kill of the runner the next one sweeps and reports `runner_lost` for what it finds open
           R6  a call raises OSError when the runner has died; RunnerGone follows on the report stream
           R7  a signal goes to every process of a task's tree. Shells are spared SIGUSR1 and SIGUSR2 unless they catch
               them: they would die of them, and with them the program that they wait for, which may know them
           R8  a task whose `lease_ms` isn't 0 is killed without grace, and ends `lease_ended`, once so much time has
               passed since the newest moment that `answered` named, whatever else lives; time in which the machine or
               the runner was suspended counts, and what is over then is killed before anything else is said or done
       R9  a warning's file is whole before its signal is sent. Of several stops that which ends first holds, and one
           that would end no sooner than an earlier one changes nothing: it is neither written nor sent
    """

    async def connect(self) -> None:
        """Find the runner of this node or start one. Raises OSError when neither works."""
        ...

    def reports(self) -> AsyncGenerator[RunnerReport, None]:
        """Yield the reports of the runner: RunnerInventory first, RunnerGone last."""
        ...

    async def start(self, task: StartTask) -> None: ...

    async def stop(self, key: TaskKey, grace_ms: int, warning: TaskWarning | None = None) -> None:
        """Terminate the tree, after a warning if there is one, and kill what is left after the grace (R9).

        Stopping an unknown key does nothing.
        """
        ...

    async def warn(self, key: TaskKey, warning: TaskWarning, once: int) -> None:
        """Warn a task that runs (R9), unless it was warned under this number. An unknown key changes nothing."""
        ...

    async def signal(self, key: TaskKey, number: int) -> None:
        """Send a signal to every process of a task (R7). Signalling a key that isn't open does nothing."""
        ...

    async def settle(self, key: TaskKey) -> None:
        """Note that the control plane has this end on disk. Settling an unknown key does nothing."""
        ...

    async def recall(self, key: TaskKey) -> None:
        """Report the end of this task again: TaskOver, or TaskForgotten. Nothing is said of one that is open."""
        ...

    async def answered(self, at: Mono) -> None:
        """Note that an active control plane has answered a beat that was sent then, on the agent's clock (R8).

        An instruction that came after it had heard what was sent then is such an answer too. Older moments than those
        named before change nothing. Called before any `start` that came on the same stream.
        """
        ...

    def revoke(self, key: TaskKey) -> bool:
        """Keep a task that was sent to the runner from being started. False = it may have been already.

        For a runner that doesn't answer; what it says of the task later is that it never started. Raises OSError.
        """
        ...

    def ask(self) -> None:
        """Ask for a `RunnerHealth`, without waiting for anything. A runner that has died is told by RunnerGone."""
        ...

    async def read_log(self, key: TaskKey, offset: int, limit: int) -> LogSlice:
        """Read up to `limit` bytes of a task's output; a negative offset counts from the end.

        Raises OSError when there is no such output.
        """
        ...

    async def renounce(self) -> None:
        """Tell the runner to kill every task, forget every record and end; RunnerGone follows.

        Its records were another cluster's, which may have given the same numbers to other jobs.
        """
        ...

    async def shutdown(self) -> None:
        """Kill every task, then end the runner. For `up` and `demo`."""
        ...


class Dialer(Protocol):
    """Way to ports on which tasks of this node listen, and to sessions in them."""

    async def enter(self, key: TaskKey, opening: SessionOpening) -> "tuple[asyncio.StreamReader, asyncio.StreamWriter]":
        """Connect to a session in a task, which answers by frames of its own. Raises: OSError, with text for people."""
        ...

    async def dial(self, key: TaskKey, port: int) -> "tuple[asyncio.StreamReader, asyncio.StreamWriter]":
        """Connect to a port on which this very task listens. Raises: OSError, whose text is for people."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPorts:
    """Ports that the daemon works with."""

    link: Link
    runner: Runner
    clock: Clock
    entropy: Entropy
    telemetry: Telemetry
    folders: Folders = field(default_factory=NoFolders)
    fence: Fence = field(default_factory=NoFence)
    locality: Locality = field(default_factory=NoLocality)
    containers: Containers = field(default_factory=NoContainers)
    dialer: Dialer | None = None
    """None = nobody is let through to the ports of tasks."""
    gpus: GpuCare | None = None
    """None = `NoGpuCare`."""
