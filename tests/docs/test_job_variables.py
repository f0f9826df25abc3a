"""The page about training lists every variable that a job gets."""

import re
from pathlib import Path

from msgspec.structs import replace

from stoker.agent.instructions import CHECKPOINT_DIR
from stoker.agent.machine import account_variables
from stoker.agent.runner.process.procfs import MARK_NAME
from stoker.agent.runner.task import HOST_FILE_NAME, NOTICE_FILE_NAME
from stoker.brain.domain.allocation import TaskPlacement
from stoker.brain.domain.demand import Demand
from stoker.brain.domain.environment import rendezvous_variables, share_variables, task_environment
from stoker.brain.domain.ids import Epoch, JobId, NodeName, Principal
from stoker.brain.domain.job import Attempt, Job, JobSpec, Task
from stoker.brain.domain.units import Instant

PAGE = Path(__file__).resolve().parents[2] / "docs" / "howto" / "train-on-many-gpus.md"


def test_every_variable_of_a_job_is_in_the_table_and_the_table_has_no_others() -> None:
    place = TaskPlacement(rank=0, node=NodeName("n1"), gpus=(), cpus=1, memory_mb=0)
    attempt = Attempt(number=1, epoch=Epoch(1), tasks=(Task(placement=place),), placed_at=Instant(1))
    spec = JobSpec(name="j", command="true", demand=Demand(), priority=500, time_limit_ms=1)
    job = Job(id=JobId(5), uid="u", spec=spec, by=Principal("user:anna"), submitted_at=Instant(1), attempts=(attempt,))
    member = replace(job, array_of=JobId(4), array_index=0)
    given = {
        **task_environment(member, attempt, 0, {}, {}),
        **rendezvous_variables("n1", 20_000),
        **share_variables(replace(place, gpu_share=250, gpu_memory_mb=1_000), "/tmp/mps"),
        **account_variables(),
    }
    given |= dict.fromkeys((CHECKPOINT_DIR, HOST_FILE_NAME, NOTICE_FILE_NAME, MARK_NAME), "")
    table = PAGE.read_text(encoding="utf-8").partition("## Every variable of a job")[2]
    listed = [
        name for row in re.findall(r"^\| (`[^|]*) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)
    ]
    assert sorted(listed) == sorted(given)
