"""Between which two Protocols does the daemon's logic sit?

`link_grpc.py` and `runner_socket.py` stand behind them in production, simulated twins in `tests/rig`; both pass the
same contract tests.
"""

from collections.abc import AsyncIterator
from typing import Protocol

import msgspec

from stoker.brain.domain.ids import Epoch
from stoker.brain.domain.instruction import Instruction, Start, TaskKey
from stoker.brain.domain.job import TaskEnd
from stoker.brain.domain.report import LogChunk, LogRequest, Registration, Report, TaskFinished, TaskStatus
from stoker.brain.domain.units import Instant


class LinkDown(Exception):
    """The control plane can't be reached or the stream broke. The message says which address and why."""


class LinkRefused(Exception):
    """The control plane answered and refused this agent; trying again at once won't help. Carries its message."""


class LinkSession(Protocol):
    """One stream to an active control plane. Every method raises LinkDown once it is broken."""

    @property
    def epoch(self) -> Epoch: ...

    @property
    def heartbeat_s(self) -> float:
        """How often this control plane wants a Beat. Greater than 0."""
        ...

    async def send(self, report: Report) -> None: ...

    def instructions(self) -> AsyncIterator[Instruction]:
        """Ends or raises LinkDown when the stream breaks."""
        ...

    async def finish(self, finished: TaskFinished) -> None:
        """Returns when the control plane has the end on disk."""
        ...

    def log_requests(self) -> AsyncIterator[LogRequest]: ...

    async def send_log(self, chunk: LogChunk) -> None: ...

    async def close(self) -> None: ...


class Link(Protocol):
    async def connect(self, registration: Registration) -> LinkSession:
        """Register and open the streams, trying each configured address once.

        Raises: LinkDown when none answers, LinkRefused when one refuses.
        """
        ...


class TaskRunning(msgspec.Struct, frozen=True, kw_only=True):
    """The runner started a task's process."""

    key: TaskKey
    pid: int
    at: Instant


class TaskEnding(msgspec.Struct, frozen=True, kw_only=True):
    """The leader of a task has ended, or it was told to; its tree isn't proved gone."""

    key: TaskKey


class TaskOver(msgspec.Struct, frozen=True, kw_only=True):
    """A task's tree is gone and its end record is on disk."""

    key: TaskKey
    end: TaskEnd


class RunnerInventory(msgspec.Struct, frozen=True, kw_only=True):
    """First report on each connection: every record the runner holds, after its own search for leftovers."""

    tasks: tuple[TaskStatus, ...]
    ends: tuple[TaskOver, ...]
    """Ends that the control plane hasn't been heard to have."""


class RunnerGone(msgspec.Struct, frozen=True, kw_only=True):
    """The runner process died. A new one is started by the next `connect`, which sweeps what the old one left."""

    error: str


RunnerReport = RunnerInventory | TaskRunning | TaskEnding | TaskOver | RunnerGone


class StartTask(msgspec.Struct, frozen=True, kw_only=True):
    """A start that the daemon has checked: epoch current, GPUs free here."""

    start: Start
    env: dict[str, str]
    """The whole environment of the process."""
    folder: str = ""
    """Made before the process runs, unless it is there. Empty = none."""


class LogSlice(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of a task's output from `offset`; `size` is all that was ever written."""

    offset: int
    data: bytes
    size: int
    ended: bool


class Runner(Protocol):
    """The process that starts jobs and outlives the agent.

    Rules: R1  a start whose record exists is answered by what the record knows, never acted on again
           R2  the start record is on disk before the process exists, the end record before the end is reported
           R3  one `TaskOver` per key, when the whole tree is gone
           R4  an end is kept for 24 h or until newer than `ends_max` others, also after `settle`
           R5  after a kill of the runner the next one sweeps and reports `runner_lost` for what it finds open
           R6  a call raises OSError when the runner has died; RunnerGone follows on the report stream
           R7  a signal goes to every process of a task's tree. Shells are spared SIGUSR1 and SIGUSR2 unless they catch
               them: they would die of them, and with them the program that they wait for, which may know them
    """

    async def connect(self) -> None:
        """Find the runner of this node or start one. Raises OSError when neither works."""
        ...

    def reports(self) -> AsyncIterator[RunnerReport]:
        """The one report stream: RunnerInventory first, RunnerGone last."""
        ...

    async def start(self, task: StartTask) -> None: ...

    async def stop(self, key: TaskKey, grace_ms: int) -> None:
        """Terminate the tree, kill what is left after the grace. Stopping an unknown key does nothing."""
        ...

    async def signal(self, key: TaskKey, number: int) -> None:
        """R7. Signalling a key that isn't open does nothing."""
        ...

    async def settle(self, key: TaskKey) -> None:
        """The control plane has this end on disk. Settling an unknown key does nothing."""
        ...

    async def read_log(self, key: TaskKey, offset: int, limit: int) -> LogSlice:
        """A negative offset counts from the end. Raises OSError when there is no such output."""
        ...

    async def shutdown(self) -> None:
        """Kill every task, then end the runner. For `up` and `demo`."""
        ...
