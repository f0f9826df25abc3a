"""A directory of accounts that hangs or breaks (U1 and U2 of `runner/process/account.py`), under a real runner."""

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stoker.brain.domain.job import EndCause
from tests.contracts.runner import Listener, agent_on, key
from tests.real.runner_node import RealNode, node_in, wait_until
from tests.real.unix_users import needs_root

pytestmark = needs_root
HANGING = """
import os, pathlib, pwd, signal
from stoker.agent.runner.process import account
account.LOOKUP_S = {seconds}
def hang(name):
    pathlib.Path("{noted}").write_text(f"{{os.getpid()}}\\n")
    signal.pause()
pwd.getpwnam = hang
"""


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[RealNode]:
    async with node_in(tmp_path, node="gpu-07") as node:
        yield node


@pytest.fixture
def seconds() -> float:
    return 0.3


@pytest.fixture
async def agent(
    node: RealNode, tmp_path: Path, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Listener]:
    """Of a runner that asks a directory which never answers, and notes which process waits for it."""
    (tmp_path / "site").mkdir()
    program = HANGING.format(seconds=seconds, noted=tmp_path / "asks")
    (tmp_path / "site" / "sitecustomize.py").write_text(program)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'site'}:{os.environ.get('PYTHONPATH', '')}")
    async with agent_on(node) as agent:
        yield agent


@pytest.mark.parametrize("output", ["", "out.txt"], ids=["task", "file"])
async def test_a_directory_that_hangs_fails_its_own_start_and_holds_up_no_other(
    node: RealNode, agent: Listener, output: str
) -> None:
    await agent.runner.start(node.shell(key(1), "true", user="ann", output=output))
    wait_until((node.folder / "asks").exists, "the name is being looked up")
    await agent.runner.start(node.shell(key(2), "true"))
    assert (await agent.end(key(2))).clean
    end = await agent.end(key(1))
    assert end.cause is EndCause.START_FAILED
    assert "user 'ann' could not be looked up on node gpu-07" in end.error
    assert "getent passwd ann" in end.error


@pytest.mark.parametrize("seconds", [60.0])
@pytest.mark.parametrize("output", ["", "out.txt"], ids=["task", "file"])
async def test_a_job_that_is_stopped_while_its_user_is_looked_up_is_stopped(
    node: RealNode, agent: Listener, output: str
) -> None:
    await agent.runner.start(node.shell(key(1), "true", user="ann", output=output))
    wait_until((node.folder / "asks").exists, "the name is being looked up")
    await agent.runner.stop(key(1), 10_000)
    assert (await agent.end(key(1))).cause is EndCause.STOPPED


@pytest.mark.parametrize("seconds", [60.0])
@pytest.mark.parametrize("output", ["", "out.txt"], ids=["task", "file"])
async def test_a_lookup_that_crashes_is_a_failure_to_start_and_never_taken_for_a_job_that_ran(
    node: RealNode, agent: Listener, output: str
) -> None:
    """A module of the C library's does so in our process."""
    await agent.runner.start(node.shell(key(1), "true", user="ann", output=output))
    os.kill(node.pid_in("asks"), signal.SIGSEGV)
    end = await agent.end(key(1))
    assert (end.cause, end.exit_code, end.signal) == (EndCause.START_FAILED, None, 0)
    assert "user 'ann' could not be looked up" in end.error
