"""An agent as a daemon and the token that it joins with: refused at start, revoked while it runs, replaced."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from stoker.adapters.entropy import SystemEntropy
from stoker.agent.link_grpc import GrpcLink
from stoker.agent.ports import LinkRefused
from stoker.brain.domain.access import LOCAL, Role
from stoker.brain.domain.demand import Demand
from stoker.brain.domain.ids import JobId, NodeName
from stoker.brain.domain.job import JobSpec
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.state.commands import Submit
from stoker.brain.state.events.job import JobSubmitted
from stoker.wire.token import fresh_token
from tests.contracts import link as link_contract
from tests.real.agent_process import AgentProcess, alive
from tests.real.rpc_stage import RpcStage, rpc_stage

NODE = NodeName("node-1")


def keep(path: Path, content: str, mode: int = 0o600) -> Path:
    path.write_text(content)
    path.chmod(mode)
    return path


def agent_in(folder: Path, port: int, token_file: Path) -> AgentProcess:
    agent = AgentProcess(folder)
    agent.environ["STOKER__CONTROL__ADDRESSES"] = f"127.0.0.1:{port}"
    agent.environ["STOKER__CONTROL__TOKEN_FILE"] = str(token_file)
    return agent


@asynccontextmanager
async def joined(folder: Path) -> AsyncIterator[tuple[RpcStage, AgentProcess, Path, str]]:
    async with rpc_stage(folder / "control", open_to_owner=False) as stage:
        token = await stage.token(Role.AGENT)
        file = keep(folder / "token", f"{token}\n")
        with agent_in(folder / "agent", stage.port, file) as agent:
            await until(lambda: stage.control.sessions.connected(NODE), "the agent joins")
            yield stage, agent, file, token


async def until(holds: Callable[[], object], what: str, within_s: float = 30) -> None:
    try:
        async with asyncio.timeout(within_s):
            while not holds():
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"{what}: not within {within_s} s") from None


async def submit(stage: RpcStage, command: str) -> JobId:
    spec = JobSpec(name="j", demand=Demand(gpu_count=1), command=command, priority=500, time_limit_ms=600_000)
    events = await stage.control.committer.ask(Submit(by=LOCAL, specs=(spec,)))
    return next(event.job for event in events if isinstance(event, JobSubmitted))


async def test_a_task_outlives_the_revocation_of_its_agents_token_and_ends_under_the_next_one(tmp_path: Path) -> None:
    async with joined(tmp_path) as (stage, agent, file, token):
        pid_file, go_on = tmp_path / "pid", tmp_path / "go-on"
        command = f"echo $$ > {pid_file}; while [ ! -e {go_on} ]; do sleep 0.05; done; exit 7"
        job = await submit(stage, command)
        jobs = stage.control.committer.state.jobs
        await until(lambda: pid_file.exists() and pid_file.read_text().strip(), "the task runs")
        await until(lambda: jobs[job].state is JobState.RUNNING, "it is known to run")
        pid = int(pid_file.read_text())

        await stage.revoke(token)
        await until(lambda: not stage.control.sessions.connected(NODE), "the stream ends", within_s=1)
        await until(lambda: "registration_refused" in agent.output(), "the agent says why")
        assert "the token is not known here" in agent.output()
        assert "control.token_file" in agent.output()
        go_on.touch()
        await until(lambda: not alive(pid), "the task goes on to its end")
        assert jobs[job].state is JobState.RUNNING  # nobody may tell yet that it has ended

        keep(file, await stage.token(Role.AGENT))
        await until(lambda: jobs[job].is_final, "its end is told under the new token")
        assert (jobs[job].state, jobs[job].exit_code) == (JobState.FAILED, 7)
        assert agent.output().count("registration_refused") == 1
        assert token[16:] not in agent.output()


@pytest.mark.parametrize(
    ("role", "said"),
    [
        (None, "no token was sent, and one is wanted here; let `control.token_file` name"),
        (Role.VIEWER, "only agents join nodes, and this token has the role viewer; `control.token_file` must name"),
    ],
)
async def test_a_refused_agent_is_told_what_to_do_with_its_token_file(
    tmp_path: Path, role: Role | None, said: str
) -> None:
    async with rpc_stage(tmp_path / "control", open_to_owner=False) as stage:
        token = await stage.token(role) if role else ""
        link = GrpcLink([f"127.0.0.1:{stage.port}"], token=(lambda: token) if token else None)
        with pytest.raises(LinkRefused) as refused:
            await link.connect(link_contract.registration())
        assert said in str(refused.value)
        assert "stoker token create --role agent" in str(refused.value)
        assert "STOKER_TOKEN" not in str(refused.value)


@pytest.mark.parametrize(
    ("content", "mode", "said"),
    [
        (fresh_token(SystemEntropy()), 0o644, "chmod 600"),
        ("", 0o600, "is empty"),
        ("letmein", 0o600, "doesn't hold one token"),
    ],
    ids=["open-to-others", "empty", "no-token"],
)
def test_an_agent_refuses_to_start_with_a_token_file_it_cannot_use(
    tmp_path: Path, content: str, mode: int, said: str
) -> None:
    file = keep(tmp_path / "token", content, mode)
    with agent_in(tmp_path / "agent", 1, file) as agent:
        assert agent.wait() == 4
    assert "bad_token_file" in agent.output()
    assert said in agent.output()
    assert str(file) in agent.output()
    assert not content or content not in agent.output()
    assert "Traceback" not in agent.output()


def test_an_agent_whose_token_file_is_missing_says_which_one(tmp_path: Path) -> None:
    with agent_in(tmp_path / "agent", 1, tmp_path / "nowhere") as agent:
        assert agent.wait() == 4
    assert f"{tmp_path / 'nowhere'} can't be read: No such file" in agent.output()
