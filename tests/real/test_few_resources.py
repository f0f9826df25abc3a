"""A node that may have few open files or processes offers what it can take, says why, and no job pays for it."""

import importlib
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stoker.agent.main import _check_processes
from stoker.agent.runner.process import kernel
from stoker.agent.runner.process.procfs import threads_of
from stoker.agent.runner.settings import parse_arguments
from stoker.agent.runner.supervisor import cause_of
from stoker.brain.domain.errors import StokerError
from tests.real.agent_process import AgentProcess, job, submit, until, until_state
from tests.real.control_process import ControlProcess
from tests.real.forks import limited
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
            jobs = [submit(control, wait, gpu_count=0, output=f"{tmp_path}/out-{index}") for index in range(10)]
            for each in jobs[:8]:
                until_state(control, each, "running")
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
