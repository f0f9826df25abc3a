"""Checks of this machine as a node: its GPUs, its cgroups, its name and labels, its attempt leases, its accounts.

Source: capabilities(7) for the numbers of the bits.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from stoker.adapters.gpu_probe.auto import AutoProbe, asked_by, device_probe
from stoker.adapters.gpu_probe.devices import DriverMissing
from stoker.adapters.gpu_probe.scripted import scripted_devices
from stoker.agent.identity import IdentityFile
from stoker.agent.machine import check_limits, check_site_programs, node_name
from stoker.agent.runner.guard import PROCESS_NAME
from stoker.agent.runner.process.kernel import bounds_projects
from stoker.agent.runner.process.procfs import read_proc
from stoker.agent.runner.protocol import LOCK_NAME
from stoker.agent.settings import AgentSettings, ExecutorSettings
from stoker.agent.token_file import read_token
from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.label import check_label, parse_taint
from stoker.cli.doctor.finding import Check, CheckResult, doubtful, fine, refusal, unless_refused, wrong
from stoker.cli.doctor.machine import account
from stoker.ports import ProbeResult

PROBE_S: Final = 35.0
"""NVML is asked once and nvidia-smi twice, ten seconds at most each time."""
_DEVICES: Final = Path("/dev")
_FILLS: Final = "a job that fills that disk keeps this node from starting tasks"
_APART: Final = "name a folder on another file system in executor.checkpoint_dir, shared storage where jobs may move"
_WANTED: Final = {
    "CAP_CHOWN": 0,
    "CAP_DAC_OVERRIDE": 1,
    "CAP_KILL": 5,
    "CAP_SETGID": 6,
    "CAP_SETUID": 7,
    "CAP_SYS_PTRACE": 19,
}
"""To become another user, give it its folders, end its processes, and tell by their environment whose they are."""


def checks(settings: AgentSettings) -> list[Check]:
    allow_root = settings.executor.allow_root
    return [
        Check("name", lambda: name(settings)),
        Check("identity", lambda: identity(settings)),
        Check("labels", lambda: labels(settings.node.labels, settings.node.taints)),
        Check("gpus", lambda: gpus(settings), seconds=PROBE_S),
        Check("cgroups", lambda: cgroups(cgroup_state())),
        Check("leases", lambda: leases(settings.data_dir)),
        Check("checkpoint_dir", lambda: checkpoint_dir(settings.executor.checkpoint_dir, settings.data_dir)),
        Check("work_dir", lambda: work_dir(settings.executor.work_dir, settings.data_dir)),
        Check("folder_max_gb", lambda: folder_bound(settings)),
        Check("limits", lambda: limits(settings)),
        Check("programs", lambda: site_programs(settings.executor, settings.health.check)),
        Check("users", lambda: users(_self(), allow_root=allow_root, data_dir=settings.data_dir)),
    ]


def name(settings: AgentSettings) -> Iterator[CheckResult]:
    try:
        yield fine(f"this node joins as {node_name(settings)}")
    except StokerError as fault:
        yield refusal(fault)


def identity(settings: AgentSettings) -> Iterator[CheckResult]:
    """Read the identity as the agent reads it. Whether the control plane still knows its key is for that to say."""
    if settings.control.insecure:
        yield doubtful(
            "control.insecure: all is plain text, and whoever listens in the place of the control plane gives orders",
            "set `tls.mode` of the control plane to auto, join (`stoker agent join`), and take `insecure` out",
        )
        yield from token_file(settings.control.token_file)
        return
    try:
        found = IdentityFile(settings.data_dir).read()
    except StokerError as fault:
        yield refusal(fault)
        return
    if found is None:
        yield wrong("this node hasn't joined its cluster", "`stoker agent join HOST:9090 --token T`, once")
    else:
        yield fine(
            f"joined as {found.node}; control planes: {', '.join(settings.control.addresses or found.addresses)}"
        )


def token_file(named: str) -> Iterator[CheckResult]:
    """Read as the agent reads it. Whether the token is good is the control plane's to say."""
    if not named:
        fix = "name a file with a token of role agent, readable by its owner alone"
        yield doubtful("control.token_file is empty: only a control plane of `stoker up` takes this agent", fix)
        return
    yield from unless_refused(lambda: read_token(Path(named)), f"{named} holds a token, for its owner alone")


def labels(given: Mapping[str, str], taints: Sequence[str]) -> Iterator[CheckResult]:
    faults = 0
    reads: list[tuple[str, Callable[[], object]]] = [
        *(("labels", partial(check_label, key, value)) for key, value in given.items()),
        *(("taints", partial(parse_taint, taint)) for taint in taints),
    ]
    for section, read in reads:
        try:
            read()
        except StokerError as fault:
            faults += 1
            yield wrong(f"node.{section}: {fault.refusal.message}", fault.refusal.hint)
    if not faults:
        yield fine(f"{len(given)} labels, {len(taints)} taints")


def gpus(settings: AgentSettings) -> Iterator[CheckResult]:
    """Asks as the agent would."""
    gpu = settings.gpu
    try:
        if gpu.script:
            yield from found(scripted_devices(Path(gpu.script), node_name(settings)).probe())
        else:
            probe = device_probe(gpu.detection)
            yield from found(probe.probe())
            if isinstance(probe, AutoProbe) and probe.passed_over:
                fix = "see what it says; set gpu.detection to nvml to have no other asked"
                yield doubtful(f"NVML is passed over, and nvidia-smi asked instead: {probe.passed_over}", fix)
    except StokerError as fault:
        yield refusal(fault)
    except DriverMissing as fault:
        words = f"gpu.detection is {gpu.detection}, and {fault}"
        yield wrong(words, "install the driver, or set gpu.detection to auto")
    except OSError as fault:
        yield wrong(
            f"{asked_by(gpu.detection)}: {fault}",
            "run `nvidia-smi` by hand: the driver may need a reboot, or its library is of another",
        )


def found(result: ProbeResult) -> Iterator[CheckResult]:
    """Return the results of a probe that answered."""
    for fault in result.faults:
        fix = "the other GPUs are offered without it; `nvidia-smi` and the kernel's log say more"
        yield doubtful(f"{fault.where}: {fault.error}", fix)
    models = ", ".join(dict.fromkeys(gpu.model for gpu in result.gpus))
    if result.gpus and result.simulated:
        fix = "remove gpu.script where real GPUs are wanted"
        yield doubtful(f"{len(result.gpus)} simulated GPUs ({models}): jobs will find no device", fix)
    elif result.gpus:
        yield fine(f"{len(result.gpus)} GPUs: {models}")
    elif result.hidden:
        yield doubtful(result.hidden, "take the variable out of the agent's unit, or name in it the GPUs to offer")
    elif not result.faults:
        yield none_found(bool(list(_DEVICES.glob("nvidia[0-9]*"))))


def none_found(devices: bool) -> CheckResult:
    """Return the results of a probe that found no GPU; `devices`: the kernel has made some."""
    if devices:
        return wrong(
            "/dev has NVIDIA devices, and neither NVML nor nvidia-smi finds one",
            "install it, or let this account use it",
        )
    return doubtful("no GPU was found: this node will offer CPUs only", "install the driver, if there should be GPUs")


class CgroupState(NamedTuple):
    """State of cgroups on this machine by `/proc` and `/sys`."""

    version: int
    """0 = none is mounted."""
    folder: str
    """Ours."""
    writable: bool
    memory: bool
    """Is the memory controller to be had?"""


def cgroup_state(root: Path = Path("/")) -> CgroupState:
    """Reads only; the runner finds out what it really may when it starts."""
    mounts = [line.split() for line in (root / "proc/self/mountinfo").read_text().splitlines()]
    kinds = [(words[words.index("-") + 1], words[4], words[-1]) for words in mounts]
    own = [line.split(":", 2) for line in (root / "proc/self/cgroup").read_text().splitlines()]
    for kind, point, _ in kinds:
        if kind == "cgroup2":
            inner = next((path for number, names, path in own if not names and number == "0"), "/")
            folder = root / point.lstrip("/") / inner.lstrip("/")
            controllers = folder / "cgroup.controllers"
            if ((folder / "cgroup.procs").exists() and (folder / "cgroup.kill").exists()) or not _has_v1(kinds):
                has = "memory" in controllers.read_text().split() if controllers.exists() else False
                return CgroupState(2, str(folder), os.access(folder, os.W_OK), has)
    for kind, point, options in kinds:
        if kind == "cgroup" and {"freezer", "pids"} & set(options.split(",")):
            folder = root / point.lstrip("/")
            memory = any("memory" in each.split(",") for other, _, each in kinds if other == "cgroup")
            return CgroupState(1, str(folder), os.access(folder, os.W_OK), memory)
    return CgroupState(0, "", writable=False, memory=False)


def _has_v1(kinds: Sequence[tuple[str, str, str]]) -> bool:
    return any(kind == "cgroup" and "freezer" in options.split(",") for kind, _, options in kinds)


def cgroups(state: CgroupState) -> Iterator[CheckResult]:
    fix = "under systemd give the agent's unit `Delegate=yes`; in a container mount /sys/fs/cgroup writable"
    if not state.version:
        yield doubtful("no cgroups are mounted: processes of a job are followed by descent, session and mark", fix)
    elif not state.writable:
        words = f"version {state.version}, and {state.folder} can't be written by this account: a job's processes are "
        yield doubtful(words + "followed by descent, session and mark, and memory limits aren't enforced", fix)
    elif not state.memory:
        words = f"version {state.version} at {state.folder} has no memory controller: memory limits aren't enforced"
        yield doubtful(words, fix)
    else:
        yield fine(f"version {state.version} at {state.folder}, with the memory controller")


def checkpoint_dir(named: str, data_dir: Path) -> Iterator[CheckResult]:
    path = Path(named)
    if not named:
        what = "checkpoints are in data_dir: jobs that move to another node start without theirs, and "
        yield doubtful(f"{what}{_FILLS}", _APART)
    elif not path.is_absolute():
        yield doubtful(f"{named} is relative to wherever the agent is started", "name an absolute path")
    elif not path.is_dir():
        yield doubtful(f"{named} isn't there", "mount it, or make it, before the first job asks for a checkpoint")
    else:
        yield _of_jobs(named, data_dir, _APART)


def work_dir(named: str, data_dir: Path) -> Iterator[CheckResult]:
    path = Path(named)
    apart = "name a folder on another file system in executor.work_dir, such as a scratch disk"
    if not named:
        yield doubtful(f"working directories that Stoker makes are in data_dir: {_FILLS}", apart)
    elif not path.is_dir():
        yield doubtful(f"{named} isn't there", "mount it, or let the agent make it, on another disk than data_dir")
    else:
        yield _of_jobs(named, data_dir, apart)


def _of_jobs(named: str, data_dir: Path, apart: str) -> CheckResult:
    """Judge a folder for jobs' folders that is there. `apart`: how it gets onto a file system of its own."""
    if not os.access(named, os.W_OK | os.X_OK):
        return wrong(f"{named} can't be written by this account", "give the agent's account write permission")
    if data_dir.is_dir() and Path(named).stat().st_dev == data_dir.stat().st_dev:
        return doubtful(f"{named} is on the file system of data_dir: {_FILLS}", apart)
    return fine(f"{named} can be written")


def folder_bound(settings: AgentSettings) -> Iterator[CheckResult]:
    """Check that what a job's folders may hold is bounded, where a bound is set."""
    executor, data_dir = settings.executor, settings.data_dir
    if not executor.folder_max_gb:
        yield fine("no bound is set for what a job's folders may hold")
        return
    for name, folder in (("checkpoint_dir", executor.checkpoint_dir), ("work_dir", executor.work_dir)):
        path = Path(folder) if folder else data_dir
        if os.geteuid() != 0:
            fix = "bound what its account may hold by a quota of the file system"
            yield doubtful(f"{path} isn't bounded: only an agent of root can set project quotas", fix)
        elif path.is_dir() and not bounds_projects(str(path)):
            fix = "mount it with `prjquota` (ext4 made with `-O quota,project`, XFS), or set folder_max_gb to 0"
            yield doubtful(f"{path} keeps no project quotas: nothing bounds a job's folder there ({name})", fix)
        else:
            yield fine(f"{path} bounds a job's folder to {executor.folder_max_gb} GiB")


def limits(settings: AgentSettings) -> Iterator[CheckResult]:
    """Check that jobs can get the limits that are set. They are this account's to give as the agent has it."""
    executor = settings.executor
    own = ", ".join(f"{name} {text}" for name, text in executor.limits.items()) or "those of the agent"
    yield from unless_refused(lambda: check_limits(executor), f"jobs get umask {executor.umask}, and as limits {own}")


def site_programs(executor: ExecutorSettings, check: str = "") -> Iterator[CheckResult]:
    """Check that prolog, epilog and the site's own check are programs that nobody else can change."""
    named = [f"{name} {path}" for name, path in (("prolog", executor.prolog), ("epilog", executor.epilog)) if path]
    words = (
        f"around each task, {executor.prolog_timeout_s} s at most: {', '.join(named)}"
        if named
        else "no prolog or epilog"
    )
    words += f"; checks itself by {check}" if check else ""
    yield from unless_refused(lambda: check_site_programs(executor, check), words)


def leases(data_dir: Path) -> Iterator[CheckResult]:
    """Check that tasks surely end with their attempt lease; else silence of the node never starts them elsewhere."""
    runner = running_runner(data_dir)
    if runner and parent_name(runner) != PROCESS_NAME:
        what = f"the runner, process {runner}, has no guard: if it were killed its tasks would run on, so the silence "
        fix = (
            "drain the node and let its jobs end: a runner without a guard leaves when it is idle, and the next has one"
        )
        yield doubtful(f"{what}of this node never starts its jobs elsewhere", fix)
    elif runner:
        yield fine(
            f"the runner, process {runner}, has its guard: tasks end with their attempt lease, whoever is killed"
        )
    elif can_watch():
        yield fine("a runner started here has a guard: tasks end with their attempt lease, whoever is killed")
    else:
        what = "a runner can have no guard on this kernel, so the silence of this node never starts its jobs elsewhere"
        yield doubtful(what, "Linux 5.3 or newer is needed, and a container must allow pidfd_open")


def running_runner(data_dir: Path) -> int:
    """Return the pid of the runner that serves this folder now; 0 = none, or it can't be told."""
    with suppress(OSError, ValueError):
        runner = int((data_dir / LOCK_NAME).read_text())
        if b"stoker.agent.runner" in Path(f"/proc/{runner}/cmdline").read_bytes().split(b"\0"):
            return runner
    return 0


def parent_name(pid: int) -> str:
    """Return the name of a process's parent; empty = the process is gone."""
    proc = read_proc(pid)
    with suppress(OSError):
        return Path(f"/proc/{proc.parent}/comm").read_text().strip() if proc else ""
    return ""


def can_watch() -> bool:
    """Return whether this kernel lets a process watch another, which a guard needs."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as fault:
        return fault.errno not in (errno.ENOSYS, errno.EPERM)
    return True


class Self(NamedTuple):
    """The account and rights of the process that checks."""

    uid: int
    capabilities: int
    """Bits."""


def users(me: Self, *, allow_root: bool, data_dir: Path) -> Iterator[CheckResult]:
    if me.uid != 0:
        yield fine(f"an agent of this account runs every job as {account(me.uid)}, whatever user the job names")
        return
    missing = [name for name, bit in _WANTED.items() if not me.capabilities >> bit & 1]
    closed = _closed_above(data_dir)
    if missing:
        words = f"root lacks {', '.join(missing)} here, and can't run jobs as their users and look after them"
        yield wrong(words, "give the agent's unit or container these capabilities, or run it as another account")
    if closed:
        words = f"{closed} lets no other account through, so jobs can't reach their own folders in {data_dir}"
        yield wrong(words, f"chmod o+x {closed}, or name another data_dir")
    if allow_root:
        words = "executor.allow_root is true: whoever may submit a job without a user may do anything on this machine"
        yield doubtful(words, "set it to false, and give people tokens with --user")
    elif not missing and not closed:
        yield fine("an agent of root runs each job as its own user, and none as root")


def _self() -> Self:
    lines = Path("/proc/self/status").read_text().splitlines()
    bits = next((line.split()[1] for line in lines if line.startswith("CapEff:")), "0")
    return Self(os.geteuid(), int(bits, 16))


def _closed_above(path: Path) -> str:
    """A folder on the way to `path` that lets nobody through. Empty = there is none."""
    for folder in reversed(path.absolute().parents):
        try:
            if not folder.stat().st_mode & stat.S_IXOTH:
                return str(folder)
        except OSError:  # it isn't there yet; the agent makes it
            return ""
    return ""
