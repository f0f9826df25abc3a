"""A job has the umask and the limits that its node's settings say, whoever started the agent, and as any user."""

import os
import resource
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stoker.agent.machine import check_limits
from stoker.agent.settings import ExecutorSettings
from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.job import EndCause
from tests.contracts.runner import agent_on, key
from tests.real.agent_process import AgentProcess, submit, until_state
from tests.real.control_process import ControlProcess
from tests.real.forks import limited
from tests.real.runner_node import node_in
from tests.real.unix_users import Users, in_a_child, made_users, needs_root

SAY = "umask; ulimit -n; ulimit -Hn; ulimit -c; ulimit -s"


@pytest.fixture(scope="module")
def users() -> Iterator[Users]:
    with made_users() as users:
        yield users


def may_raise() -> bool:
    """Root in a container may be held to limits like anybody."""

    def try_it(say: Callable[[bytes], object]) -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 1))

    return in_a_child(try_it)[1] == 0


def test_a_job_has_the_umask_and_limits_of_the_settings_also_from_a_runner_that_began_with_others(
    tmp_path: Path,
) -> None:
    with ControlProcess(tmp_path / "control") as control:
        agent = AgentProcess(tmp_path / "node-1", control)
        agent.limits = {resource.RLIMIT_NOFILE: 500, resource.RLIMIT_CORE: 0}
        said = []
        with agent:
            for index, line in enumerate(("", "executor: {umask: '027', limits: {nofile: 300:400, stack: 4M}}")):
                runner = agent.runner_pid if index else 0
                if index:
                    agent.kill()
                    agent.add(line)
                    agent.start()
                one = submit(control, SAY, gpu_count=0, output=f"{tmp_path}/out-{index}")
                until_state(control, one, "succeeded")
                said.append((tmp_path / f"out-{index}").read_text().split())
                assert agent.runner_pid == runner or not index
        stack = resource.getrlimit(resource.RLIMIT_STACK)[0]
        assert said[0] == ["0022", "500", "500", "0", str(stack >> 10) if stack >= 0 else "unlimited"]
        assert said[1] == ["0027", "300", "400", "0", "4096"]
        modes = [stat.S_IMODE((tmp_path / f"out-{index}").stat().st_mode) for index in range(2)]
        assert modes == [0o644, 0o640], "files that are written for it too"


def test_an_agent_that_may_not_give_a_limit_refuses_to_start_and_says_what_to_do(tmp_path: Path) -> None:
    def try_it(say: Callable[[bytes], object]) -> None:
        limited({resource.RLIMIT_NOFILE: 500})
        if os.geteuid() == 0:
            os.setresuid(4_321, 4_321, 4_321)
        for text in ("500", "10:20", "501", "10:501"):
            try:
                check_limits(ExecutorSettings(limits={"nofile": text}))
            except StokerError as error:
                say(f"{error.refusal.message} | {error.refusal.hint}\n".encode())

    words, status = in_a_child(try_it)
    assert status == 0
    hint = "give the agent's unit `LimitNOFILE=`, run the agent as root, or set it lower"
    assert words.decode().splitlines() == [
        f"executor.limits: nofile: {text} is above 500, and this account may not raise it | {hint}"
        for text in ("501", "10:501")
    ]


def test_no_account_has_more_open_files_than_the_kernel_allows(tmp_path: Path) -> None:
    agent = AgentProcess(tmp_path / "node-1")
    agent.add("executor: {limits: {nofile: unlimited}}")
    with agent:
        assert agent.wait() == 2
    assert "executor.limits: nofile: unlimited is " in agent.output()


@needs_root
@pytest.mark.skipif(not may_raise(), reason="NOT PROVED HERE: root may not raise limits in this container")
async def test_a_job_of_a_user_has_a_limit_that_only_root_may_give(users: Users) -> None:
    folder = Path(tempfile.mkdtemp(dir=users.folder))
    folder.chmod(0o711)
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 512))
        async with node_in(folder, node="gpu-07") as node:
            node.every_start = {"umask": 0o077, "limits": {"core": [1_024, 2_048], "nofile": [100, 100]}}
            async with agent_on(node) as agent:
                line = "umask; ulimit -c; ulimit -Hc; ulimit -n; id -un"
                await agent.runner.start(node.shell(key(1), line, workdir="", user=users.ann))
                end = await agent.end(key(1))
                said = (await agent.runner.read_log(key(1), 0, 1 << 20)).data.decode().split()
                assert (end.cause, said) == (EndCause.EXITED, ["0077", "2", "4", "100", users.ann])
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, (0, hard))


async def test_a_limit_that_a_runner_cannot_give_is_charged_to_no_job(tmp_path: Path) -> None:
    """It is older than its agent."""
    async with node_in(tmp_path) as node:
        node.every_start = {"limits": {"openfiles": [0, 0]}}
        async with agent_on(node) as agent:
            await agent.runner.start(node.shell(key(1), "true"))
            end = await agent.end(key(1))
            words = "this node can't give a job its limits: its runner knows no limit 'openfiles'"
            assert (end.cause, end.error) == (EndCause.NEVER_STARTED, words)
