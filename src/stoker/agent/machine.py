"""The machine as a node: its name, address, boot, CPUs, memory and GPUs, and the account of this process.

All but the GPUs is read once, when the agent starts. CPUs and memory are what this process may use, so that an agent in
a container, or in a unit with limits, offers its share and not its host's; `OWN_MB` of that memory aren't offered.

Rules: W1  a probe that fails never stops the agent: the node joins with what there is
       W2  the agent looks again and again, more often while no GPU, or not every GPU, could be read; it offers more
           once it sees more; meanwhile the node says what couldn't be read, and why
       W3  one look that sees less than before changes nothing: a driver may hiccup. What `LOOKS_MAX` in a row don't see
           is no longer offered; what runs there goes on
       W4  a GPU that this machine is known to have and that isn't listed is a fault until it is back, also when the
           agent is started anew, unless another fault may be the reason; one that names another GPU isn't. Only who
           takes a GPU out knows that it is gone for good, and says so: removes the file of the known ones
           (`known_gpus.py`) and restarts the agent. Simulated GPUs are those of their script
       W6  a MIG instance that isn't listed while its GPU is there was taken away by who divides that, and isn't known
           any more; nor is a GPU of which instances are listed. While the GPU has none at all, they are waited for
       W5  what the first look without a fault lists is other hardware if none of the known GPUs is among it, or if new
           ones stand in for all that are gone: then only what is listed is known
Source: `cpu.max` and `memory.max` as in the kernel's Documentation/admin-guide/cgroup-v2.rst; boot id as in random(4);
        death signal as in prctl(2); the variables are those that POSIX says login sets (IEEE 1003.1, 8.3).
"""

import ctypes
import os
import pwd
import re
import resource
import signal
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from stoker.agent.known_gpus import NAME as KNOWN_NAME
from stoker.agent.known_gpus import KnownGpus
from stoker.agent.runner.site_program import program_fault
from stoker.agent.settings import ADDRESS, LIMITS, AgentSettings, ExecutorSettings, GpuSettings, job_limits
from stoker.brain.domain.errors import StokerError, refuse
from stoker.brain.domain.gpu import Gpu, index_text
from stoker.brain.domain.health import GpuCondition, HealthState
from stoker.brain.domain.ids import GpuUuid, NodeName
from stoker.brain.domain.label import parse_taint, taint_text
from stoker.brain.domain.node import CONTAINER, NODE_NAME, Inventory
from stoker.brain.domain.report import Registration
from stoker.ports import Clock, GpuFault, ProbedGpu, ProbeResult, Telemetry

_ROOT: Final = Path("/")
_BOOT_ID: Final = "proc/sys/kernel/random/boot_id"
_MEMINFO: Final = "proc/meminfo"
_CGROUP: Final = "sys/fs/cgroup"
_MIB: Final = 1 << 20
OWN_MB: Final = 128
"""Memory that isn't offered: agent and runner have 35 MiB, and what opens the file of a task's output 1 MiB each."""
TASK_MB: Final = 8
"""Less, and a shell and its program find none: where there is so little, it bounds the CPUs that are offered."""
FILES_SOFT: Final = 65_536
_PR_SET_PDEATHSIG: Final = 1
LOOKS_MAX: Final = 2
_NAMED_MAX: Final = 3
"""GPUs that are named, of those that aren't listed any more: the fault is cut, and what to do stands at its end."""
_UUIDS: Final = ("GPU-", "MIG-")
"""Beginnings of UUIDs."""
_TAKEN_OUT: Final = f"if taken out for good, remove `{KNOWN_NAME}` in its agent's data folder and restart the agent"
_CONTAINER_ID: Final = re.compile(r"[/-]([0-9a-f]{12})[0-9a-f]{52}(?:\.scope)?(?=[/\n])")
_CGROUP_MAX: Final = 65_536
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
    """Watch over the GPUs that this node offers."""

    def __init__(
        self,
        probe: Callable[[], Awaitable[ProbeResult]],
        file: KnownGpus,
        telemetry: Telemetry,
        *,
        asked: str = "nvidia-smi",
    ) -> None:
        """`asked`: what the fault names when the probe answers nothing at all."""
        self._probe = probe
        self._asked = asked
        self._file = file
        self._telemetry = telemetry
        self._offered = ProbeResult(gpus=())
        self._known: dict[GpuUuid, ProbedGpu] = {gpu.uuid: gpu for gpu in file.read()}
        self._is_compared = False
        # Whether it was asked if this is still the hardware that was known at the start (W5).
        self._missed = 0
        # Looks in a row that didn't see all that is offered.
        self._told = self._told_hidden = ""

    @property
    def offered(self) -> ProbeResult:
        """The GPUs that are offered now."""
        return self._offered

    async def look(self) -> ProbeResult:
        """Probe once, and return the GPUs to offer now."""
        found = await self._found()
        self._tell(_fault_text(found))
        self._tell_hidden(found.hidden)
        here = {gpu.uuid for gpu in found.gpus}
        sees_less = any(gpu.uuid not in here for gpu in self._offered.gpus)
        self._missed = self._missed + 1 if sees_less else 0
        if self._missed in (0, LOOKS_MAX):
            self._missed = 0
            self._offered = found
        return self._offered

    async def _found(self) -> ProbeResult:
        try:
            found = await self._probe()
        except OSError as error:
            return ProbeResult(gpus=(), faults=(GpuFault(where=self._asked, error=str(error)),))
        unmeasured = {"memory_used_mb": None, "utilization_percent": None, "temperature_c": None, "power_w": None}
        same = (replace(gpu, **unmeasured) for gpu in found.gpus)  # what is never the same twice
        found = replace(found, gpus=tuple(same))
        if found.simulated:
            return found
        self._learn(found)
        self._forget_divided(found)
        self._file.keep(self._known.values())
        here = {gpu.uuid for gpu in found.gpus}
        gone = _unexplained([gpu for gpu in self._known.values() if gpu.uuid not in here], found.faults)
        return replace(found, faults=(*found.faults, *_gone_faults(gone))) if gone else found

    def _learn(self, found: ProbeResult) -> None:
        here = {gpu.uuid: gpu for gpu in found.gpus}
        if here and not found.faults and not self._is_compared:
            self._is_compared = True
            new, gone = here.keys() - self._known.keys(), self._known.keys() - here.keys()
            if len(new) == len(here) or len(new) >= len(gone):
                self._known = {}
        self._known |= here

    def _forget_divided(self, found: ProbeResult) -> None:
        """Forget GPUs that are divided into MIG instances now, and instances of GPUs that aren't any more (W6)."""
        here = {gpu.uuid for gpu in found.gpus}
        divided = {gpu.parent for gpu in found.gpus if gpu.parent}
        self._known = {
            uuid: gpu
            for uuid, gpu in self._known.items()
            if uuid in here or not (uuid in divided or gpu.parent in divided or gpu.parent in here)
        }

    async def watch(
        self, clock: Clock, again_s: float, settled_s: float, changed: Callable[[ProbeResult], None]
    ) -> None:
        """Look again and again, and pass on what has changed (W2).

        `again_s`: seconds between two looks while not all is seen. `settled_s`: else; 0 = no more looks then.
        """
        while True:
            is_settled = self._offered.gpus and not self._offered.faults and not self._missed
            if is_settled and not settled_s:
                return
            await clock.sleep(settled_s if is_settled else again_s)
            before = self._offered
            after = await self.look()
            if after != before:
                changed(after)

    def _tell_hidden(self, words: str) -> None:
        if words and words != self._told_hidden:
            self._telemetry.warn("gpus_hidden", error=words)
        self._told_hidden = words

    def _tell(self, trouble: str) -> None:
        """Once per trouble: a broken driver shouldn't fill the log."""
        if trouble and trouble != self._told:
            self._telemetry.warn("gpu_probe_failed", error=trouble)
        self._told = trouble


def _unexplained(gone: Sequence[ProbedGpu], faults: Sequence[GpuFault]) -> list[ProbedGpu]:
    """Return those that no fault explains (W4): each fault names a GPU by its UUID or index, and none of these."""
    indexes = {f"GPU {index_text(gpu.index)}" for gpu in gone}
    if any(fault.where not in indexes and not fault.where.startswith(_UUIDS) for fault in faults):
        return []
    named = {fault.where for fault in faults}
    return [gpu for gpu in gone if not named & {gpu.uuid, gpu.parent, f"GPU {index_text(gpu.index)}"}]


def _gone_faults(gone: Sequence[ProbedGpu]) -> tuple[GpuFault, ...]:
    pairs = [(f"GPU {index_text(gpu.index)}", f"{gpu.uuid} isn't listed any more") for gpu in gone[:_NAMED_MAX]]
    if len(gone) > _NAMED_MAX:
        pairs.append((f"{len(gone) - _NAMED_MAX} more", "not listed either"))
    *others, (where, error) = pairs
    return tuple(GpuFault(where=at, error=said) for at, said in (*others, (where, f"{error} ({_TAKEN_OUT})")))


def _fault_text(found: ProbeResult) -> str:
    return "; ".join(f"{fault.where}: {fault.error}" for fault in found.faults)


def describe(
    settings: AgentSettings,
    name: NodeName,
    uid: str,
    found: ProbeResult,
    version: str,
    conditions: Sequence[GpuCondition] = (),
) -> Registration:
    """Return the registration of this node. Settings win over the probe, and the probe over measuring.

    GPUs whose condition is not to be offered aren't among its GPUs: each is a fault, and so it is waited for (W4).
    """
    node, probed = settings.node, found
    found = _without_drained(probed, conditions)
    suspects = {each.uuid for each in conditions if each.state is HealthState.SUSPECT}
    here = {gpu.uuid for gpu in found.gpus}
    gpus = {
        gpu.uuid: Gpu(
            uuid=gpu.uuid,
            index=gpu.index,
            model=gpu.model,
            memory_mb=gpu.memory_mb,
            simulated=found.simulated,
            parent=gpu.parent,
            suspect=gpu.uuid in suspects,
            numa_node=gpu.numa_node,
            bus=gpu.bus,
        )
        for gpu in probed.gpus
    }
    cpus = node.cpus or found.cpus or usable_cpus()
    memory_mb, limits = node.memory_mb or found.memory_mb, ""
    if not memory_mb:
        memory_mb, limits = _offered_memory(settings.executor)
    offered = min(cpus, memory_mb // TASK_MB)
    fewer = offers_less(offered, cpus, f"tasks here may have only {memory_mb} MiB of memory") or limits
    inventory = Inventory(
        boot_id=boot_id(),
        address=node.address or local_address((settings.control.addresses or (ADDRESS,))[0]),
        gpus=tuple(gpu for uuid, gpu in gpus.items() if uuid in here),
        withheld=tuple(gpu for uuid, gpu in gpus.items() if uuid not in here),
        links=probed.links,
        cpus=offered,
        limits="; ".join(filter(None, (fewer, found.hidden))),
        memory_mb=memory_mb,
        labels=dict(node.labels),
        # By key and in the one form of each: the order in a file means nothing.
        taints=tuple(sorted(taint_text(parse_taint(text)) for text in node.taints)),
        executors=settings.executor.kinds,
        simulated=found.simulated,
        version=version,
        agent_uid=uid,
        gpu_fault=_fault_text(found),
        conditions=tuple(conditions),
        account=account_name(),
        allow_root=settings.executor.allow_root,
        mps=_mps_folder(settings.gpu),
    )
    return Registration(node=name, inventory=inventory)


def _without_drained(found: ProbeResult, conditions: Sequence[GpuCondition]) -> ProbeResult:
    kept = {each.uuid: each for each in conditions if not each.offered}
    if not kept:
        return found
    named = {fault.where for fault in found.faults}
    faults = tuple(
        GpuFault(where=gpu.uuid, error=f"{kept[gpu.uuid].state}: {kept[gpu.uuid].reason}")
        for gpu in found.gpus
        if gpu.uuid in kept and gpu.uuid not in named
    )
    here = {gpu.uuid for gpu in found.gpus} | named
    told = _fault_text(found)  # the watch names what is gone by its index
    lost = [each for uuid, each in kept.items() if uuid.startswith("MIG-") and uuid not in here and uuid not in told]
    faults += tuple(GpuFault(where=each.uuid, error=f"{each.state}: {each.reason}") for each in lost)
    gpus = tuple(gpu for gpu in found.gpus if gpu.uuid not in kept)
    return replace(found, gpus=gpus, faults=(*found.faults, *faults))


def without_containers(inventory: Inventory, fault: str) -> Inventory:
    """Return the inventory of a node that can run no containers for this reason; empty = it can. Others stay."""
    if not fault or CONTAINER not in inventory.executors:
        return inventory
    kinds = tuple(kind for kind in inventory.executors if kind != CONTAINER)
    return replace(inventory, executors=kinds, containers_fault=fault)


def _mps_folder(gpu: GpuSettings) -> str:
    """Return the pipe folder of MPS that tasks are told of; empty = none."""
    listens = (Path(gpu.mps_pipe_dir) / "control").exists()
    return gpu.mps_pipe_dir if gpu.mps == "on" or (gpu.mps == "auto" and listens) else ""


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


def _offered_memory(executor: ExecutorSettings) -> tuple[int, str]:
    """Return the MiB of memory to offer, and in words why it is less than there is: what one process may have.

    A task is promised its memory, and may want all of it in one process.
    """
    offered = usable = max(TASK_MB, usable_memory_mb() - OWN_MB)
    limits, why = job_limits(executor), ""
    for name, option in (("as", "-v"), ("data", "-d")):
        soft, _ = limits.get(name) or resource.getrlimit(LIMITS[name])
        most = max(TASK_MB, soft // _MIB)
        if soft != resource.RLIM_INFINITY and most < offered:
            offered, why = most, f"a process here may have no more (`ulimit {option}`)"
    return offered, f"offers {offered} of {usable} MiB of memory, since {why}" if why else ""


def default_limits() -> dict[str, tuple[int, int]]:
    """Return the soft and the hard limits of jobs, by name, that are raised where the settings say nothing of them.

    NCCL, RDMA and pinned buffers lock memory, and loaders of data open thousands of files: both as far as this process
    may let them, files to `FILES_SOFT` at most, since programs exist that close each possible one.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    try:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (soft, resource.RLIM_INFINITY))
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (soft, hard))
        locked = resource.RLIM_INFINITY
    except (OSError, ValueError):
        locked = hard
    files, files_max = resource.getrlimit(resource.RLIMIT_NOFILE)
    more = FILES_SOFT if files_max == resource.RLIM_INFINITY else min(FILES_SOFT, files_max)
    raised = {"memlock": (locked, locked)}
    return raised if files == resource.RLIM_INFINITY or files >= more else {**raised, "nofile": (more, files_max)}


def check_limits(executor: ExecutorSettings) -> None:
    """Raises: StokerError `bad_settings` for limits of jobs that this process can't give them: the kernel is asked."""
    for name, (_, wanted) in job_limits(executor).items():
        soft, hard = resource.getrlimit(LIMITS[name])
        if wanted == hard or _is_lower(wanted, hard):
            continue
        try:
            resource.setrlimit(LIMITS[name], (soft, wanted))
        except (OSError, ValueError) as error:
            unit = f"give the agent's unit `Limit{name.upper()}=`"
            why, hint = "this account may not raise it", f"{unit}, run the agent as root, or set it lower"
            if os.geteuid() == 0:
                why, hint = (
                    "this container may not raise it",
                    f"{unit}, or the container CAP_SYS_RESOURCE, or set it lower",
                )
            if name == "nofile" and os.geteuid() == 0:
                why = f"{why}, or the kernel allows no more (`sysctl fs.nr_open`)"
            message = f"executor.limits: {name}: {executor.limits[name]} is above {hard}, and {why}"
            raise StokerError(refuse("bad_settings", message, hint, limit=name, hard=hard)) from error
        resource.setrlimit(LIMITS[name], (soft, hard))


def check_site_programs(executor: ExecutorSettings, check: str = "") -> None:
    """Raises: StokerError `bad_settings` for a prolog, an epilog or a check that may not be run."""
    programs = {"executor.prolog": executor.prolog, "executor.epilog": executor.epilog, "health.check": check}
    for name, path in programs.items():
        if path and (fault := program_fault(path)):
            hint = "name a program, by its absolute path, that only root or the agent's account can change (mode 755)"
            raise StokerError(refuse("bad_settings", f"{name}: {fault}", hint, path=path))


def _is_lower(one: int, other: int) -> bool:
    return one != resource.RLIM_INFINITY and (other == resource.RLIM_INFINITY or one < other)


def boot_id(root: Path = _ROOT) -> str:
    """Return the id of this boot of the machine."""
    return (root / _BOOT_ID).read_text().strip()


def offers_less(offered: int, cpus: int, why: str) -> str:
    """Return in words why fewer CPUs are offered than there are; empty where all are."""
    return f"offers {offered} of {cpus} CPUs, since {why}" if offered < cpus else ""


def usable_cpus(root: Path = _ROOT) -> int:
    """Return the whole CPUs that this process may use, at least 1."""
    allowed = len(os.sched_getaffinity(0))
    for folder in _own_cgroups(root, ""):
        quota, _, period = _first_line(folder / "cpu.max").partition(" ")
        if quota.isdigit() and period.isdigit() and int(period) > 0:
            allowed = min(allowed, int(quota) // int(period))
    return max(1, allowed)


def usable_memory_mb(root: Path = _ROOT) -> int:
    """Return the MiB of memory that this process may use."""
    said = [_first_line(folder / "memory.max") for folder in _own_cgroups(root, "")]
    said += [_first_line(folder / "memory.limit_in_bytes") for folder in _own_cgroups(root, "memory")]
    return min([_meminfo(root)["MemTotal"], *(int(limit) for limit in said if limit.isdigit())]) // _MIB


def _own_cgroups(root: Path, controller: str) -> list[Path]:
    """Our cgroup of version 2, or of a controller of version 1, and all above it, as far as they can be seen."""
    mount = root / _CGROUP / controller
    lines = (line.split(":", 2) for line in _first_line(root / "proc/self/cgroup").splitlines())
    own = next((path for _, names, path in lines if controller in names.split(",")), "/")
    folder = Path(own.lstrip("/"))
    return [mount / each for each in (folder, *folder.parents)]


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


def container_of(pid: int) -> str:
    """Return the beginning of the id of the container that a process is in, as engines show it; empty = it is in none.

    Docker, Podman and Kubernetes' engines name a cgroup after it. Of a container in a container it is the inner one.
    """
    try:
        with Path(f"/proc/{pid}/cgroup").open(encoding="ascii", errors="replace") as file:
            found = _CONTAINER_ID.findall(file.read(_CGROUP_MAX))
    except OSError:
        return ""
    return str(found[-1]) if found else ""
