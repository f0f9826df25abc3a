"""A node that may have few open files or processes offers what it can take, says why, and no job pays for it."""

import importlib
import os
import re
import resource
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import pytest

from stoker.agent.main import _check_processes
from stoker.agent.runner.process import kernel
from stoker.agent.runner.process.procfs import threads_of
from stoker.agent.runner.settings import parse_arguments
from stoker.agent.runner.supervisor import cause_of
from stoker.brain.domain.errors import StokerError
from tests.real.agent_process import AgentProcess, job, submit, until, until_state
from tests.real.control_process import ControlProcess
from tests.real.forks import SRC, Started, limited, started
from tests.real.unix_users import in_a_child


def bounds_of(account: int, processes: int) -> tuple[int, str, int]:
    """The tasks that a runner of this account takes with such a limit, what it is short of, and the threads it has.

    Those are more than one where gRPC starts its own anew in a child of this process.
    """

    def try_it(say: Callable[[bytes], object]) -> None:
        limited({resource.RLIMIT_NPROC: processes})
        importlib.reload(kernel)  # which reads the limits as it is imported
        os.setresuid(account, account, account)
        settings = parse_arguments(["--data_dir", "/x"])
        _, processes_max = kernel.raise_limits()
        threads = threads_of(account)
        settings.keep_within(-1, processes_max, threads)
        say(f"{settings.tasks_max} {threads} {settings.short_of}".encode())

    words, status = in_a_child(try_it)
    assert status == 0
    tasks, threads, short_of = words.decode().split(" ", 2)
    return int(tasks), short_of, int(threads)


def node_of(control: ControlProcess) -> dict[str, Any]:
    nodes = control.ask("GET", "/api/v1/nodes")[1]["nodes"]
    return dict(nodes[0]) if nodes else {}


@contextmanager
def sessions_until_refused(control: ControlProcess, jobs: list[str], folder: Path) -> Iterator[str]:
    """While programs are executed in these jobs, as many as their node takes: why it takes no more."""
    clients, said = list[Started](), folder / "said"
    try:
        for name in [*jobs, *jobs]:
            words = [sys.executable, "-m", "stoker", "exec", name, "--", "sh", "-c", "echo in; exec sleep 300"]
            with said.open("wb") as out:
                clients.append(started(words, out=out, env={**os.environ, **control.environ}))
            until(lambda: "in\n" in said.read_text() or clients[-1].poll() is not None, "it is in, or refused")
            if "in\n" not in said.read_text():
                break
        assert len(clients) > 1, said.read_text()
        yield said.read_text()
    finally:
        for client in clients:
            client.kill()
            client.wait(30.0)


def test_a_node_with_64_open_files_offers_as_many_cpus_as_it_takes_tasks_and_takes_them(tmp_path: Path) -> None:
    with ControlProcess(tmp_path / "control") as control:
        agent = AgentProcess(tmp_path / "node-1", control)
        agent.environ["STOKER__NODE__CPUS"] = "64"
        agent.limits = {resource.RLIMIT_NOFILE: 64}
        with agent:
            until(lambda: node_of(control), "it joins")
            node = node_of(control)
            assert node["cpus"] == 8
            few, *_ = node["limits"].split("; ")  # what else it says is of cgroups, where there are none
            assert few == "offers 8 of 64 CPUs, since its runner may have only 64 open files (`ulimit -n`)"
            go = tmp_path / "go"
            wait = f"while [ ! -e {go} ]; do sleep 0.2; done"
            jobs = [submit(control, wait, gpu_count=0, output=f"{tmp_path}/out-{index}") for index in range(7)]
            for each in jobs:
                until_state(control, each, "running")
            with sessions_until_refused(control, jobs, tmp_path) as refused:
                assert "too few files open (`ulimit -n`) for one more session" in refused
                jobs += [submit(control, wait, gpu_count=0, output=f"{tmp_path}/out-{index}") for index in range(7, 10)]
                until_state(control, jobs[7], "running")  # people in jobs leave what it needs to start
            assert [job(control, each)["state"] for each in jobs[8:]] == ["pending", "pending"]
            go.touch()
            done = [until_state(control, each, "succeeded", "failed", "node_failed") for each in jobs]
            assert [(one["state"], len(one["attempts"])) for one in done] == [("succeeded", 1)] * 10


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT PROVED HERE: only root has another account to try it as")
@pytest.mark.parametrize("processes", [40, 400])
def test_a_runner_with_few_processes_takes_as_many_tasks_as_they_allow(processes: int) -> None:
    """`ulimit -u`, which holds all accounts but root."""
    tasks, short_of, threads = bounds_of(4_321, processes)
    assert short_of == f"{processes} processes (`ulimit -u`), {threads} in use"
    assert tasks == (processes - 8 - threads) // 4
    assert bounds_of(0, processes)[:2] == (4_096, "")


FILL = """
import os, pathlib, signal, sys
full, go = map(pathlib.Path, sys.argv[1:])
while not go.exists():
    try:
        os.fork() or signal.pause()
    except BlockingIOError:
        full.touch()
        signal.sigtimedwait([], 0.01)
os.killpg(0, signal.SIGKILL)
"""

TRY = "import os, grpc, sys; os.posix_spawn(sys.executable, [sys.executable, '-c', 'import stoker'], os.environ)"


class AgentOfAnother(AgentProcess):
    """One that runs as an account that isn't root: `ulimit -u` holds all others."""

    def __init__(self, folder: Path, control: ControlProcess, account: int) -> None:
        super().__init__(folder, control)
        self._as = ["setpriv", f"--reuid={account}", f"--regid={account}", "--clear-groups"]
        theirs = folder / "token"
        theirs.write_text(control.tokens.agent_file.read_text())
        theirs.chmod(0o600)
        self.environ |= {"STOKER__CONTROL__TOKEN_FILE": str(theirs), "STOKER__NODE__CPUS": "64"}
        self.environ["PYTHONPATH"] = f"{SRC}{os.pathsep}{sysconfig.get_path('purelib')}"
        for each in (folder, *folder.iterdir()):
            os.chown(each, account, account)
        # Where this interpreter is in a folder of root's own, the system's does, if it is of the same version.
        names = (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}")
        words = (*self._as, "env", f"PYTHONPATH={self.environ['PYTHONPATH']}")
        tries = {
            name: subprocess.run([*words, name, "-c", TRY], capture_output=True, text=True, check=False)
            for name in names
        }
        fit = [name for name, done in tries.items() if done.returncode == 0]
        if not fit:
            pytest.skip(f"NOT PROVED HERE: another account can't run this interpreter: {tries}")
        self.python = fit[0]

    def start(self) -> Self:
        with (self.folder / "agent.out").open("ab") as output:
            words = [*self._as, self.python, "-m", "stoker", "agent", "-c", str(self.settings)]
            self._process = started(words, out=output, env={**os.environ, **self.environ}, limits=self.limits)
        return self


def first_end(control: ControlProcess, name: str) -> tuple[str, str, int, str]:
    """Of a job: error and cause of its first attempt, the requeues that it has paid, and its name."""

    def end() -> dict[str, Any]:
        attempts = job(control, name)["attempts"]
        return dict(attempts[0]["tasks"][0]) if attempts and attempts[0]["tasks"][0]["cause"] else {}

    until(end, f"the first attempt of job {name} is over")
    return end()["error"], end()["cause"], job(control, name)["requeues_used"], name


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT PROVED HERE: only root has another account to try it as")
def test_a_node_with_40_processes_offers_what_it_can_start_and_a_start_that_it_refuses_costs_the_job_nothing() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="stoker-few-") as name,  # pytest's own are closed to other accounts
        ControlProcess(Path(name, "control")) as control,
    ):
        folder = Path(name)
        folder.chmod(0o711)
        agent = AgentOfAnother(folder / "node-1", control, 4_321)
        agent.limits = {resource.RLIMIT_NPROC: 40}
        with agent:
            until(lambda: node_of(control), "it joins")
            node = node_of(control)
            found = re.search(r"may have only 40 processes \(`ulimit -u`\), (\d+) in use", node["limits"])
            assert found, node["limits"]
            assert node["cpus"] == (40 - 8 - int(found[1])) // 4
            # Each has a shell and a program; one more waits for a place.
            jobs = [submit(control, "sleep 300 & wait", gpu_count=0) for _ in range(node["cpus"] + 1)]
            for each in jobs[:-1]:
                until_state(control, each, "running")
            assert job(control, jobs[-1])["state"] == "pending"
            for each in jobs:
                control.ask("DELETE", f"/api/v1/jobs/{each}")
            assert {until_state(control, each, "cancelled", "failed", "node_failed")["state"] for each in jobs} == {
                "cancelled"
            }
            full, go = agent.data_dir / "full", folder / "go"
            filler = submit(control, [agent.python, "-c", FILL, str(full), str(go)], gpu_count=0)
            until(full.exists, f"job {filler} has taken every process that its account may have")
            tried = []
            while len(tried) < 50 and not any(
                "(EAGAIN)" in error for error, *_ in tried
            ):  # a thread of the agent may have left its place
                tried.append(first_end(control, submit(control, "true", gpu_count=0)))
            *well, (error, cause, requeues, refused) = tried
            assert [cause for _, cause, *_ in well] == ["exited"] * len(well)
            assert (cause, requeues) == ("never_started", 0), error
            go.touch()
            assert until_state(control, refused, "succeeded", "failed", "node_failed")["state"] == "succeeded"


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT PROVED HERE: only root has another account to try it as")
def test_an_agent_that_may_have_too_few_processes_says_so_instead_of_waiting_for_ever() -> None:
    def try_it(say: Callable[[bytes], object]) -> None:
        os.setresuid(4_321, 4_321, 4_321)
        for most in (resource.RLIM_INFINITY, 400, 10):
            try:
                _check_processes(most)
            except StokerError as error:
                say(f"{most} {error.refusal.code} {error.refusal.message}".encode())

    words, _ = in_a_child(try_it)
    assert words.decode().startswith("10 too_few_processes this account may have 10 processes (`ulimit -u`), and has ")


@pytest.mark.parametrize("files", [12, 14])
def test_an_agent_that_may_have_too_few_files_open_says_so_instead_of_dying_of_a_library(
    files: int, tmp_path: Path
) -> None:
    agent = AgentProcess(tmp_path / "n1", name="n1")
    agent.limits = {resource.RLIMIT_NOFILE: files}
    agent.start()
    assert agent.wait() != 0
    assert f"this process may have {files} files open" in agent.output()
    assert "[too_few_files]" in agent.output()


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("cannot run /bin/true as user 'ann': Resource temporarily unavailable (EAGAIN)", "never_started"),
        ("cannot use the working directory /x: Too many open files (EMFILE)", "never_started"),
        ("no folder for checkpoints, /c/71: No space left on device (ENOSPC)", "never_started"),
        ("cannot run /bin/true as user 'ann': Input/output error (EIO)", "never_started"),
        ("this node can't give a job its limits: not allowed to raise maximum limit", "never_started"),
        ("the runner's child failed before it could become the program", "never_started"),
        ("cannot run /bin/no (EAGAIN): Permission denied (EACCES)", "start_failed"),
    ],
)
def test_a_start_for_which_the_node_lacks_resources_is_no_failure_of_the_job(reason: str, cause: str) -> None:
    assert cause_of(reason) == cause


@pytest.mark.parametrize("lacks", ["(ENOSPC)", "(EROFS)", "(EIO)", "(EAGAIN)"])
@pytest.mark.parametrize(
    "place", ["cannot write its output to /soft/x as user 'ann'", "cannot use the working directory /x"]
)
def test_a_place_that_the_job_named_is_no_fault_of_the_node(place: str, lacks: str) -> None:
    """Three jobs that write to a read-only share would pause one node after the other, for everybody."""
    assert cause_of(f"{place}: whatever {lacks}") == "start_failed"
