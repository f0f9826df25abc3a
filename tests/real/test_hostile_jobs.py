"""Many jobs, some of them hostile, with cancels, killed agents and runners, and sick GPUs: nothing is left at the end.

Where a dockerd can be started, a quarter of them run in containers of it, which all nodes share.

Each history follows from a seed but for the timing of real processes: a failure names the seed, and what was left.
"""

import os
import random
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from stoker.agent.runner.process import procfs
from stoker.agent.runner.process.cgroup import _PREFIX as CGROUP_PREFIX
from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.health import HealthKind
from stoker.wire.client import Client, JobBody
from stoker.wire.rest.job import JobListQuery, JobView
from stoker.wire.rest.node import GpuView
from tests.real.agent_process import AgentProcess, until
from tests.real.control_process import ControlProcess
from tests.real.docker_daemon import IMAGE, Daemon, docker_engine, why_not
from tests.real.failing_over import FINAL

NODES: Final = 3
JOBS: Final = int(os.environ.get("STOKER_HOSTILE_JOBS", "200"))
"""Of each history; `STOKER_HOSTILE_JOBS=1000 make test-heavy ARGS="-k hostile_jobs"` has a thousand."""
OPEN_MAX: Final = 24
"""Jobs that run or wait to at a time: the next is submitted when there are fewer."""
HOSTILE: Final = (
    "true",
    "exit 3",
    "sleep 0.3",
    "seq 3000; echo done",
    "trap '' TERM; sleep 60",  # hears no order to end
    "setsid sleep 60 & sleep 0.1",  # leaves a child in a session of its own
    "(setsid sh -c '(sleep 60 &)' &) ; exit 0",  # forked twice, its parents are gone
    "nohup env -i sleep 60 >/dev/null 2>&1 & exit 0",  # without the marks of its job
    "kill -STOP $$",  # stopped, it can't end by itself
    "sh -c 'kill -STOP $$' & sleep 60",
    "for i in 1 2 3 4 5 6; do (trap '' TERM HUP INT; exec sleep 60) & done; wait",
    "exec >&- 2>&-; sleep 60",  # nobody reads or writes its output
    "mkdir -p $STOKER_CHECKPOINT_DIR/a; cd $STOKER_CHECKPOINT_DIR/a; sleep 60",
    "kill -9 $$",
)
HOSTILE_INSIDE: Final = (
    "true",
    "exit 3",
    "sleep 0.3",
    "trap '' TERM; sleep 60",
    "setsid sleep 60 & sleep 0.1",
    "(setsid sh -c '(sleep 60 &)' &) ; exit 0",
    "nohup env -i sleep 60 >/dev/null 2>&1 & exit 0",
    "kill -STOP $$; sleep 60",
    "for i in 1 2 3 4 5 6; do (trap '' TERM HUP INT; exec sleep 60) & done; wait",
    "seq 200000",  # more than is kept, faster than it is read
    "exec >&- 2>&-; sleep 60",
    HUNGRY := "x=a; while :; do x=$x$x; done",
    "kill -9 $$",
)
HUNGRY_MB: Final = 48
CONTAINED: Final = 0.25
"""Share of jobs that run in a container, where there are any."""
FAULTS: Final = """gpus: [{count: 4, model: Tesla V100, memory_mb: 16384}]
faults:
  - {kind: lost, gpu: 1, at_s: 6, for_s: 6}
  - {kind: xid, gpu: 2, at_s: 10, code: 79}
  - {kind: leftover, gpu: 0, at_s: 14, for_s: 5, memory_mb: 9000}
  - {kind: process, gpu: 3, at_s: 18, for_s: 5, pid: 1}
"""
LIMIT: Final = "20s"
"""Time limit of jobs that would never end."""


class Cluster:
    """A control plane and agents on which jobs of one mark run."""

    def __init__(self, folder: Path, control: ControlProcess, dice: random.Random, docker: Daemon | None) -> None:
        self.folder, self.control, self.dice, self.docker = folder, control, dice, docker
        self.mark = f"HOSTILE={os.getpid()}-{folder.name}"
        self.agents = [AgentProcess(folder / f"node-{i}", control, name=f"node-{i}") for i in range(NODES)]
        (self.agents[-1].folder / "gpus.yaml").write_text(FAULTS)
        for agent in self.agents if docker else ():
            kinds = "kinds: [process, container]"
            agent.add(f"executor: {{{kinds}, docker: {{socket: {docker.socket if docker else ''}, pull: never}}}}")
        self.drift: set[str] = set()

    def job(self) -> JobBody:
        tasks = self.dice.choice((1, 1, 1, 2))
        name, _, value = self.mark.partition("=")
        contained = self.docker is not None and self.dice.random() < CONTAINED
        command = self.dice.choice(HOSTILE_INSIDE if contained else HOSTILE)
        return JobBody(
            command=command,
            image=IMAGE if contained else None,
            memory_mb=HUNGRY_MB if command == HUNGRY else 0,
            gpu_count=self.dice.choice((0, 1, 1, 2)),
            tasks=tasks,
            env={name: value},
            time_limit=LIMIT,
            retries=self.dice.choice((0, 0, 1)),
        )

    def harm(self) -> None:
        """Kill an agent, a runner, or both; the agent comes back."""
        agent = self.dice.choice(self.agents)
        whom = self.dice.choice(("agent", "runner", "both"))
        if whom != "agent":
            kill_runner(agent)
        if whom != "runner":
            agent.kill()
            agent.start()

    def audited(self) -> None:
        found = re.search(rb"^stoker_ledger_drift (\S+)$", self.control.metrics(), re.MULTILINE)
        if found and float(found[1]):
            self.drift.add(found[0].decode())

    def processes(self) -> list[str]:
        """Processes of jobs that live: by the mark of these jobs, or in their cgroups."""
        groups = self.cgroups()
        grouped = {pid for group in groups for pid in (Path(group) / "cgroup.procs").read_text().split()}
        marked = [proc.pid for proc in procfs.every_proc().values() if self.mark.encode() in environ_of(proc.pid)]
        return [f"{pid} {command_of(int(pid))}" for pid in sorted({*map(str, marked), *grouped})]

    def cgroups(self) -> list[str]:
        ours = []
        for agent in self.agents:
            folder = agent.data_dir.stat()
            ours.append(f"{CGROUP_PREFIX}{folder.st_dev:x}-{folder.st_ino:x}-")
        walked = os.walk("/sys/fs/cgroup")
        return [f"{up}/{name}" for up, names, _ in walked for name in names if name.startswith(tuple(ours))]


def kill_runner(agent: AgentProcess) -> None:
    try:
        os.kill(agent.runner_pid, 9)
    except (OSError, ValueError):  # it has just been killed, or its successor has yet to begin
        return


def environ_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return "(gone)"


def live_jobs(client: Client) -> list[JobView]:
    return [job for job in client.each_job(JobListQuery()) if job.state not in FINAL]


def history(cluster: Cluster, client: Client, jobs: int) -> None:
    """Submit so many jobs, cancel some, and do harm meanwhile."""
    submitted: list[str] = []
    harmed_at = time.monotonic()
    while len(submitted) < jobs:
        status = client.status()
        room = OPEN_MAX - status.pending_jobs - status.running_jobs
        fresh = [cluster.job() for _ in range(min(room, jobs - len(submitted)))]
        submitted += [job.id for job in client.submit_many(fresh)] if fresh else []
        for job_id in submitted[-OPEN_MAX:]:
            if cluster.dice.random() < 0.1:
                cancelled(client, job_id)
        if time.monotonic() > harmed_at + 2:
            harmed_at = time.monotonic()
            cluster.harm()
        cluster.audited()
        time.sleep(0.05)


def cancelled(client: Client, job_id: str) -> None:
    try:
        client.cancel(job_id)
    except StokerError as fault:
        assert fault.refusal.code == "job_ended", fault  # noqa: PT017  # any other refusal is a defect


def is_missing(gpu: GpuView) -> bool:
    """An error of the driver's is watched for longer than a test; anything else is over."""
    watched = gpu.health is not None and gpu.health.kind is HealthKind.XID
    return gpu.status != "idle" and not watched


def containers_run(client: Client) -> None:
    """Whatever of the history was cancelled: here containers really run."""
    wanted = {"true": "succeeded", "exit 3": "failed", HUNGRY: "out_of_memory"}
    jobs = client.submit_many([JobBody(command=each, image=IMAGE, memory_mb=HUNGRY_MB) for each in wanted])
    for job, state in zip(jobs, wanted.values(), strict=True):
        until(lambda job=job: client.job(job.id).state in FINAL, f"job {job.id} ends", within_s=180)
        assert client.job(job.id).state == state


def nothing_is_left(cluster: Cluster, client: Client) -> None:
    def told(what: str, left: Callable[[], object]) -> None:
        try:
            until(lambda: not left(), what, within_s=180)
        except AssertionError as fault:
            raise AssertionError(f"{fault}: {left()}") from None

    told("every job ends", lambda: [(job.id, job.state, job.reason) for job in live_jobs(client)])
    told("no process is left", cluster.processes)
    if cluster.docker is not None:
        told("no container is left", cluster.docker.containers)
    told("no cgroup is left", cluster.cgroups)
    told("no GPU is held", lambda: [gpu for gpu in client.gpus().gpus if gpu.current_task])
    told("every GPU is offered again", lambda: [gpu for gpu in client.gpus().gpus if is_missing(gpu)])
    cluster.audited()
    assert not cluster.drift


@pytest.fixture(scope="module")
def docker() -> Iterator[Daemon | None]:
    """One engine for all nodes, or none where it can't be started."""
    if why_not():
        yield None
        return
    with docker_engine() as daemon:
        yield daemon


@pytest.mark.heavy
@pytest.mark.timeout(600 + 3 * JOBS)
@pytest.mark.parametrize("seed", [1, 2])
def test_many_hostile_jobs_leave_nothing_behind(tmp_path: Path, docker: Daemon | None, seed: int) -> None:
    with ControlProcess(tmp_path / "control", lease_s=30) as control, control.client(patience_s=60) as client:
        cluster = Cluster(tmp_path, control, random.Random(seed), docker)
        try:
            for agent in cluster.agents:
                agent.start()
            until(lambda: client.status().online_nodes == NODES, "the nodes are there: else an image is refused")
            history(cluster, client, JOBS)
            if docker is not None:
                containers_run(client)
            nothing_is_left(cluster, client)
        finally:
            for agent in cluster.agents:
                agent.__exit__(None, None, None)
