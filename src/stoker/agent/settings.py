"""Settings of the agent daemon, `agent.yaml`.

Every key may also come from the environment (`STOKER__NODE__NAME`) or a flag. All of these are
process settings: they concern one node, change no decision of the cluster, and may differ from node to node.
"""

import re
import resource
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal

import msgspec

from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.health import XIDS_DRAIN
from stoker.brain.domain.label import Taint, check_label, label_value, parse_taint, taint_text
from stoker.brain.domain.node import NODE_NAME
from stoker.brain.domain.units import Range
from stoker.ports import LogSettings
from stoker.wire.address import address_faults, is_machine

ADDRESSES_MAX: Final = 16
ADDRESS: Final = "127.0.0.1:9090"
"""Of a control plane on this machine."""
LABELS_MAX: Final = 256
TAINTS_MAX: Final = 256
"""Above what a control plane takes by default, which says so itself; more are the wrong file."""

_LIMIT_NAMES: Final = (
    "as", "core", "cpu", "data", "fsize", "memlock", "msgqueue", "nice", "nofile", "nproc", "rtprio", "rttime",
    "sigpending", "stack",
)  # fmt: skip
LIMITS: Final[Mapping[str, int]] = {name: getattr(resource, f"RLIMIT_{name.upper()}") for name in _LIMIT_NAMES}
"""Names as in limits.conf(5) and systemd's `Limit*=`, and their numbers here. Source: setrlimit(2)."""
_UMASK: Final = re.compile(r"0?[0-7]{3}")
_LIMIT_MAX: Final = (1 << 63) - 1
_LIMIT: Final = re.compile(r"([0-9]{1,15})([KMGT]?)")

LogMib = Annotated[int, Range(1, 65_536, " MiB")]


class NodeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Section `node`."""

    name: str = ""
    """Under which name the node joins. Empty = the machine's host name, which is what people look for."""
    address: str = ""
    """Host name or IP where other nodes reach this one; ranks of a gang meet there. Empty = the local address that is
    used towards the first control plane, which is right wherever the cluster has one network."""
    labels: dict[str, str] = {}
    """Words for `--where`: keys and values as Kubernetes has them. None by default. `stoker node label` sets others,
    and wins over these."""
    taints: tuple[str, ...] = ()
    """Keep away jobs that don't tolerate them; each is `key=value:NoSchedule` or `key:NoSchedule`. What runs here
    already goes on. None by default. `stoker node taint` puts on others."""
    cpus: Annotated[int, Range(0)] = 0
    """Whole CPUs to offer. 0 = as measured, or as the GPU script says."""
    memory_mb: Annotated[int, Range(0)] = 0
    """MiB of host memory to offer. 0 = as measured, or as the GPU script says."""

    def faults(self) -> list[str]:
        found = []
        if self.name and not NODE_NAME.fullmatch(self.name):
            found.append(f"name: {self.name[:80]!r} isn't 1 to 63 letters, digits, dots, dashes or underscores")
        if self.address and not is_machine(self.address):
            found.append(f"address: {self.address[:80]!r} isn't a host name or an IP address, without a port")
        return [*found, *_label_faults(self.labels), *_taint_faults(self.taints)]


class ControlConnectionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Section `control`."""

    addresses: tuple[str, ...] = ()
    """HOST:PORT of each control plane's gRPC listener, `[::1]:9090` with IPv6; name the active one and its standbys.
    They are tried in this order, from the one that served last. Empty = where the node joined, or 127.0.0.1:9090."""
    insecure: bool = False
    """Speak plain text, to a control plane with `tls.mode: off`: whoever is between, or answers in its place, gives
    this node orders. Without it the node must have joined (`stoker agent join`)."""
    token_file: str = ""
    """With `insecure`: file with the token to show, of role `agent` and readable by its owner alone. It is read anew
    at each connect, so a token is changed by replacing the file. Empty = show none, which `stoker up` allows."""

    def faults(self) -> list[str]:
        found = []
        if len(self.addresses) > ADDRESSES_MAX:
            found.append(f"addresses: {len(self.addresses)} addresses; at most {ADDRESSES_MAX} are wanted")
        if self.token_file and not self.insecure:
            found.append(
                "token_file: it is shown in plain text only, which `insecure: true` says; a node joins by "
                "`stoker agent join HOST:9090 --token T` and needs no token then"
            )
        return [*found, *(f"addresses: {fault}" for fault in address_faults(self.addresses))]


class GpuSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Section `gpu`."""

    detection: Literal["auto", "nvml", "nvidia-smi", "scripted"] = "auto"
    """How GPUs are found. nvml = by the driver's own library, nvidia-smi = by the program that comes with it, which
    finds the same. auto = the script if one is named, else NVML, else nvidia-smi where the library is missing or
    refuses, else none. Of what a driver lists only those are offered that CUDA_VISIBLE_DEVICES and
    NVIDIA_VISIBLE_DEVICES show the agent."""
    script: str = ""
    """YAML file with simulated GPUs, for `scripted`. Empty = none."""
    probe_again_s: Annotated[float, Range(1, unit=" second")] = 30.0
    """Seconds between two looks while no GPU, or not every GPU, could be read: often enough that a node whose driver
    comes up late is used soon, seldom enough that a broken driver costs nothing."""
    watch_s: Annotated[float, Range(0, unit=" second")] = 60.0
    """Seconds between two looks once every GPU could be read. A GPU that two looks in a row don't find gets no new
    work, and the node says so. A look costs a tenth of a second of CPU, a second where
    nothing keeps the driver loaded (persistence mode). 0 = no looks any more."""
    telemetry_s: Annotated[float, Range(0, unit=" second")] = 5.0
    """Seconds between two looks at what the GPUs do: utilisation, memory, temperature, power, errors, processes. One
    small process of NVML's stays for it; a look costs it a millisecond for each GPU. 0 = no such looks: then no figures
    are shown, and nothing tells a sick GPU from a healthy one before the driver does. Where nvidia-smi is asked instead
    no look begins sooner than 5 s after the one before, so the end of a job may be told that much later."""
    mps: Literal["auto", "on", "off"] = "auto"
    """Whether tasks that share a GPU are told of NVIDIA's MPS, which bounds what each takes of its computing time and
    memory. auto = where its daemon listens in mps_pipe_dir when the agent starts; on = always; off = never: sharing is
    then cooperative, and nothing but the programs themselves keeps to the shares. Who starts the daemon is the site:
    `nvidia-cuda-mps-control -d`, as the account that jobs run as, or root."""
    mps_pipe_dir: str = "/tmp/nvidia-mps"
    """Pipe folder of MPS, an absolute path: where its daemon listens if CUDA_MPS_PIPE_DIRECTORY says nothing else."""

    def faults(self) -> list[str]:
        found = []
        if not self.mps_pipe_dir.startswith("/"):
            found.append(f"mps_pipe_dir: {self.mps_pipe_dir[:80]!r} isn't an absolute path")
        if self.detection == "scripted" and not self.script:
            found.append("script: must name a file when detection is `scripted`")
        if self.script and self.detection not in ("auto", "scripted"):
            found.append(f"script: is set, but detection is `{self.detection}`, which would not read it")
        return found


class HealthSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Section `health`."""

    hot_c: Annotated[int, Range(0, 200, " C")] = 90
    """Degrees from which on a GPU gets no new work, until it is 10 below: above it devices slow down, and data centre
    GPUs are stopped by their driver somewhat higher. What runs there goes on. From 5 below on it is suspect: jobs get
    others where they serve as well. 0 = none is too hot."""
    leftover_mb: Annotated[int, Range(0, unit=" MiB")] = 1_024
    """MiB that may be in use on a GPU that no job has before it is offered: contexts of MPS and of monitors take some
    hundred; what a process left that couldn't be ended takes more. 0 = any amount."""
    error_clean_s: Annotated[float, Range(1, 86_400, " s")] = 600.0
    """Seconds without another error for which a GPU is watched after an uncorrected memory error, or an XID of
    xids_drain; twice as long after each that follows within a day, up to a day. A broken device then costs few jobs,
    and one that was reset comes back by itself."""
    xids_drain: tuple[Annotated[int, Range(1, 100_000)], ...] = XIDS_DRAIN
    """Error codes of the driver (XID) after which a GPU gets no new work for error_clean_s. These by default speak of
    the device, its memory, its bus, its links or its firmware; take 94 out where contained memory errors shall cost
    only the job that met one. Those that programs cause (13, 31, 43, 45, 68) never count; any other makes it suspect:
    it is offered, and jobs get others where they serve as well."""
    check: str = ""
    """Program of the site, an absolute path, that says whether this node is fit for work: exit status 0 = it is; any
    other = it gets no new work, for the reason in the last line that it wrote, until a later run finds nothing. What
    runs there goes on. It runs as the agent's account, and nobody else may be able to write to it. Empty = none."""
    check_every_s: Annotated[float, Range(1, 86_400, " s")] = 60.0
    """Seconds between two runs of it."""
    check_timeout_s: Annotated[float, Range(1, 3_600, " s")] = 30.0
    """Seconds that it may take; then it is killed, and that is the reason."""
    disk_min_mb: Annotated[int, Range(0, unit=" MiB")] = 256
    """MiB that are to be left on the disk of data_dir, for records and output of tasks, or a twentieth of that disk if
    that is less: with less the node gets no new work. 0 = its disk isn't watched; a disk that is full keeps the runner
    from starting tasks all the same."""
    processes_ignored: tuple[str, ...] = ("nvidia-cuda-mps", "nv-hostengine", "dcgm")
    """Beginnings of the names (as `ps -o comm` has them) of processes that may be on a GPU that no job has. By default
    the daemons of MPS and of NVIDIA's monitor."""

    def faults(self) -> list[str]:
        return [f"check: {self.check[:80]!r} isn't an absolute path"] if self.check and self.check[0] != "/" else []


class MetricsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Section `metrics`."""

    address: str = ""
    """HOST:PORT where `/metrics` is served: figures of this node's GPUs, with the job that holds each, under the names
    of NVIDIA's dcgm-exporter, to whoever can connect. Empty = nowhere: `stoker gpu list` shows the same to who may see
    it."""

    def faults(self) -> list[str]:
        return [f"address: {fault}" for fault in address_faults((self.address,) if self.address else ())]


class DockerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Section `executor.docker`: the engine of containers, Docker's or Podman's service."""

    socket: str = "/var/run/docker.sock"
    """Its Unix socket, an absolute path. Who may open it is as good as root on this node: jobs never see it. Podman's
    is /run/podman/podman.sock where `podman.socket` is enabled."""
    mounts_allowed: tuple[str, ...] = ()
    """Folders of this node, as absolute paths, that containers may be shown, with all that is in them; `:ro` behind
    those that they may only read. A job names mounts (`--mount`), and its working directory is mounted if it lies in
    one. Empty = none; a job's checkpoint folder is always there."""
    gpus: Literal["nvidia", "cdi", "environment"] = "nvidia"
    """How a container is given its GPUs, by UUID. nvidia = by the engine's own requests (NVIDIA Container Toolkit);
    cdi = as CDI devices `nvidia.com/gpu=UUID`; environment = by CUDA_VISIBLE_DEVICES and NVIDIA_VISIBLE_DEVICES alone,
    for a runtime that reads these. Simulated GPUs are only ever named in the environment: there is no device."""
    shm_mb: Annotated[int, Range(1, 1 << 30, " MiB")] = 1_024
    """MiB of shared memory (/dev/shm) of a container that asks for none: an engine's own 64 MiB are too few for the
    data loaders and collectives of most frameworks. What is used counts as the job's memory."""
    pull: Literal["missing", "always", "never"] = "missing"
    """When an image is pulled: where it isn't here yet; before each start, to see whether its tag names another by now;
    or never, so that a job starts with what is here or not at all."""
    pull_timeout_s: Annotated[int, Range(10, 86_400, " s")] = 3_600
    """Seconds that a pull may take. Then the attempt ends, and the job starts elsewhere at no charge."""
    pull_stall_s: Annotated[int, Range(5, 3_600, " s")] = 120
    """Seconds without any progress after which a pull is given up: its registry stalls."""
    registry_auth: str = ""
    """File with credentials for registries, as `docker login` writes it (`config.json`, section `auths`), readable by
    the agent alone. It is read anew for each pull. Empty = none are shown."""
    images_max_gb: Annotated[int, Range(0)] = 100
    """GiB of images that the agent has pulled and keeps: beyond it those go that no job has used for the longest time.
    Images that others have brought here are left alone. 0 = none is removed."""
    disk_free_min_gb: Annotated[int, Range(0)] = 5
    """GiB that must stay free on the disk of the engine while an image is pulled; with less a pull is given up."""

    def faults(self) -> list[str]:
        found = []
        if not self.socket.startswith("/"):
            found.append(f"socket: {self.socket[:80]!r} isn't an absolute path")
        for path in self.mounts_allowed:
            bare = path.removesuffix(":ro")
            if not bare.startswith("/") or ":" in bare:
                found.append(f"mounts_allowed: {path[:80]!r} isn't an absolute path, with `:ro` behind it or not")
        if self.registry_auth and not self.registry_auth.startswith("/"):
            found.append(f"registry_auth: {self.registry_auth[:80]!r} isn't an absolute path")
        return found


class ExecutorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Section `executor`."""

    kinds: tuple[Literal["process", "container"], ...] = ("process",)
    """Ways to run a job here. With `container` jobs that name an image come here too, as long as the engine of
    `docker.socket` answers; it wants `pip install "stoker[containers]"`. Without `process` every job runs in a
    container."""
    default_image: str = ""
    """Image of jobs that name none: they run in a container of it. Empty = they run as processes."""
    docker: DockerSettings = DockerSettings()
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
    checkpoint_days: Annotated[int, Range(0, 10_000)] = 90
    """Days after which a job's folder under it is removed, counted from the last change of anything in it, or the last
    start of the job: a quarter, so that nobody's work goes who is on leave. The folder of a job that runs on this node
    stays; what waits in the queue for longer finds an empty folder. 0 = none is removed for its age."""
    checkpoint_max_gb: Annotated[int, Range(0)] = 0
    """GiB that all these folders together may hold: above it those are removed in which nothing has changed for the
    longest time, but none that changed within seven days. 0 = as much as there is."""
    work_dir: str = ""
    """Folder, an absolute path, under which a job that names no working directory gets one, until its output is
    forgotten; each node has a folder of its own name in it. Name one on another file system than data_dir, such as a
    scratch disk: a job that fills it keeps no other from starting. Empty = data_dir. What is there stays when this is
    changed."""
    folder_max_gb: Annotated[int, Range(0)] = 0
    """GiB that the folders which Stoker makes for a job (checkpoints, working directory) may hold on one file system:
    beyond it the job's writes fail with `Disk quota exceeded`. Kept where the agent is root by file systems with
    project quotas (ext4, XFS mounted with `prjquota`) and Linux 5.14; elsewhere there is no bound, and `stoker doctor`
    says so. 0 = no bound."""
    umask: str = "022"
    """umask of every job, as three octal digits: a service's is of no use to people, and nobody else should be able to
    write to what they make."""
    limits: dict[str, str] = {}
    """Limits (`ulimit`) of every job: `SOFT` or `SOFT:HARD` by name, such as `nofile: 65536`, `core: 0:unlimited`. They
    are named as in `Limit*=` of systemd: as, core, cpu, data, fsize, memlock, msgqueue, nice, nofile, nproc,
    rtprio, rttime, sigpending, stack. Each number counts what setrlimit(2) says, bytes where that is a size; K, M, G
    and T behind it multiply by 1024. `nproc` counts the processes of an account, so where the agent isn't root all
    jobs share it. Limits that aren't named are those that the agent was started with, but for two that are raised as
    far as the agent may: memlock to unlimited, for NCCL and RDMA, and the soft limit of nofile to 65536."""
    pids_max: Annotated[int, Range(0, 4_194_304)] = 4_096
    """Processes and threads that a task may have at once, where a cgroup with the pids controller can be made: beyond
    it `fork` fails in that task, and nowhere else. Frameworks start some hundred threads per GPU, and a fork bomb takes
    every number that there is. 0 = no bound."""
    memory_default: Literal["share", "none"] = "share"
    """Memory limit of a task that asks for none (`--memory`), where a cgroup with the memory controller can be made.
    share: the part of the memory offered here that its CPUs, or its GPUs if that is more, are of those offered here,
    and 1 GiB at least; nothing is reserved for it. none: no limit, so that one job may use up the memory of all."""
    cpu_limit: Literal["weight", "quota", "none"] = "weight"
    """How a task is held to the CPUs that it asked for, where a cgroup with the cpu controller can be made. weight:
    when CPUs are short, each task gets its part of them and no neighbour can take that away; idle CPUs are for who
    wants them, since loaders of data beside a GPU often want more than the one CPU that a job asks for by default.
    quota: never more CPU time than it asked for. none: the kernel shares them out by the process."""
    cpu_binding: Literal["numa", "none"] = "numa"
    """Where a task runs. numa: on the CPUs beside its GPUs, if these are all of one NUMA node which has as many CPUs as
    the task asked for. none: on any CPU. A program may choose others by itself (`numactl`, `taskset`)."""
    confine_devices: bool = True
    """Keep a task from opening the device nodes of GPUs that aren't its own, whatever its environment says: by a filter
    of its cgroup (version 2 and CAP_BPF, else the devices controller of version 1). What isn't a GPU, such as
    `/dev/infiniband`, is kept by its mode alone: who may use it is for the site's groups. A task that MPS serves is
    kept from nothing that its daemon opens for it."""
    private_tmp: bool = False
    """Give each task a /tmp and a /var/tmp of its own, empty at its start and removed at its end, where the agent is
    root with CAP_SYS_ADMIN. They are on the disk of `work_dir`, or data_dir, which must not lie below /tmp."""
    accounts_without_cgroups: tuple[str, ...] = ()
    """Accounts whose jobs are taken where the agent is root and no cgroup can be made: there a process that sheds every
    mark of its job can't be told from those of others, and no limit holds. Others' jobs are given back at no charge and
    start on other nodes; keep their tenants off this one (`stoker tenant set --nodes`). Root is taken where
    `allow_root` says so. Where cgroups can be made all accounts are taken."""
    prolog: str = ""
    """Program of the site, an absolute path, that runs before each task here, as the agent's account (root where it
    is): to clean a scratch disk or to look at the GPUs. It finds STOKER_JOB_ID, STOKER_ATTEMPT, STOKER_RANK,
    STOKER_USER, STOKER_TENANT, STOKER_NODE and CUDA_VISIBLE_DEVICES, a PATH of the system, and nothing that the job
    chose. If it fails, the task isn't started: its job starts elsewhere at no charge, and the node is drained with the
    last line that the program wrote, until `stoker node resume`. It has to be root's or the agent's, and nobody else
    may be able to write to it. What it leaves behind is ended with it; it can't gain privileges (setuid), as nothing
    here can. Empty = none."""
    epilog: str = ""
    """The same after each task whose prolog had done its work, or that had a process, once every process of it is gone
    and before its end is told. If it fails, the job keeps its end and the node is drained. It runs a second time when
    the node's runner is killed meanwhile, and not at all after a reboot. Empty = none."""
    prolog_timeout_s: Annotated[int, Range(1, 3_600, " s")] = 60
    """Seconds that either of them may take; then it is killed, and has failed. The GPUs of the task are held until
    then."""
    log_head_mb: LogMib = 8
    """MiB kept from the beginning of a task's output, where a wrong start shows."""
    log_tail_mb: LogMib = 24
    """MiB kept from its end, where the traceback is. What lies between is dropped."""

    def faults(self) -> list[str]:
        found = []
        if not self.kinds:
            found.append("kinds: needs at least one, `process` or `container`")
        if self.default_image and "container" not in self.kinds:
            found.append("default_image: wants `container` among the `kinds`")
        if "container" in self.kinds and "process" not in self.kinds and not self.default_image:
            found.append("default_image: jobs that name no image can't run as processes here, so it must name one")
        if "container" in self.kinds and "as" in self.limits:
            found.append("limits: `as` can't be set for a container; memory is limited by `--memory`")
        if self.work_dir and not self.work_dir.startswith("/"):
            found.append(f"work_dir: {self.work_dir[:80]!r} isn't an absolute path")
        if self.private_tmp and _is_temporary(self.work_dir):
            found.append(f"private_tmp: work_dir {self.work_dir[:80]!r} is below /tmp, which jobs would not see then")
        for name, path in (("prolog", self.prolog), ("epilog", self.epilog)):
            if path and not path.startswith("/"):
                found.append(f"{name}: {path[:80]!r} isn't an absolute path")
        if not _UMASK.fullmatch(self.umask):
            found.append(f"umask: {self.umask[:80]!r} isn't three octal digits, such as 022 or 077")
        return [*found, *filter(None, (_limit_fault(name, text) for name, text in self.limits.items()))]


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the agent of one node."""

    program: ClassVar[str] = "stoker agent"
    data_dir: Path = Path("/var/lib/stoker-agent")
    """Folder of this agent alone: records of tasks, their output, the lock."""
    node: NodeSettings = NodeSettings()
    control: ControlConnectionSettings = ControlConnectionSettings()
    gpu: GpuSettings = GpuSettings()
    executor: ExecutorSettings = ExecutorSettings()
    health: HealthSettings = HealthSettings()
    metrics: MetricsSettings = MetricsSettings()
    log: LogSettings = LogSettings()

    def faults(self) -> list[str]:
        if self.executor.private_tmp and _is_temporary(f"{self.data_dir.absolute()}/"):
            return [f"data_dir: {self.data_dir} is below /tmp, which jobs would not see with executor.private_tmp"]
        return []


def _is_temporary(folder: str) -> bool:
    return folder.startswith(("/tmp/", "/var/tmp/"))


def job_limits(executor: ExecutorSettings) -> dict[str, tuple[int, int]]:
    """Return the soft and the hard limit of a job for each that is set, as resource.setrlimit has them."""
    return {name: _limit(text) for name, text in executor.limits.items()}


def _limit(text: str) -> tuple[int, int]:
    """Raises: ValueError with what is wrong."""
    soft, colon, hard = text.partition(":")
    both = _limit_number(soft), _limit_number(hard if colon else soft)
    if both[1] != resource.RLIM_INFINITY and not 0 <= both[0] <= both[1]:
        raise ValueError(f"the soft limit {soft} is above the hard limit {hard}")
    return both


def _limit_number(text: str) -> int:
    if text == "unlimited":
        return resource.RLIM_INFINITY
    if not (said := _LIMIT.fullmatch(text)):
        raise ValueError(f"{text[:80]!r} is neither `unlimited` nor a whole number, with K, M, G or T behind it or not")
    number = int(said[1]) << 10 * " KMGT".index(said[2] or " ")
    if number > _LIMIT_MAX:
        raise ValueError(f"{text[:80]} is above {_LIMIT_MAX}; `unlimited` has no bound")
    return number


def _limit_fault(name: str, text: str) -> str:
    if name not in LIMITS:
        return f"limits: {name[:80]!r} is no limit; known: {', '.join(LIMITS)}"
    try:
        _limit(text)
    except ValueError as error:
        return f"limits: {name}: {error}"
    return ""


def _label_faults(labels: Mapping[str, str]) -> list[str]:
    """What is wrong with each label, with the nearest one that would do."""
    if len(labels) > LABELS_MAX:
        return [f"labels: {len(labels)} labels are more than {LABELS_MAX}"]
    found = []
    for key, value in labels.items():
        if fault := _refusal(check_label, key, value):
            near_key, near_value = _near_key(key), label_value(value)
            better = (near_key, near_value) != (key, value) and not _refusal(check_label, near_key, near_value)
            found.append(f"labels: {fault}" + (f" (nearest: `{near_key}: {near_value}`)" if better else ""))
    return found


def _taint_faults(taints: Iterable[str]) -> list[str]:
    """What is wrong with each taint, with the nearest one that would do."""
    texts = list(taints)
    if len(texts) > TAINTS_MAX:
        return [f"taints: {len(texts)} taints are more than {TAINTS_MAX}"]
    found, keys = [], dict[str, str]()
    for text in texts:
        if fault := _refusal(parse_taint, text):
            near = _near_taint(text)
            found.append(f"taints: {fault}" + ("" if _refusal(parse_taint, near) else f" (nearest: `{near}`)"))
            continue
        key = parse_taint(text).key
        if key in keys:
            found.append(f"taints: {keys[key]!r} and {text!r} have one key; a node has one taint of a key")
        keys.setdefault(key, text)
    return found


def _refusal(check: Callable[..., object], *texts: str) -> str:
    """The message with which a check refuses; empty = it doesn't."""
    try:
        check(*texts)
    except StokerError as error:
        return error.refusal.message
    return ""


def _near_key(key: str) -> str:
    prefix, slash, name = key.strip().rpartition("/")
    return f"{prefix.lower()}{slash}{label_value(name)}"


def _near_taint(text: str) -> str:
    key, _, value = text.partition(":")[0].partition("=")
    return taint_text(Taint(_near_key(key), label_value(value)))
