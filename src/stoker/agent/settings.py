"""Which settings does an agent have?

One file, `agent.yaml`; every key may also come from the environment (`STOKER__NODE__NAME`) or a flag. All of these are
process settings: they concern one node, change no decision of the cluster, and may differ from node to node.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Final, Literal

from stoker.agent.label import label_faults, taint_faults
from stoker.brain.domain.node import NODE_NAME
from stoker.ports import LogSettings

ADDRESSES_MAX: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    name: str = ""
    """Under which name the node joins. Empty = the machine's host name, which is what people look for."""
    address: str = ""
    """Host name or IP where other nodes reach this one; ranks of a gang meet there. Empty = the local address that is
    used towards the first control plane, which is right wherever the cluster has one network."""
    labels: dict[str, str] = field(default_factory=dict)
    """Words for `--where`: keys and values as Kubernetes has them. None by default. `stoker node label` sets others,
    and wins over these."""
    taints: tuple[str, ...] = ()
    """Keep away jobs that don't tolerate them; each is `key=value:NoSchedule` or `key:NoSchedule`. What runs here
    already goes on. None by default. `stoker node taint` puts on others."""
    cpus: int = 0
    """Whole CPUs to offer. 0 = as measured, or as the GPU script says."""
    memory_mb: int = 0
    """MiB of host memory to offer. 0 = as measured, or as the GPU script says."""

    def faults(self) -> list[str]:
        found = []
        if self.name and not NODE_NAME.fullmatch(self.name):
            found.append(f"name: {self.name[:80]!r} isn't 1 to 63 letters, digits, dots, dashes or underscores")
        found += [*label_faults(self.labels), *taint_faults(self.taints)]
        found += [f"{key}: {value} is below 0" for key, value in self._amounts() if value < 0]
        return found

    def _amounts(self) -> tuple[tuple[str, int], ...]:
        return (("cpus", self.cpus), ("memory_mb", self.memory_mb))


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlConnectionSettings:
    addresses: tuple[str, ...] = ("127.0.0.1:9090",)
    """HOST:PORT of each control plane's gRPC listener; name the active one and its standbys. They are tried in this
    order, from the one that served last."""
    token_file: str = ""
    """File with the token to join with, of role `agent` and readable by its owner alone. It is read anew at each
    connect, so a token is changed by replacing the file. Empty = join without one, which `stoker up` allows."""

    def faults(self) -> list[str]:
        found = []
        if not 1 <= len(self.addresses) <= ADDRESSES_MAX:
            found.append(f"addresses: {len(self.addresses)} addresses; 1 to {ADDRESSES_MAX} are wanted")
        for address in self.addresses:
            _, _, port = address.rpartition(":")
            if not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65_535):
                found.append(f"addresses: {address[:80]!r} isn't HOST:PORT")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSettings:
    detection: Literal["auto", "nvml", "nvidia-smi", "scripted"] = "auto"
    """How GPUs are found. auto = the script if one is named, else nvidia-smi if it is on PATH, else none."""
    script: str = ""
    """YAML file with simulated GPUs, for `scripted`. Empty = none."""
    probe_again_s: float = 30.0
    """Seconds between two looks while no GPU, or not every GPU, could be read: often enough that a node whose driver
    comes up late is used soon, seldom enough that a broken nvidia-smi costs nothing."""

    def faults(self) -> list[str]:
        found = []
        if self.detection == "nvml":
            found.append("detection: this version can't ask NVML yet; `nvidia-smi` finds the same GPUs")
        if self.detection == "scripted" and not self.script:
            found.append("script: must name a file when detection is `scripted`")
        if self.script and self.detection not in ("auto", "scripted"):
            found.append(f"script: is set, but detection is `{self.detection}`, which would not read it")
        if self.probe_again_s < 1:
            found.append(f"probe_again_s: {self.probe_again_s} is below 1 second")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorSettings:
    kinds: tuple[Literal["process"], ...] = ("process",)
    """Ways to run a job here. Containers come later."""
    default_image: str = ""
    """Image of jobs that name none. Not supported by this version: anything but the empty text is refused."""
    allow_root: bool = False
    """Where the agent is root, each job runs as the Unix user of its token; one that names no user, or root, is refused
    unless this is true. Then a job without a user runs as root. Not by default: whoever may submit could then do
    anything on this node. An agent that isn't root runs every job as its own account, and this has no effect."""
    jobs_end_with_agent: bool = False
    """End every job when the agent stops, and the agent when its parent dies. For `stoker up` and `stoker demo`; a
    daemon leaves jobs running so that an upgrade loses nothing."""
    checkpoint_dir: str = ""
    """Folder under which each job gets its STOKER_CHECKPOINT_DIR, which belongs to the job's user alone; name shared
    storage where jobs may move between nodes. Where root is nobody on that storage, every user must be able to make
    folders in it (mode 1777). Empty = `checkpoints` in data_dir."""
    log_head_mb: int = 8
    """MiB kept from the beginning of a task's output, where a wrong start shows."""
    log_tail_mb: int = 24
    """MiB kept from its end, where the traceback is. What lies between is dropped."""

    def faults(self) -> list[str]:
        found = []
        if not self.kinds:
            found.append("kinds: needs at least one, `process`")
        if self.default_image:
            found.append("default_image: this version runs plain processes only; use the empty text")
        for key, value in (("log_head_mb", self.log_head_mb), ("log_tail_mb", self.log_tail_mb)):
            if not 1 <= value <= 65_536:
                found.append(f"{key}: {value} isn't between 1 and 65536 MiB")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    program: ClassVar[str] = "stoker agent"
    data_dir: Path = Path("/var/lib/stoker-agent")
    """Folder of this agent alone: records of tasks, their output, the lock."""
    node: NodeSettings = field(default_factory=NodeSettings)
    control: ControlConnectionSettings = field(default_factory=ControlConnectionSettings)
    gpu: GpuSettings = field(default_factory=GpuSettings)
    executor: ExecutorSettings = field(default_factory=ExecutorSettings)
    log: LogSettings = field(default_factory=LogSettings)
