"""What a sick node or a wrong clock does to jobs is noticed when the code that should bear it is broken on purpose.

Each bug is looked for in histories of the faults that it should bear, as in `test_the_rig_bites_pairs.py`.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

import pytest

from stoker.agent.daemon import Daemon
from stoker.agent.instructions import InstructionExecutor
from stoker.agent.ports import RunnerInventory
from stoker.brain.domain.ids import JobId, NodeName
from stoker.brain.domain.instruction import TaskKey
from stoker.brain.domain.job import Attempt, EndCause, Job
from stoker.brain.domain.plan import UndecidableShape
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.units import SECOND_MS
from stoker.brain.engine import gpu_choices, scheduling_pass
from stoker.brain.engine.gang import NodeFit, Search
from stoker.brain.state import attempt_outcome
from stoker.brain.state.admit import node_liveness
from stoker.brain.state.cluster import ClusterState
from stoker.control.committer import Committer
from stoker.control.loop import Loop
from stoker.live import liveness
from tests.rig import faults
from tests.rig.faults import Fault
from tests.rig.planted import Bugs, Plant, cases, must_be_noticed
from tests.rig.run import simulate

SEEDS_MAX: Final = 60


def what_its_runner_says_ails_a_node_is_not_passed_on(bugs: Bugs) -> None:
    real = Daemon._take_fault

    def take(daemon: Daemon, fault: str, *, keeps_leases: bool) -> None:
        real(daemon, "", keeps_leases=keeps_leases)

    bugs.setattr(Daemon, "_take_fault", take)


def what_a_stopped_runner_was_told_to_start_is_waited_for(bugs: Bugs) -> None:
    bugs.setattr(InstructionExecutor, "give_up_starts", lambda executor, fault: None)


def a_start_that_its_node_refused_is_charged(bugs: Bugs) -> None:
    def is_free(job: Job, attempt: Attempt, cause: EndCause, policy: Policy) -> bool:
        return False

    bugs.setattr(attempt_outcome, "_is_free", is_free)


def a_job_without_requeues_ends_for_a_start_that_was_refused(bugs: Bugs) -> None:
    bugs.setattr(attempt_outcome, "_nothing_ran", lambda attempt: False)


def a_job_goes_back_to_the_node_that_refused_it(bugs: Bugs) -> None:
    def fits(searches: Sequence[Search], refusals: Sequence[tuple[NodeName, ...]]) -> list[NodeFit] | None:
        return gpu_choices.first_fits(searches)

    bugs.setattr(scheduling_pass, "fits_besides", fits)


def a_node_offers_more_than_its_runner_takes(bugs: Bugs) -> None:
    real = Daemon._take_report

    def take(daemon: Daemon, report: object) -> None:
        if isinstance(report, RunnerInventory):
            report = RunnerInventory(
                tasks=report.tasks, ends=report.ends, keeps_leases=report.keeps_leases, fault=report.fault
            )
        real(daemon, report)  # type: ignore[arg-type]  # passed on as it came

    bugs.setattr(Daemon, "_take_report", take)


def a_shape_that_breaks_a_pass_is_tried_again_at_once(bugs: Bugs) -> None:
    def put_aside(loop: Loop, fault: UndecidableShape) -> None:
        loop._wanted = True

    bugs.setattr(Loop, "_put_aside", put_aside)


def time_asleep_counts_as_time_lived(bugs: Bugs) -> None:
    bugs.setattr(Committer, "_awake_ms", lambda committer: int(committer._clock.mono() * SECOND_MS))


def a_clock_that_is_corrected_moves_time_limits(bugs: Bugs) -> None:
    bugs.setattr(Committer, "follow_clock", lambda committer, lag_noted_ms=0: False)


def a_full_disk_of_job_folders_is_the_jobs_fault(bugs: Bugs) -> None:
    real = InstructionExecutor._end_unstarted

    def end(executor: InstructionExecutor, key: TaskKey, cause: EndCause, error: str) -> None:
        real(executor, key, EndCause.START_FAILED if error.startswith("no folder") else cause, error)

    bugs.setattr(InstructionExecutor, "_end_unstarted", end)


def a_start_for_which_there_is_no_folder_is_not_answered(bugs: Bugs) -> None:
    real = InstructionExecutor._end_unstarted

    def end(executor: InstructionExecutor, key: TaskKey, cause: EndCause, error: str) -> None:
        if not error.startswith("no folder"):
            real(executor, key, cause, error)

    bugs.setattr(InstructionExecutor, "_end_unstarted", end)


def the_work_of_a_suspended_node_is_taken_for_lost(bugs: Bugs) -> None:
    def overdue(state: ClusterState, node: NodeName, silent_ms: int) -> dict[JobId, list[int]]:
        held: dict[JobId, list[int]] = {}
        for job, _, rank in state.indexes.held.get(node, {}):
            held.setdefault(job, []).append(rank)
        return held

    for room in (liveness, node_liveness):
        bugs.setattr(room, "overdue", overdue)


def a_node_that_was_suspended_is_not_used_again(bugs: Bugs) -> None:
    bugs.setattr(liveness.Liveness, "heard", liveness.Liveness.note)


def ends_are_of_when_the_clock_of_their_node_says(bugs: Bugs) -> None:
    bugs.setattr(attempt_outcome, "_in_its_time", lambda task, end, attempt, now: end)


class Found(NamedTuple):
    plant: Plant
    promise: str
    faults: tuple[Fault, ...]
    first: int = 0
    """The seed to begin with: it noticed when this was written."""


FOUND: Final = (
    Found(what_its_runner_says_ails_a_node_is_not_passed_on, "O20 nobody is told", (faults.node_disk_full,), 1),
    Found(what_a_stopped_runner_was_told_to_start_is_waited_for, "O20 .* keeps ", (faults.runner_stopped,), 20),
    Found(a_start_that_its_node_refused_is_charged, "O21 ", (faults.node_sick, faults.job_folders_full)),
    Found(a_job_without_requeues_ends_for_a_start_that_was_refused, "O21 ended", (faults.node_sick,), 1),
    Found(a_job_goes_back_to_the_node_that_refused_it, "O20 placed again", (faults.node_sick,)),
    Found(a_node_offers_more_than_its_runner_takes, "O20 .* offers ", (faults.node_has_few_resources,), 2),
    Found(a_shape_that_breaks_a_pass_is_tried_again_at_once, "O20 no pass", (faults.job_breaks_the_engine,), 3),
    Found(time_asleep_counts_as_time_lived, "O22 ", (faults.control_suspended,)),
    Found(a_clock_that_is_corrected_moves_time_limits, "O22 ", (faults.clock_corrected,)),
    Found(a_full_disk_of_job_folders_is_the_jobs_fault, "O8 ", (faults.job_folders_full,)),
    Found(a_start_for_which_there_is_no_folder_is_not_answered, "O9 |O19 ", (faults.job_folders_full,)),
    Found(the_work_of_a_suspended_node_is_taken_for_lost, "O5 |O4 ", (faults.node_suspended,)),
    Found(a_node_that_was_suspended_is_not_used_again, "O9 ", (faults.node_suspended,)),
    Found(ends_are_of_when_the_clock_of_their_node_says, "O23 ", (faults.node_clock_corrected,)),
)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("found", cases(FOUND))
def test_it_is_noticed_when(found: Found) -> None:
    must_be_noticed(found.plant, found.promise, _histories(found))


def _histories(found: Found) -> "Iterator[partial[object]]":
    return (partial(simulate, seed, faults=found.faults) for seed in (found.first, *range(SEEDS_MAX)))
