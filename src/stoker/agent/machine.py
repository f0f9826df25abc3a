"""The machine as a node: its name, address, boot, CPUs, memory and GPUs, and the account of this process.

All but the GPUs is read once, when the agent starts. CPUs and memory are what this process may use, so that an agent in
a container offers its share and not its host's.

Rules: W1  a probe that fails never stops the agent: the node joins with what there is
       W2  while no GPU, or not every GPU, could be read, the agent looks again and again, and offers more once it sees
           more; meanwhile the node says what couldn't be read, and why
       W3  a look that sees less than before changes nothing: a driver that hiccups must not take GPUs from under
           running jobs (watching their health is a later step)
Source: `cpu.max` and `memory.max` as in the kernel's Documentation/admin-guide/cgroup-v2.rst; boot id as in random(4);
        death signal as in prctl(2); the variables are those that POSIX says login sets (IEEE 1003.1, 8.3).
"""

import ctypes
import os
import pwd
import signal
import socket
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final

from stoker.agent.settings import AgentSettings
from stoker.brain.domain.errors import StokerError, refuse
from stoker.brain.domain.gpu import Gpu
from stoker.brain.domain.ids import NodeName
from stoker.brain.domain.label import parse_taint, taint_text
from stoker.brain.domain.node import NODE_NAME, Inventory
from stoker.brain.domain.report import Registration
from stoker.ports import Clock, GpuFault, ProbeResult, Telemetry

_ROOT: Final = Path("/")
_BOOT_ID: Final = "proc/sys/kernel/random/boot_id"
_MEMINFO: Final = "proc/meminfo"
_CGROUP: Final = "sys/fs/cgroup"
_MIB: Final = 1 << 20
_PR_SET_PDEATHSIG: Final = 1
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def node_name(settings: AgentSettings, host: str | None = None) -> NodeName:
    """Return the name in the settings, else that of the host. Raises: StokerError `bad_node_name`."""
    name = settings.node.name or (socket.gethostname() if host is None else host)
    if NODE_NAME.fullmatch(name):
        return NodeName(name)
    raise StokerError(
        refuse(
            "bad_node_name",
            f"this machine's host name {name[:80]!r} can't name a node",
            "set node.name to 1 to 63 letters, digits, dots, dashes or underscores",
            name=name[:80],
        )
    )


class GpuWatch:
    """Watch over the GPUs that this node offers, which remembers the best look so far."""

    def __init__(self, probe: Callable[[], Awaitable[ProbeResult]], telemetry: Telemetry) -> None:
        self._probe = probe
        self._telemetry = telemetry
        self._seen = ProbeResult(gpus=())
        self._told = ""

    async def look(self) -> ProbeResult:
        """Probe once, and return the GPUs to offer now."""
        try:
            found = await self._probe()
        except OSError as error:
            found = ProbeResult(gpus=(), faults=(GpuFault(where="nvidia-smi", error=str(error)),))
        self._tell(_fault_text(found))
        if {gpu.uuid for gpu in self._seen.gpus} <= {gpu.uuid for gpu in found.gpus}:
            self._seen = found
        return self._seen

    async def until_settled(self, clock: Clock, every_s: float, changed: Callable[[ProbeResult], None]) -> None:
        """Probe every so many seconds until every GPU could be read (W2), and pass on what is better."""
        while not self._seen.gpus or self._seen.faults:
            await clock.sleep(every_s)
            before = self._seen
            after = await self.look()
            if after != before:
                changed(after)

    def _tell(self, trouble: str) -> None:
        """Once per trouble: a broken driver shouldn't fill the log."""
        if trouble and trouble != self._told:
            self._telemetry.warn("gpu_probe_failed", error=trouble)
        self._told = trouble


def _fault_text(found: ProbeResult) -> str:
    return "; ".join(f"{fault.where}: {fault.error}" for fault in found.faults)


def describe(settings: AgentSettings, name: NodeName, uid: str, found: ProbeResult, version: str) -> Registration:
    """Return the registration of this node. Settings win over the probe, and the probe over measuring."""
    node = settings.node
    gpus = tuple(
        Gpu(uuid=gpu.uuid, index=gpu.index, model=gpu.model, memory_mb=gpu.memory_mb, simulated=found.simulated)
        for gpu in found.gpus
    )
    inventory = Inventory(
        boot_id=boot_id(),
        address=node.address or local_address(settings.control.addresses[0]),
        gpus=gpus,
        cpus=node.cpus or found.cpus or usable_cpus(),
        memory_mb=node.memory_mb or found.memory_mb or usable_memory_mb(),
        labels=dict(node.labels),
        # By key and in the one form of each: the order in a file means nothing.
        taints=tuple(sorted(taint_text(parse_taint(text)) for text in node.taints)),
        executors=settings.executor.kinds,
        simulated=found.simulated,
        version=version,
        agent_uid=uid,
        gpu_fault=_fault_text(found),
        account=account_name(),
        allow_root=settings.executor.allow_root,
    )
    return Registration(node=name, inventory=inventory)


def account_name() -> str:
    """Return the account of this process: `root` for uid 0, by whatever name; the uid of one without a name."""
    uid = os.geteuid()
    if uid == 0:
        return "root"
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def account_variables() -> dict[str, str]:
    """Return PATH, and the variables of this process's account; one without a passwd entry (a container) has no name.

    TMPDIR is left alone: a job's temporary files go where the machine's do.
    """
    variables = {"PATH": _PATH}
    try:
        account = pwd.getpwuid(os.getuid())
    except KeyError:
        return variables | {"HOME": "/"}
    name = account.pw_name
    return variables | {"HOME": account.pw_dir, "LOGNAME": name, "USER": name, "SHELL": account.pw_shell or "/bin/sh"}


def boot_id(root: Path = _ROOT) -> str:
    """Return the id of this boot of the machine."""
    return (root / _BOOT_ID).read_text().strip()


def usable_cpus(root: Path = _ROOT) -> int:
    """Return the whole CPUs that this process may use, at least 1."""
    allowed = len(os.sched_getaffinity(0))
    quota, _, period = _first_line(root / _CGROUP / "cpu.max").partition(" ")
    if quota.isdigit() and period.isdigit() and int(period) > 0:
        allowed = min(allowed, int(quota) // int(period))
    return max(1, allowed)


def usable_memory_mb(root: Path = _ROOT) -> int:
    """Return the MiB of memory that this process may use."""
    total = _meminfo(root)["MemTotal"] // _MIB
    limit = _first_line(root / _CGROUP / "memory.max")
    return min(total, int(limit) // _MIB) if limit.isdigit() else total


def local_address(towards: str) -> str:
    """Return our own address on the way to HOST:PORT. Sends nothing: a datagram socket only asks for a route."""
    host, _, port = towards.rpartition(":")
    try:
        family, kind, _, _, target = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError:  # no route or no such name now; peers can at best try the host's name
        return socket.gethostname()


def die_with_parent() -> None:
    """Ask the kernel for a SIGTERM when the process that started us ends, however it ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")


def _meminfo(root: Path) -> Mapping[str, int]:
    """Bytes by name."""
    pairs = (line.split() for line in (root / _MEMINFO).read_text().splitlines())
    return {parts[0].rstrip(":"): int(parts[1]) * 1024 for parts in pairs if len(parts) >= 2}


def _first_line(path: Path) -> str:
    """Empty when there is no such file: no cgroup v2, or the root group, which has no limits."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
