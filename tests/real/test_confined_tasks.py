"""What a node holds a task to: the devices of its own GPUs, its part of the CPUs, CPUs beside its GPUs, a /tmp."""

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from stoker.agent.gpu_ports import Placement
from stoker.agent.ports import StartTask
from stoker.brain.domain.job import EndCause
from tests.contracts.runner import agent_on, key
from tests.real.agent_process import AgentProcess, submit, until_state
from tests.real.control_process import ControlProcess
from tests.real.runner_node import RealNode, node_in, wait_until
from tests.real.unix_users import Users, made_users, needs_root

pytestmark = pytest.mark.timeout(120)

TREES = pytest.mark.parametrize("tree", ["v1", "v2"])
NULL, ZERO = (1, 3), (1, 5)
OPENS = "for each in null zero full; do (exec 3</dev/$each) 2>/dev/null && echo $each; done; true"
SPINS = """
import os, sys, time
here, mine, other = sys.argv[1:]
open(f"{here}/{mine}", "w").close()
while not os.path.exists(f"{here}/{other}"): pass
begin, cpu = time.monotonic(), time.process_time()
while time.monotonic() < begin + 1.5: pass
print(time.process_time() - cpu)
"""


def placed(task: StartTask, **placement: tuple[object, ...]) -> StartTask:
    return msgspec.structs.replace(task, placement=msgspec.convert(placement, Placement))


async def said(node: RealNode, task: StartTask) -> str:
    """Run a task to its end, and return its output."""
    async with agent_on(node) as agent:
        await agent.runner.start(task)
        end = await agent.end(task.start.key)
        assert (end.cause, end.exit_code) == (EndCause.EXITED, 0), end
        return (await agent.runner.read_log(task.start.key, 0, 1 << 20)).data.decode()


def _thrown_away(folder: Path) -> list[str]:
    """What a task's end leaves for a while; `Path.rglob` raises where something goes meanwhile."""
    return [
        f"{place}/{name}"
        for place, folders, files in os.walk(folder)
        for name in (*folders, *files)
        if place.endswith("/trash") or name.startswith(".tmp.")
    ]


async def skip_unless(node: RealNode, what: str) -> None:
    async with agent_on(node) as agent:
        if any(what in note for note in agent.runner.notes):
            pytest.skip(f"no {what} can be used here")


@TREES
async def test_a_task_opens_no_device_that_is_denied_to_it_whatever_it_is_named(tmp_path: Path, tree: str) -> None:
    async with node_in(tmp_path, tree=tree) as node:
        await skip_unless(node, "device filter")
        assert await said(node, node.shell(key(1), OPENS)) == "null\nzero\nfull\n"
        task = placed(node.shell(key(2), OPENS), denied=(ZERO, (195, 0)))
        assert await said(node, task) == "null\nfull\n"
        own = "mknod mine c 1 5 2>&1; test -e mine || echo none; setsid sh -c '(exec 3</dev/zero) 2>&1' || echo refused"
        words = await said(node, placed(node.shell(key(3), own), denied=(ZERO,)))
        assert "none" in words.splitlines()
        assert words.count("Operation not permitted") == 2
        assert words.endswith("refused\n")


@needs_root
def test_a_job_opens_the_device_nodes_of_its_own_gpus_and_gets_eperm_at_anothers(tmp_path: Path) -> None:
    """Must show 2 of step 10, with real device nodes of memory in the place of GPUs'."""
    nodes = [tmp_path / "gpu0", tmp_path / "gpu1"]
    for path, number in zip(nodes, (NULL, ZERO), strict=True):
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(*number))
        path.chmod(0o666)
    with ControlProcess(tmp_path / "control") as control:
        agent = AgentProcess(tmp_path / "node-1", control)
        lines = [f"  - {{model: H100, memory_mb: 80000, device: {path}}}" for path in nodes]
        (agent.folder / "gpus.yaml").write_text("\n".join(["gpus:", *lines, ""]))
        with agent:
            line = f"for each in {nodes[0]} {nodes[1]}; do (exec 3<$each) && echo opened $each; done; sleep 60"
            jobs = [
                submit(control, line, gpu_count=1, output=f"{tmp_path}/out{index}", error=f"{tmp_path}/err{index}")
                for index in range(2)
            ]
            for job in jobs:
                until_state(control, job, "running")
            if "no device filter can be used here" in agent.output():
                pytest.skip("no device filter can be used here")
            outs = [tmp_path / f"out{index}" for index in range(2)]
            wait_until(lambda: all("opened" in out.read_text() for out in outs), "both have opened their own")
            wait_until(lambda: all("not permitted" in (tmp_path / f"err{i}").read_text() for i in range(2)), "EPERM")
            if any("device filter" in line for line in agent.output().splitlines()):
                pytest.skip("no device filter can be used here")
            opened = [out.read_text().split() for out in outs]
            assert sorted(opened) == [["opened", str(path)] for path in nodes]


@TREES
async def test_when_a_cpu_is_short_tasks_get_it_in_proportion_to_the_cpus_that_they_asked_for(
    tmp_path: Path, tree: str
) -> None:
    async with node_in(tmp_path, tree=tree) as node:
        await skip_unless(node, "cpu controller")
        node.every_start = {"cpu_limit": "weight"}
        cpu = min(os.sched_getaffinity(0))
        async with agent_on(node) as agent:
            for job, other, cpus in ((1, 2, 4), (2, 1, 1)):
                words = ["python3", "-c", SPINS, str(tmp_path), str(job), str(other)]
                await agent.runner.start(placed(node.command(key(job), words, {}, cpus=cpus), cpus=(cpu,)))
            used = []
            for job in (1, 2):
                assert (await agent.end(key(job))).exit_code == 0
                used.append(float((await agent.runner.read_log(key(job), 0, 1 << 20)).data))
        assert 2 < used[0] / used[1] < 8, used


async def test_with_a_quota_a_task_gets_no_more_cpu_time_than_it_asked_for(tmp_path: Path) -> None:
    async with node_in(tmp_path, tree="v1") as node:
        await skip_unless(node, "cpu controller")
        node.every_start = {"cpu_limit": "quota"}
        own = r"sed -n 's/^[0-9]*:cpu\(,[a-z]*\)*:.//p' /proc/self/cgroup"
        line = f"cat /sys/fs/cgroup/cpu/$({own})/cpu.cfs_quota_us"
        assert await said(node, node.shell(key(1), line, cpus=3)) == "300000\n"


async def test_a_task_runs_on_the_cpus_beside_its_gpus_and_on_all_where_one_of_them_is_gone(tmp_path: Path) -> None:
    line = "python3 -c 'import os; print(*sorted(os.sched_getaffinity(0)))'"
    every = sorted(os.sched_getaffinity(0))
    async with node_in(tmp_path) as node:
        assert await said(node, placed(node.shell(key(1), line), cpus=(every[-1],))) == f"{every[-1]}\n"
        assert (await said(node, placed(node.shell(key(2), line), cpus=(9_999,)))).split() == list(map(str, every))


@pytest.fixture(scope="module")
def users() -> Iterator[Users]:
    with made_users() as users:
        yield users


@needs_root
async def test_a_task_has_a_private_tmp_that_is_empty_and_goes_with_it(users: Users) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name, tempfile.NamedTemporaryFile(dir="/tmp") as others:
        folder = Path(name)
        folder.chmod(0o711)
        async with node_in(folder, node="gpu-07") as node:
            node.every_start = {"private_tmp": True}
            line = (
                f"test -e {others.name} && echo seen; ls -A /tmp /var/tmp; echo mine >/tmp/a; cp /tmp/a /var/tmp/b; pwd"
            )
            words = await said(node, node.shell(key(1), line, workdir="", user=users.ann))
            assert words.split()[:2] == ["/tmp:", "/var/tmp:"]
            assert len(words.split()) == 3, words
            assert not Path("/tmp/a").exists()
            wait_until(lambda: not _thrown_away(folder), "its files are gone")


@needs_root
def test_a_program_that_is_executed_in_a_job_sees_the_jobs_own_tmp() -> None:
    mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    if not any(fields[3:5] == ["/", "/"] for fields in mounts):
        pytest.skip("perhaps in a chroot, which whoever enters a job's mounts leaves")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        folder = Path(name)
        with ControlProcess(folder / "control") as control:
            agent = AgentProcess(folder / "node-1", control)
            agent.add("executor: {private_tmp: true}")
            with agent:
                running = submit(control, "echo inside >/tmp/said; sleep 60", gpu_count=0)
                until_state(control, running, "running")
                words = [sys.executable, "-m", "stoker", "exec", running, "--", "cat", "/tmp/said"]
                environ = {**os.environ, **control.environ}

                def told() -> str:
                    return subprocess.run(words, env=environ, capture_output=True, text=True, timeout=60).stdout

                wait_until(lambda: told() == "inside\n", "it sees what the job wrote to its /tmp")
                assert not Path("/tmp/said").exists()
