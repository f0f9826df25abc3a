"""Composition root of the agent: real parts behind the daemon's ports, from start to stop."""

import asyncio
import contextlib
import dataclasses
import os
import resource
from collections.abc import Callable, Collection, Coroutine, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from stoker import __version__
from stoker.adapters.atomic_file import write_atomic
from stoker.adapters.bounded_run import BoundedRunner, ProgramTimeout
from stoker.adapters.checkpoint_folders import CheckpointFolders
from stoker.adapters.clock import SystemClock
from stoker.adapters.data_folder.ownership import hold_folder, unusable
from stoker.adapters.entropy import SystemEntropy
from stoker.adapters.gpu_probe.auto import asked_by, device_probe
from stoker.adapters.gpu_probe.devices import DriverMissing
from stoker.adapters.gpu_probe.nvidia_smi_sampler import SmiSampler
from stoker.adapters.gpu_probe.nvml_sampler import NvmlSampler
from stoker.adapters.gpu_probe.scripted import scripted_devices
from stoker.adapters.gpu_probe.scripted_faults import ScriptedDevices
from stoker.adapters.logs import StructuredTelemetry, library_logs
from stoker.agent.container_ports import NoContainers
from stoker.agent.daemon import Daemon
from stoker.agent.fence import FileFence
from stoker.agent.gpu_health import GpuHealth, HealthRules
from stoker.agent.gpu_locality import MachineLocality
from stoker.agent.gpu_monitor import GpuMonitor, HealthFile, MetricsSource, NothingToAsk, Sample
from stoker.agent.gpu_sampling import FirstThatAnswers, OneAtATime, SeldomLooks
from stoker.agent.identity import NAME as IDENTITY_NAME
from stoker.agent.identity import Identity, IdentityFile, root_shown, with_addresses
from stoker.agent.instructions import TaskRules
from stoker.agent.known_gpus import KnownGpus
from stoker.agent.link_grpc import GrpcLink, join
from stoker.agent.machine import (
    GpuWatch,
    account_variables,
    boot_id,
    check_limits,
    check_site_programs,
    container_of,
    default_limits,
    describe,
    die_with_parent,
    node_name,
    without_containers,
)
from stoker.agent.node_health import NodeChecks, NodeHealth
from stoker.agent.ports import AgentPorts, LinkDown, LinkRefused
from stoker.agent.runner.process.kernel import give_back_memory
from stoker.agent.runner.process.procfs import kill_marked, process_name, threads_of
from stoker.agent.runner.protocol import CHECKPOINTS_NAME
from stoker.agent.runner.site_program import program_fault
from stoker.agent.runner_socket import RunnerSocket
from stoker.agent.settings import AgentSettings, job_limits
from stoker.agent.task_ports import TaskPorts
from stoker.agent.token_file import read_token
from stoker.brain.domain.errors import StokerError, refuse
from stoker.brain.domain.gpu_telemetry import GpuLook
from stoker.brain.domain.ids import GpuUuid, NodeName
from stoker.brain.domain.node import CONTAINER, ROOT
from stoker.brain.domain.report import Registration
from stoker.brain.domain.units import NEVER, Instant, utc_text
from stoker.ports import Clock, Entropy, GpuProbe, ProbedGpu, Telemetry

if TYPE_CHECKING:
    from stoker.agent.containers import NodeContainers

UID_NAME: Final = "agent.uid"
RENEWAL_LOOK_S: Final = 600.0
"""Between two looks whether the certificate is to be renewed, and between two tries: a month is left when it is."""
_OWNERS: Final = 0o600
THREADS_MIN: Final = 14
"""Its threads, most of them gRPC's, which waits for ever for one that it can't start; the runner, its guard, and a
task."""
FILES_MIN: Final = 16
"""With fewer, gRPC ends the process by itself, at times without a word."""
CHECK_MARK: Final = "STOKER_CHECK_MARK"
"""Variable by which what a site's check leaves behind is found."""
SMI_EVERY_S: Final = 5.0
"""A look by nvidia-smi costs up to a second of CPU."""
TETHER_S: Final = 10.0
"""With `jobs_end_with_agent`, a runner whose agent was killed waits that long for another, then ends its tasks."""


async def run_agent(settings: AgentSettings, *, stop: asyncio.Event) -> None:
    """Serve until `stop` is set. Jobs run on, unless `executor.jobs_end_with_agent`.

    Raises: StokerError for a data folder, a name, a token file, a GPU script, a prolog or an epilog that can't be used,
    for limits that it can't give jobs, and for too few processes, before anything is started.
    """
    check_limits(settings.executor)
    check_site_programs(settings.executor, settings.health.check)
    _check_library(settings)
    _check_processes(resource.getrlimit(resource.RLIMIT_NPROC)[0])
    _check_files(resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    if settings.executor.jobs_end_with_agent:
        die_with_parent()
    folder = hold_folder(settings.data_dir)
    try:
        name, identity = _identity(settings)
        settings = with_addresses(settings, identity)
        probe = _probe(settings, name)
        token = _token(settings)
        if token is not None:
            token()  # a file that can't be used is reported at the start, not in the log
        await _serve(settings, name, probe, identity, stop)
    finally:
        folder.release()


def _check_processes(most: int) -> None:
    """Raises: StokerError `too_few_processes`. Root is held to no number."""
    if os.geteuid() == 0 or most < 0:
        return
    used = threads_of(os.geteuid())
    if most - used < THREADS_MIN:
        message = f"this account may have {most} processes (`ulimit -u`), and has {used}: the agent needs {THREADS_MIN}"
        hint = "raise it: `LimitNPROC=` in the agent's unit, or `ulimit -u` before the start"
        raise StokerError(refuse("too_few_processes", message, hint, processes_max=most, processes=used))


def _check_files(most: int) -> None:
    """Raises: StokerError `too_few_files`."""
    if 0 <= most < FILES_MIN:
        message = f"this process may have {most} files open (`ulimit -Hn`), and an agent needs {FILES_MIN} to start"
        hint = "raise it: `LimitNOFILE=` in the agent's unit, or `ulimit -n` before the start, to 256 at least"
        raise StokerError(refuse("too_few_files", message, hint, files_max=most))


def _identity(settings: AgentSettings) -> tuple[NodeName, Identity | None]:
    """Return the name of this node, and what it proves itself with; None = it speaks plain text.

    Raises: StokerError `not_joined`, `identity_unusable`, `bad_node_name`.
    """
    if settings.control.insecure:
        return node_name(settings), None
    found = IdentityFile(settings.data_dir).read()
    if found is None:
        name = node_name(settings)
        known = f"node {name} hasn't joined its cluster: there is no {settings.data_dir / IDENTITY_NAME}"
    elif settings.node.name in ("", found.node):
        return found.node, found
    else:
        name = NodeName(settings.node.name)
        known = f"this node joined as {found.node}, and node.name is {name}"
    hint = (
        f"`stoker token create --role join --nodes {name}` on the control plane prints a token, `stoker agent join "
        "HOST:9090 --token T` here joins; `control.insecure: true` speaks plain text"
    )
    raise StokerError(refuse("not_joined", known, hint, node=name))


async def join_cluster(settings: AgentSettings, addresses: Sequence[str], token: str) -> Identity:
    """Make a key for this node, let the cluster know it, and keep the identity for the agent.

    The token carries the fingerprint by which the control planes at `addresses` (HOST:PORT) prove themselves first.
    Raises: StokerError `bad_token`, `server_not_proved`, `no_server`, `join_refused`, `identity_unusable`.
    """
    name = node_name(settings)
    roots = await asyncio.to_thread(root_shown, addresses, token)
    file = IdentityFile(settings.data_dir)
    asked = file.ask(name)
    try:
        certificates = await join(addresses, roots, token, name, asked.request)
    except LinkRefused as fault:
        raise StokerError(refuse("join_refused", str(fault), "see what it says; nothing was changed here")) from fault
    except LinkDown as fault:
        hint = "is the control plane up, and is that its `grpc.port` (9090)? `grpc.node_port` lets no new node in"
        raise StokerError(refuse("no_server", str(fault), hint)) from fault
    identity = Identity(
        node=name, addresses=tuple(addresses), key=asked.key, request=asked.request, certificates=certificates
    )
    file.write(identity)
    return identity


class Kept:
    """The identity of a node that has joined, whose certificate is renewed when two thirds of its time have passed."""

    def __init__(self, file: IdentityFile, value: Identity) -> None:
        self._file = file
        self.value = value

    async def run(self, link: GrpcLink, clock: Clock, telemetry: Telemetry) -> None:
        """Renew it whenever that is due, for ever. One that fails is tried again; the old one goes on meanwhile."""
        while True:
            if clock.now() >= self.value.certificates.renew_at:
                try:
                    self.value = replace(self.value, certificates=await link.renewed())
                    self._file.write(self.value)
                    telemetry.event("certificate_renewed", agent_id=self.value.node)
                except (LinkDown, LinkRefused) as fault:
                    telemetry.warn("certificate_not_renewed", error=str(fault), hint=self._hint(clock.now()))
                except StokerError as fault:
                    telemetry.warn("certificate_not_kept", error=fault.refusal.message)
            await clock.sleep(RENEWAL_LOOK_S)

    def _hint(self, now: Instant) -> str:
        ends_at = self.value.certificates.ends_at
        if ends_at == NEVER or now < ends_at:
            return "the old one goes on, and this is tried again"
        return (
            f"this node's certificate has expired ({utc_text(ends_at)}): if its clock is right, join again: "
            f"`stoker token create --role join --nodes {self.value.node}`, `stoker agent join HOST:9090 --token T`"
        )


async def _serve(
    settings: AgentSettings, name: NodeName, probe: GpuProbe, identity: Identity | None, stop: asyncio.Event
) -> None:
    clock, entropy = SystemClock(), SystemEntropy()
    telemetry = StructuredTelemetry(clock, level=settings.log.level, format=settings.log.format)
    try:
        uid, fence = _agent_uid(settings.data_dir, entropy), FileFence(settings.data_dir)
    except OSError as fault:
        raise unusable(settings.data_dir, fault) from fault
    # The probe blocks; the event loop must not, once there are jobs to watch.
    known, asked = KnownGpus(settings.data_dir, telemetry), asked_by(settings.gpu.detection)
    watch = GpuWatch(lambda: asyncio.to_thread(probe.probe), known, telemetry, asked=asked)
    found = await watch.look()
    locality = MachineLocality(confine=settings.executor.confine_devices, bind=settings.executor.cpu_binding == "numa")
    runner, folders = _runner(settings, name, clock), _folders(settings, clock)
    containers = _containers(settings, uid, clock, telemetry)
    if containers is not None:
        containers.simulated = found.simulated
        await containers.look()
    kept = None if identity is None else Kept(IdentityFile(settings.data_dir), identity)
    shown = None if kept is None else lambda: kept.value
    link = GrpcLink(settings.control.addresses, identity=shown, token=_token(settings))
    monitor, end_reader = _monitor(settings, probe, clock, telemetry)
    ports = AgentPorts(link=link, runner=runner, clock=clock, entropy=entropy, telemetry=telemetry)
    ports = dataclasses.replace(ports, folders=folders, fence=fence, locality=locality, gpus=monitor)
    dialer = TaskPorts(asyncio.to_thread, runner.data_dir)
    ports = dataclasses.replace(ports, dialer=dialer, containers=containers or NoContainers())

    def registration() -> Registration:
        conditions = monitor.health.conditions if monitor else ()
        seen = describe(settings, name, uid, locality.located(watch.offered), __version__, conditions)
        if containers is None:
            return seen
        return replace(seen, inventory=without_containers(seen.inventory, containers.fault))

    _learn(found.gpus, locality, monitor)
    daemon = Daemon(registration(), ports, node_env=account_variables(), rules=_rules(settings))
    if monitor is not None:
        monitor.changed = lambda: daemon.amend(registration())

    def changed(_: object = None) -> None:
        _learn(watch.offered.gpus, locality, monitor)
        daemon.amend(registration())

    give_back_memory()  # what importing and setting up left behind is nearly two MiB
    looking = watch.watch(clock, settings.gpu.probe_again_s, settings.gpu.watch_s, changed)
    telemetry.event("agent_started", agent_id=name, pid=os.getpid(), gpus=len(found.gpus), version=__version__)
    with library_logs(telemetry):
        renewing = () if kept is None else (kept.run(link, clock, telemetry),)
        serving = _metrics(settings, MetricsSource(name, monitor, watch, clock.mono), telemetry)
        watch_node = NodeHealth(_node_checks(settings), clock, daemon.ail)
        watching = () if containers is None else (containers.watch(daemon.may_run, changed),)
        duties = (daemon.run(), looking, serving, watch_node.watch_disk(), watch_node.run_check())
        await _until_stopped(stop, *duties, *renewing, *watching)
    await _let_go(runner, telemetry, jobs_end=settings.executor.jobs_end_with_agent)
    folders.stop()
    end_reader()
    if containers is not None:
        await containers.close()
    telemetry.event("agent_stopped", agent_id=name, jobs_run_on=not settings.executor.jobs_end_with_agent)


def _learn(gpus: Sequence[ProbedGpu], locality: MachineLocality, monitor: GpuMonitor | None) -> None:
    """Tell those who look after GPUs which of them the node has now."""
    locality.learn(gpus)
    if monitor is not None:
        monitor.health.offered = {gpu.uuid for gpu in gpus}


def _node_checks(settings: AgentSettings) -> NodeChecks:
    rules, runner, runs = settings.health, BoundedRunner(), count()

    def run() -> tuple[int, str]:
        mark = f"{os.getpid()}.{next(runs)}"
        if words := program_fault(rules.check):  # it was well at the start; whoever may change it now would be root
            raise OSError(words)
        try:
            said = runner.run([rules.check], rules.check_timeout_s, env={CHECK_MARK: mark})
        except OSError as fault:
            if not fault.errno:
                raise
            raise OSError(f"{rules.check} can't be run: {fault.strerror}") from fault
        finally:
            kill_marked(CHECK_MARK, mark)  # also what has left the session of the check
        return said.status, said.out or said.err

    async def check() -> tuple[int, str]:
        return await asyncio.to_thread(run)

    return NodeChecks(
        settings.data_dir, rules.disk_min_mb, check if rules.check else None, check_every_s=rules.check_every_s
    )


async def _metrics(settings: AgentSettings, source: MetricsSource, telemetry: Telemetry) -> None:
    """Serve the metrics page, if there is to be one. An address that can't be had costs only the page."""
    if not settings.metrics.address:
        return
    from stoker.agent.metrics_page import MetricsPage  # few agents serve it, and all are to stay small

    host, _, port = settings.metrics.address.rpartition(":")
    try:
        await MetricsPage(source).serve(host.strip("[]"), int(port))
    except OSError as fault:
        telemetry.warn("metrics_not_served", address=settings.metrics.address, error=str(fault))


async def _until_stopped(stop: asyncio.Event, *duties: Coroutine[Any, Any, None]) -> None:
    """Run the duties until `stop`. One that breaks ends the others and is raised."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(duty) for duty in duties]
        await stop.wait()
        for task in tasks:
            task.cancel()


async def _let_go(runner: RunnerSocket, telemetry: Telemetry, *, jobs_end: bool) -> None:
    try:
        if jobs_end:
            await runner.shutdown()
    except OSError as error:  # also TimeoutError: a process that waits in the kernel can't be killed
        telemetry.warn("runner_shutdown_failed", error=str(error) or repr(error))
    finally:
        await runner.close()


def _runner(settings: AgentSettings, name: NodeName, clock: Clock) -> RunnerSocket:
    executor = settings.executor
    options: dict[str, object] = {
        "node": name,
        "head_bytes_max": executor.log_head_mb << 20,
        "tail_bytes_max": executor.log_tail_mb << 20,
        "work_dir": f"{executor.work_dir}/{name}" if executor.work_dir else "",
        "folder_bytes_max": executor.folder_max_gb << 30,
        "tether_s": TETHER_S if executor.jobs_end_with_agent else 0.0,
    }
    every_start: dict[str, object] = {
        "allow_root": executor.allow_root,
        "umask": int(executor.umask, 8),
        "limits": default_limits() | job_limits(executor),
        "pids_max": executor.pids_max,
        "cpu_limit": "" if executor.cpu_limit == "none" else executor.cpu_limit,
        "private_tmp": executor.private_tmp,
        "prolog": executor.prolog,
        "epilog": executor.epilog,
        "site_timeout_s": executor.prolog_timeout_s,
    }
    return RunnerSocket(settings.data_dir, clock, options, every_start)


def _containers(settings: AgentSettings, uid: str, clock: Clock, telemetry: Telemetry) -> "NodeContainers | None":
    """Return what looks after the containers of this node; None = it isn't set up for any."""
    executor, data_dir = settings.executor, settings.data_dir.absolute()
    if CONTAINER not in executor.kinds:
        return None
    # Most nodes run none, and all agents are to stay small.
    from stoker.adapters.container_engine import DockerEngine
    from stoker.agent.containers import NodeContainers

    engine = DockerEngine(executor.docker.socket, executor.docker.registry_auth)
    return NodeContainers(engine, executor, data_dir, clock, telemetry, owner=uid)


def _check_library(settings: AgentSettings) -> None:
    """Raises: StokerError `bad_settings` where containers are asked for and their library isn't installed."""
    if CONTAINER not in settings.executor.kinds:
        return
    from stoker.adapters.container_engine import is_installed

    if not is_installed():
        message = "executor.kinds has `container`, and the library for that isn't installed: aiodocker"
        hint = 'pip install "stoker[containers]" in the agent\'s environment'
        raise StokerError(refuse("bad_settings", message, hint))


def _rules(settings: AgentSettings) -> TaskRules:
    executor, accounts = settings.executor, None
    if os.geteuid() == 0:
        accounts = (*(ROOT,) * executor.allow_root, *executor.accounts_without_cgroups)
    return TaskRules(memory_share=executor.memory_default == "share", accounts=accounts)


def _folders(settings: AgentSettings, clock: Clock) -> CheckpointFolders:
    executor = settings.executor
    root = Path(executor.checkpoint_dir) if executor.checkpoint_dir else settings.data_dir / CHECKPOINTS_NAME
    keep_s, bytes_max = executor.checkpoint_days * 86_400.0, executor.checkpoint_max_gb << 30
    return CheckpointFolders(root.absolute(), clock, keep_s=keep_s, bytes_max=bytes_max)


def _token(settings: AgentSettings) -> Callable[[], str] | None:
    named = settings.control.token_file
    return partial(read_token, Path(named)) if named else None


def _probe(settings: AgentSettings, name: NodeName) -> GpuProbe:
    """Raises: StokerError for a script with faults."""
    if settings.gpu.script:
        return scripted_devices(Path(settings.gpu.script), name)
    return device_probe(settings.gpu.detection)


def _monitor(
    settings: AgentSettings, probe: GpuProbe, clock: Clock, telemetry: Telemetry
) -> tuple[GpuMonitor | None, Callable[[], None]]:
    """Return the monitor of the GPUs, None = there is to be none, and what ends the process that it may keep."""
    gpu = settings.gpu
    if not gpu.telemetry_s:
        return None, lambda: None
    sampler: ScriptedDevices | NvmlSampler = probe if isinstance(probe, ScriptedDevices) else NvmlSampler()
    by_library = OneAtATime(_in_thread(sampler))
    by_program = SeldomLooks(_in_thread(SmiSampler()), clock, SMI_EVERY_S)
    sample: Sample = by_library
    if gpu.detection == "nvidia-smi":
        sample = by_program
    elif gpu.detection == "auto" and not isinstance(probe, ScriptedDevices):
        sample = FirstThatAnswers(by_library, by_program, ProgramTimeout)

    file, rules = HealthFile(settings.data_dir, boot_id(), telemetry), settings.health
    health = GpuHealth(
        HealthRules(
            leftover_mb=rules.leftover_mb,
            hot_c=rules.hot_c,
            error_clean_s=rules.error_clean_s,
            xids_drain=rules.xids_drain,
            ignored=rules.processes_ignored,
        ),
        file.read(clock.mono()),
        process_name,
        container_of,
    )
    monitor = GpuMonitor(sample, clock, telemetry, health, period_s=gpu.telemetry_s, seldom_s=gpu.probe_again_s)
    # A job of a second would wait for a thread, and find what the script says anyway.
    monitor.gates = not isinstance(probe, ScriptedDevices) or probe.has_faults
    monitor.keep = file.keep
    return monitor, sampler.close


def _in_thread(sampler: Callable[[Sequence[int] | None, Collection[GpuUuid]], GpuLook]) -> Sample:
    async def sample(indexes: Sequence[int] | None, held: Collection[GpuUuid]) -> GpuLook:
        try:
            return await asyncio.to_thread(sampler, indexes, held)
        except DriverMissing as fault:
            raise NothingToAsk(str(fault)) from fault

    return sample


def _agent_uid(data_dir: Path, entropy: Entropy) -> str:
    """The id of this agent, made on the first start in this folder, then read. Raises: OSError.

    Closed to the jobs that pass through the folder: by it the control plane tells this agent from one that took its
    name.
    """
    path = data_dir / UID_NAME
    with contextlib.suppress(FileNotFoundError):
        path.chmod(_OWNERS)
        known = path.read_text().strip()
        if known:
            return known
    uid = entropy.uid()
    write_atomic(path, f"{uid}\n".encode())
    return uid
