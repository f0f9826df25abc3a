"""The ledger proves itself: `control.ledger_audit`, and family 1 of faults.md."""

from stoker.brain.domain.ids import JobId, NodeName
from stoker.brain.domain.instruction import TaskKey
from stoker.brain.domain.job import EndCause
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.domain.report import Beat, sum_of
from stoker.brain.state.commands import ForgetNode
from tests.control.stage import ANNA, Player, Stage, running, stage, virtual

N1 = NodeName("n1")


@virtual
async def test_a_sound_ledger_shows_no_drift() -> None:
    async with stage() as s:
        player = await s.join("n1", 4)
        for _ in range(6):
            await s.submit()
        await player.next_start(4)
        await player.end(player.starts[0].key)
        await s.pause(61)
        assert s.notes.gauges["ledger_drift"] == 0


@virtual
async def test_a_lookup_that_drifted_is_counted_told_and_repaired() -> None:
    async with stage() as s:
        await s.join("n1", 4)
        await s.submit(gpus=2)
        await s.pause(1)
        del s.state.indexes.held[N1]
        found = await s.control.audit.check()
        assert any("held" in violation for violation in found)
        assert s.notes.gauges["ledger_drift"] == len(found) > 0
        assert s.notes.counts["ledger_violated"] == len(found)
        assert await s.control.audit.check() == []
        assert len(s.state.indexes.free[N1].gpus) == 2


@virtual
async def test_a_broken_record_is_found_whatever_state_it_is_in() -> None:
    async with stage() as s:
        job = await s.submit()
        s.state.next_job_id = job
        (violation,) = await s.control.audit.check()
        assert f"job {job}" in violation


async def says_it_has(player: Player, *tasks: TaskKey) -> None:
    await player.stream.receive(Beat(sequence=99, tasks_sum=sum_of(tasks)))


async def goes_on_saying(s: Stage, player: Player, seconds: int, *tasks: TaskKey) -> int:
    """How many violations the audits meanwhile have found."""
    before = s.notes.counts.get("ledger_violated", 0)
    for _ in range(seconds // 5):
        if not player.over.is_set():
            await says_it_has(player, *tasks)
        await s.pause(5)
    return s.notes.counts.get("ledger_violated", 0) - before


@virtual
async def test_a_node_that_has_other_tasks_than_the_records_say_is_counted_told_and_compared_anew() -> None:
    """A5. What is gone there is then gone here too, and the job runs again."""
    async with stage() as s:
        player = await s.join("n1", 4)
        job = await s.submit(gpus=4)
        start = await player.next_start()
        await player.say_started(start.key)
        assert await goes_on_saying(s, player, 25) == 0, "a word may be on its way"
        assert await goes_on_saying(s, player, 100) == 1
        assert "node n1 has other tasks than the records say" in "".join(s.notes.lines)
        await player.over.wait()
        again = await (await s.join("n1", 4)).next_start()
        assert (again.key.job, again.key.attempt) == (job, 2)
        assert await s.control.audit.check() == []


@virtual
async def test_a_task_that_a_node_has_and_the_records_lack_is_stopped() -> None:
    """A5"""
    async with stage() as s:
        player, unknown = await s.join("n1", 4), TaskKey(JobId(77), 1, 0)
        assert await goes_on_saying(s, player, 125, unknown) == 1
        back = await s.join("n1", 4, running(unknown, "n1-0"))
        await s.until(lambda: bool(back.stops))
        assert await goes_on_saying(s, back, 125, unknown) == 0, "it is known now, and told to stop"


@virtual
async def test_a_node_that_agrees_or_changes_or_is_silent_or_does_not_say_is_left_alone() -> None:
    """A5"""
    async with stage() as s:
        player = await s.join("n1", 4)
        await s.submit(gpus=4)
        start = await player.next_start()
        for tasks in ((start.key,), (), (TaskKey(JobId(77), 1, 0),)):
            assert await goes_on_saying(s, player, 60, *tasks) == 0
        for _ in range(25):
            await player.beat()  # as an older agent does
            await s.pause(5)
        await says_it_has(player)
        await s.pause(125)  # nobody hears it
        assert s.notes.counts.get("ledger_violated", 0) == 0
        assert not player.over.is_set()


@virtual
async def test_what_was_last_said_before_the_control_plane_itself_stood_still_is_nobodys_fault() -> None:
    """A5. Resumed, its audit may look before anything that has come meanwhile was read."""
    async with stage() as s:
        player = await s.join("n1", 4)
        await s.submit(gpus=4)
        await player.say_started((await player.next_start()).key)
        await goes_on_saying(s, player, 55)
        await says_it_has(player)
        await s.control.audit.check()
        await s.pause(8)
        await says_it_has(player)
        await s.control.audit.check()
        assert s.notes.counts.get("ledger_violated", 0) == 0


@virtual
async def test_gpus_come_back_when_a_partition_heals_after_a_forget() -> None:
    """faults.md 1 and 10: the job is gone from the ledger while its agent is away; on return all GPUs are free."""
    async with stage() as s:
        player = await s.join("n1", 8)
        job = await s.submit(gpus=8, requeue=False)
        start = await player.next_start()
        await player.say_started(start.key)
        player.leave()
        await s.pause(30)
        await s.committer.ask(ForgetNode(by=ANNA, node=N1, force=True))
        assert s.job(job).is_final
        back = await s.join("n1", 8, running(start.key, *start.gpus))
        await s.until(lambda: bool(back.stops))
        assert not s.state.indexes.free[N1].gpus
        await back.end(start.key, cause=EndCause.STOPPED)
        assert len(s.state.indexes.free[N1].gpus) == 8
        assert await s.control.audit.check() == []


@virtual
async def test_the_same_job_again_starts_after_the_first_ended() -> None:
    """faults.md 8."""
    async with stage() as s:
        player = await s.join("n1", 4)
        for count in range(1, 6):
            job = await s.submit(gpus=4, name=f"again-{count}")
            start = await player.next_start(count)
            await player.say_started(start.key)
            await player.end(start.key)
            assert s.job(job).state is JobState.SUCCEEDED
        assert len(s.state.indexes.free[N1].gpus) == 4
