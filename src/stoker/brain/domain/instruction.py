"""Instructions to an agent: start, stop or signal a task.

Instructions are pushed at once and at least once. Each carries the attempt and the epoch, and acts once because the
runner keeps a record for each (job, attempt, rank).
"""

from typing import Final

import msgspec

from stoker.brain.domain.gpu import WHOLE_GPU
from stoker.brain.domain.ids import Epoch, GpuUuid, JobId
from stoker.brain.domain.job import CommandLine, StopCause, TextEncoding


class TaskKey(msgspec.Struct, frozen=True, order=True):
    """Permanent name of one task of one attempt."""

    job: JobId
    attempt: int
    rank: int


class Start(msgspec.Struct, frozen=True, kw_only=True, tag="start"):
    """Instruction to start one task; `env` lacks only the node's own additions (PATH defaults, HOME)."""

    key: TaskKey
    epoch: Epoch
    command: CommandLine
    env: dict[str, str]
    workdir: str
    """Empty = a folder of the attempt's own."""
    gpus: tuple[GpuUuid, ...]
    cpus: int
    gpu_share: int = WHOLE_GPU
    """Thousandths that it holds of each of its GPUs; others may hold the rest, unless this is WHOLE_GPU."""
    memory_mb: int
    """Limit to enforce where the node can. 0 = none."""
    user: str = ""
    tenant: str = ""
    """For programs of the site."""
    probe_port: int = 0
    """Bind this once before starting, and answer `port_taken` when it can't be bound. 0 = don't."""
    output: str = ""
    """File on the node, absolute or relative to the working directory, patterns expanded, that gets a copy of what the
    task writes. Emptied first, unless this is a later attempt or another task of the attempt has it open there already.
    Empty = none; the output that `stoker logs` shows is kept in any case."""
    error: str = ""
    """The same for standard error alone. Empty = it goes where `output` goes."""
    lease_ms: int = 0
    """Kill it, without grace, once no active control plane has answered this node for so long. 0 = never."""
    append: bool = False
    """Never empty the two files: a lower rank of this attempt, perhaps on another node, writes to them too."""
    gang_port_min: int = 0
    gang_port_max: int = 0
    """The node chooses a port for this task, which meets nobody elsewhere: a free one of this machine, beyond these,
    which the engine gives out. 0 = there is one in `env`."""
    host_file: str = ""
    """Content of the file that STOKER_HOSTFILE names (`environment.host_file`). Empty = no such file."""
    encoding: TextEncoding = TextEncoding.UTF_8
    """Of `command`, `script`, `env`, `workdir`, `output` and `error`."""
    script: str = ""
    """Text of the script to run, with `command` as its name and arguments. Empty = the command is one of the node's."""

    def __repr__(self) -> str:
        return f"Start({self.key}, epoch {self.epoch})"  # its environment may hold secrets


class Stop(msgspec.Struct, frozen=True, kw_only=True, tag="stop"):
    """Instruction to terminate a task, wait `grace_ms`, kill it, verify its process tree, and report the end."""

    key: TaskKey
    epoch: Epoch
    grace_ms: int
    cause: StopCause | None = None
    """None for an orphan task: one that isn't live in the cluster state."""


class Signal(msgspec.Struct, frozen=True, kw_only=True, tag="signal"):
    """Instruction to signal every process of a task, sent once and ignored where the task isn't open."""

    key: TaskKey
    epoch: Epoch
    signal: int
    """1 to `SIGNAL_MAX`, as Linux numbers them."""


SIGNAL_MAX: Final = 64
Instruction = Start | Stop | Signal
