"""A job that gives way, on real processes: warned, saved, requeued, and gone on with from its checkpoint."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from stoker.brain.domain.access import LOCAL, Role
from stoker.brain.domain.demand import Demand
from stoker.brain.domain.ids import JobId
from stoker.brain.domain.job import Job, JobSpec, StopCause, WarnSignal
from stoker.brain.domain.lifecycle import JobState, Outcome
from stoker.brain.domain.plan import Plan, Preempt, Victim
from stoker.brain.state.commands import Submit
from tests.real.agent_process import AgentProcess
from tests.real.rpc_stage import RpcStage, rpc_stage

USR1 = 10
TRAINS = """
import json, os, signal, sys, time
folder = os.environ["STOKER_CHECKPOINT_DIR"]
checkpoint, step = os.path.join(folder, "step"), 0
def told(*_):
    with open(checkpoint, "w") as file:
        json.dump({"step": step, "notice": json.load(open(os.environ["STOKER_PREEMPT_FILE"]))}, file)
    sys.exit(0)
signal.signal(signal.SIGUSR1, told)
if os.path.exists(checkpoint):
    os.rename(checkpoint, SAID)
    sys.exit(0)
while True:
    step += 1
    time.sleep(0.02)
    if step == 3:
        open(SAID + ".ready", "w").close()
"""


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[RpcStage]:
    async with rpc_stage(tmp_path / "control") as stage:
        token = tmp_path / "agent.token"
        token.write_text(await stage.token(Role.AGENT))
        token.chmod(0o600)
        agent = AgentProcess(tmp_path / "node-1", gpus=1).know([f"127.0.0.1:{stage.port}"], token_file=token)
        with agent:
            yield stage


async def submitted(stage: RpcStage, priority: int, *command: str, **fields: object) -> JobId:
    settings: dict[str, object] = {"name": "j", "time_limit_ms": 600_000, **fields}
    demand = Demand(gpu_count=1, tasks=1, cpus=1)
    spec = JobSpec(demand=demand, command=command, priority=priority, **settings)  # type: ignore[arg-type]  # by name
    first = stage.control.committer.state.next_job_id
    await stage.control.committer.ask(Submit(by=LOCAL, specs=(spec,)))
    return first


def job_of(stage: RpcStage, job: JobId) -> Job:
    return stage.control.committer.state.jobs[job]


async def until(true: Callable[[], object], story: Callable[[], str]) -> None:
    try:
        async with asyncio.timeout(60):
            while not true():
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(story()) from None


async def test_a_preempted_job_saves_its_work_lets_the_urgent_one_run_and_goes_on_from_its_checkpoint(
    stage: RpcStage, tmp_path: Path
) -> None:
    said = tmp_path / "said"
    program = TRAINS.replace("SAID", repr(str(said)))
    low = await submitted(
        stage, 100, "python3", "-c", program, preemptible=True, checkpoint_ms=60_000, warn=WarnSignal(USR1, 60_000)
    )
    await until(Path(f"{said}.ready").exists, lambda: job_of(stage, low).story())
    urgent = await submitted(stage, 2_000, "true")
    placement = job_of(stage, low).attempts[0].tasks[0].placement
    preempt = Preempt(job=urgent, tasks=(placement,), victims=(Victim(low, 1),), cause=StopCause.PREEMPTED)
    committer = stage.control.committer
    plan = Plan(actions=(preempt,), reasons={})
    assert await committer.settle(plan, decided_at=committer.state.position, seed=1) == 1
    await until(lambda: job_of(stage, low).is_final, lambda: job_of(stage, low).story())
    ended, winner = job_of(stage, low), job_of(stage, urgent)
    assert (ended.state, ended.preemptions) == (JobState.SUCCEEDED, 1)
    assert [attempt.outcome for attempt in ended.attempts] == [Outcome.PREEMPTED, Outcome.SUCCEEDED]
    assert winner.state is JobState.SUCCEEDED
    assert winner.attempts[0].placed_at < ended.attempts[1].placed_at, "what came free went to the urgent job"
    told = json.loads(said.read_text())
    assert told["step"] >= 3, "the second attempt found what the first had saved"
    assert (told["notice"]["cause"], told["notice"]["for_job"]) == ("preempted", str(urgent))
    assert told["notice"]["deadline"] - told["notice"]["terminate_at"] == 10
