"""Log lines for operators: the names and fields that they already search for."""

from stoker.brain.domain.lifecycle import JobState
from tests.live.stage import stage, virtual


@virtual
async def test_the_lines_of_a_job_say_where_it_ran_and_on_which_gpus() -> None:
    async with stage() as s:
        player = await s.join("n1")
        job = await s.submit(gpus=2)
        start = await player.next_start()
        await player.end(start.key, exit_code=3)
        await s.until_state(job, JobState.FAILED)
        await s.pause()
        where = f"agent_id=n1 gpu_ids={','.join(start.gpus)} task_id={job} priority=500"
        for name in ("task_scheduled", "task_finished"):
            (line,) = (line for line in s.notes.lines if f" {name} " in line)
            assert where in line
