"""A promise broken on purpose is noticed: each mutant of the real code is caught by a few seeds.

A rig that passes says little unless it would have failed. The name of a mutant says what is broken; beside it stands
the promise of `tests.rig.oracle` that notices.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import pytest
from msgspec.structs import replace

from stoker.agent.delivery import Delivery
from stoker.agent.instructions import InstructionExecutor
from stoker.agent.observed import Observed
from stoker.agent.ports import LinkDown, LinkSession, StartTask, TaskOver, TaskRunning, TaskWarning
from stoker.brain import cycle
from stoker.brain.domain.allocation import TaskPlacement
from stoker.brain.domain.dependency import Dependency, Verdict
from stoker.brain.domain.errors import Refusal
from stoker.brain.domain.ids import JobId, NodeName
from stoker.brain.domain.instruction import TaskKey
from stoker.brain.domain.job import Attempt, EndCause, Job, Task, TaskEnd
from stoker.brain.domain.node import Free, Node
from stoker.brain.domain.plan import Plan
from stoker.brain.domain.report import TaskFinished, TaskInventory
from stoker.brain.domain.units import NEVER, Instant
from stoker.brain.state import dependencies, indexes, node_classes
from stoker.brain.state.admit import job as admit_job
from stoker.brain.state.admit import job_operations
from stoker.brain.state.admit import node_liveness as admit_silence
from stoker.brain.state.admit import plan as admit_plan
from stoker.brain.state.arrays import Tallies
from stoker.brain.state.attempt_outcome import end_tasks
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.commands import Cancel, NodeSilent, ReportEnding
from stoker.brain.state.events.job import MembersCancelled
from stoker.brain.state.events.union import Event
from stoker.brain.state.indexes import Agenda
from stoker.brain.state.validation.operation_target import OperationTarget
from stoker.control.committer import Committer
from stoker.live import outbox
from stoker.live.outbox import InstructionStream, Outbox, Push
from stoker.live.sessions import AgentStream, Sessions
from tests.rig.planted import Bugs, Plant, cases, must_be_noticed
from tests.rig.run import simulate
from tests.rig.sim_runner import RunnerProcess

SEEDS_MAX: Final = 100
Patch = Bugs


def starts_are_sent_again_and_no_record_is_looked_at(patch: Patch) -> None:
    """Every line of defence at once, since any one of them would do."""
    real = Outbox.open

    def forgetful(
        box: Outbox, node: NodeName, reported: Iterable[TaskKey], push: Push, *, private: bool
    ) -> InstructionStream:
        return real(box, node, (), push, private=private)

    def instruct(box: Outbox, line: InstructionStream, job: Job, attempt: Attempt, task: Task) -> None:
        key = TaskKey(job.id, attempt.number, task.placement.rank)
        if attempt.stop is None and key not in line.started:
            line.started[key] = None
            line.push(box._start(key, job, attempt, task, {}))

    async def start(runner: RunnerProcess, task: StartTask) -> None:
        runner.machine.records[task.start.key] = task
        runner.machine.booted[task.start.key] = runner.machine.boot_id
        process = runner.machine.begin_process(task)
        runner.say(TaskRunning(key=process.key, pid=process.pid, at=process.started_at))

    patch.setattr(Outbox, "open", forgetful)
    patch.setattr(Outbox, "_instruct_task", instruct)
    patch.setattr(Observed, "knows", lambda observed, key: False)
    patch.setattr(Observed, "starting", lambda observed, start: None)
    patch.setattr(InstructionExecutor, "_gpu_conflict", lambda executor, start: "")
    patch.setattr(RunnerProcess, "start", start)


def instructions_leave_before_the_inventory_was_compared(patch: Patch) -> None:
    real = Sessions.attach

    def hasty(sessions: Sessions, session: str) -> AgentStream:
        stream = real(sessions, session)
        sessions.outbox.open(stream.node, (), stream._outgoing.push, private=True)
        return stream

    patch.setattr(Sessions, "attach", hasty)


def answers_do_not_wait_for_the_disk(patch: Patch) -> None:
    async def settled(committer: Committer) -> None:
        committer._work.set()

    patch.setattr(Committer, "settled", settled)


def silence_ends_what_runs(patch: Patch) -> None:
    real = admit_silence.node_silent

    def silent(state: ClusterState, command: NodeSilent, now: Instant) -> tuple[Event, ...]:
        events: list[Event] = []
        for job in tuple(state.indexes.on_node.get(command.node, ())):
            events += _ended(state, state.jobs[job], command.node, EndCause.GONE)
        told = real(state, command, now)
        assert isinstance(told, tuple)
        return (*events, *told)

    patch.setattr(admit_silence, "node_silent", silent)


def gpus_are_free_once_the_leader_has_exited(patch: Patch) -> None:
    def ending(state: ClusterState, command: ReportEnding) -> tuple[Event, ...]:
        events: list[Event] = []
        for key in command.keys:
            if admit_job._open_task(state, key, command.node):
                events += _ended(state, state.jobs[key.job], command.node, EndCause.EXITED)
        return tuple(events)

    patch.setattr(admit_job, "report_ending", ending)


def _ended(state: ClusterState, job: Job, node: NodeName, cause: EndCause) -> tuple[Event, ...]:
    end = TaskEnd(cause=cause, at=state.last_at, exit_code=0)
    open_there = [task for task in job.attempts[-1].open_tasks if task.placement.node == node]
    if not open_there:
        return ()
    return end_tasks(job, {task.placement.rank: end for task in open_there}, state.last_at, state.policy)


def exit_codes_get_lost_on_the_way(patch: Patch) -> None:
    real = Observed.over

    def over(observed: Observed, report: TaskOver) -> None:
        code = None if report.end.exit_code is None else 0
        real(observed, TaskOver(key=report.key, end=replace(report.end, exit_code=code)))

    patch.setattr(Observed, "over", over)


def an_end_is_sent_once_and_then_forgotten(patch: Patch) -> None:
    """Forgotten for good: an end that the next inventory names is asked for again."""

    async def send(delivery: Delivery, keys: Sequence[TaskKey]) -> Sequence[TaskKey]:
        session: LinkSession = await delivery._session()
        for key in keys:
            over = delivery._observed.offered.get(key)
            if over is not None:
                with suppress(LinkDown):
                    await session.finish(TaskFinished(node=delivery._node, key=key, end=over.end))
                await delivery._settle(key)
                delivery._observed.forgotten(key)
            delivery._done(key)
        return ()

    patch.setattr(Delivery, "_send", send)


def a_gpu_is_offered_while_it_is_held(patch: Patch) -> None:
    def free_on(node: Node, held: Iterable[TaskPlacement]) -> Free:
        return Free(node.inventory.gpus, node.inventory.cpus, node.inventory.memory_mb)

    patch.setattr(indexes, "free_on", free_on)


def nobody_is_told_why(patch: Patch) -> None:
    real = cycle.propose

    def propose(*told: object) -> Plan:
        return replace(real(*told), reasons={})  # type: ignore[arg-type]  # passed on as they came

    patch.setattr(cycle, "propose", propose)


def a_process_that_ignores_the_terminate_signal_is_given_up(patch: Patch) -> None:
    real = RunnerProcess.stop

    async def stop(runner: RunnerProcess, key: TaskKey, grace_ms: int, warning: TaskWarning | None = None) -> None:
        end = TaskEnd(cause=EndCause.STOPPED, at=runner.machine.clock.now(), signal=15)
        if key in runner.machine.processes:
            runner._end(key, end)
        await real(runner, key, grace_ms, warning)

    patch.setattr(RunnerProcess, "stop", stop)


def instructions_run_ahead_of_the_disk(patch: Patch) -> None:
    patch.setattr(Committer, "is_undurable", lambda committer, job: False)


def every_rank_goes_at_once(patch: Patch) -> None:
    patch.setattr(outbox, "_may_start", lambda attempt, task: True)


def a_call_to_the_runner_breaks_with_the_stream(patch: Patch) -> None:
    real = InstructionExecutor.withdraw

    def withdraw(executor: InstructionExecutor) -> None:
        for call in executor._calls.values():
            call.cancel()
        real(executor)

    patch.setattr(InstructionExecutor, "withdraw", withdraw)


def an_end_that_is_on_its_way_is_left_out_of_the_inventory(patch: Patch) -> None:
    def inventory(observed: Observed, boot_id: str) -> TaskInventory:
        return TaskInventory(boot_id=boot_id, tasks=tuple(observed.open.values()))

    patch.setattr(Observed, "task_inventory", inventory)


def what_a_job_waits_for_is_met_once_it_has_started(patch: Patch) -> None:
    def hasty(dependency: Dependency, jobs: Mapping[JobId, Job]) -> Verdict:
        target = dependencies.target_of(dependency, jobs)
        begun = target is None or target.started_at != NEVER or target.is_final
        return Verdict.MET if begun else Verdict.WAITS

    patch.setattr(dependencies, "verdict", hasty)


def the_limit_of_an_array_is_not_looked_at(patch: Patch) -> None:
    patch.setattr(Tallies, "slots_left", lambda tallies, array: None)


def an_array_ends_with_its_first_member(patch: Patch) -> None:
    def hasty(tallies: Tallies, array: Job) -> bool:
        return array.members is not None and not array.is_final and bool(tallies[array.id].ok)

    patch.setattr(Tallies, "is_over", hasty)


def a_cancelled_array_goes_on(patch: Patch) -> None:
    """Fault 137."""
    real = job_operations.cancel

    def forgetful(state: ClusterState, target: OperationTarget, command: Cancel) -> tuple[Event, ...] | Refusal:
        answer = real(state, target, command)
        if isinstance(answer, Refusal):
            return answer
        return tuple(event for event in answer if not isinstance(event, MembersCancelled))

    patch.setattr(job_operations, "cancel", forgetful)


def a_job_begins_when_it_likes(patch: Patch) -> None:
    patch.setattr(Agenda, "due", lambda agenda, now: [job for _, job in agenda.entries])


def any_node_will_do(patch: Patch) -> None:
    patch.setattr(admit_plan, "selects", lambda where, node: True)
    patch.setattr(node_classes, "admits", lambda where, name, labels, taints: True)


MUTANTS: Final[tuple[tuple[Plant, str], ...]] = (
    (starts_are_sent_again_and_no_record_is_looked_at, "O2 "),
    (instructions_leave_before_the_inventory_was_compared, "before it was compared"),
    (answers_do_not_wait_for_the_disk, "O1 |O8 |O18 "),
    (silence_ends_what_runs, "O5 |O8 "),
    (gpus_are_free_once_the_leader_has_exited, "O5 "),
    (exit_codes_get_lost_on_the_way, "O8 "),
    (an_end_is_sent_once_and_then_forgotten, "O19 |O8 |O9 "),
    (a_gpu_is_offered_while_it_is_held, "O6 "),
    (nobody_is_told_why, "O7 "),
    (a_process_that_ignores_the_terminate_signal_is_given_up, "O5 "),
    (instructions_run_ahead_of_the_disk, "O10 "),
    (every_rank_goes_at_once, "O10 "),
    (a_call_to_the_runner_breaks_with_the_stream, "O(9|20) "),
    (an_end_that_is_on_its_way_is_left_out_of_the_inventory, "O8 "),
    (what_a_job_waits_for_is_met_once_it_has_started, "O12 "),
    (the_limit_of_an_array_is_not_looked_at, "O6 "),
    (an_array_ends_with_its_first_member, "O6 "),
    (a_cancelled_array_goes_on, "O13 "),
    (a_job_begins_when_it_likes, "O12 "),
    (any_node_will_do, "O14 "),
)


FIRST: Final = {
    an_array_ends_with_its_first_member: 1,
    the_limit_of_an_array_is_not_looked_at: 1,
    a_job_begins_when_it_likes: 31,
    silence_ends_what_runs: 13,
    a_call_to_the_runner_breaks_with_the_stream: 89,
    an_end_is_sent_once_and_then_forgotten: 3,
    what_a_job_waits_for_is_met_once_it_has_started: 2,
}
"""The seed to begin with where it isn't 0: it noticed when this was written."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("found", cases(MUTANTS))
def test_it_is_noticed_when(found: tuple[Plant, str]) -> None:
    mutant, promise = found
    seeds = (FIRST.get(mutant, 0), *range(SEEDS_MAX))
    must_be_noticed(mutant, promise, (partial(simulate, seed) for seed in seeds))
