"""Instructions to an agent: start, stop, warn or signal a task.

Instructions are pushed at once and at least once. Each carries the attempt and the epoch, and acts once because the
runner keeps a record for each (job, attempt, rank).
"""

from typing import Final

import msgspec

from stoker.brain.domain.container import ContainerOptions
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

    tty: bool = False
    """Its standard streams are a terminal, which the node keeps for its whole life."""
    stays: bool = False
    """It goes on though nobody is connected to its terminal."""
    image: str = ""
    """Run it in a container of this image. Empty = as a process, unless the node puts every job into one."""
    container: ContainerOptions | None = None
    """What the job says of its container. None = nothing."""

    def __repr__(self) -> str:
        return f"Start({self.key}, epoch {self.epoch})"  # its environment may hold secrets


class StopNotice(msgspec.Struct, frozen=True, kw_only=True):
    """Notice to a task's processes, before the terminate signal, that they are to go, and why."""

    cause: StopCause
    lead_ms: int = 0
    """How long before the terminate signal the notice is given."""
    signal: int = 0
    """Sent with it to every process. 0 = none."""
    for_job: str = ""
    """Id, as people write it, of the job that gets the GPUs. Empty = none does."""


class Stop(msgspec.Struct, frozen=True, kw_only=True, tag="stop"):
    """Instruction to terminate a task, wait `grace_ms`, kill it, verify its process tree, and report the end.

    With a notice, that is given first, and its lead time passes before the terminate signal unless the task ends.
    """

    key: TaskKey
    epoch: Epoch
    grace_ms: int
    cause: StopCause | None = None
    """None for an orphan task: one that isn't live in the cluster state."""
    notice: StopNotice | None = None


class Signal(msgspec.Struct, frozen=True, kw_only=True, tag="signal"):
    """Instruction to signal every process of a task, sent once and ignored where the task isn't open."""

    key: TaskKey
    epoch: Epoch
    signal: int
    """1 to `SIGNAL_MAX`, as Linux numbers them."""


class Warn(msgspec.Struct, frozen=True, kw_only=True, tag="warn"):
    """Instruction to give a task notice that its time limit is near. It acts once for each limit.

    It is no order to end: that comes with the limit, unless the job is given another one meanwhile.
    """

    key: TaskKey
    epoch: Epoch
    notice: StopNotice
    grace_ms: int
    """Between the terminate signal, which comes with the limit, and the kill signal."""
    limit_ms: int


SIGNAL_MAX: Final = 64
Instruction = Start | Stop | Signal | Warn
