"""For which reasons do how many jobs wait?

Counted by shape, array and delay, never by looking at each waiting job: a hundred thousand jobs of a thousand shapes
cost a thousand steps. What remains waits for another job.

Rules: Y1  the counts add up to the jobs and members that wait
       Y2  others get a turn every SLICE steps, so a scrape never holds up the writer; the counts may then be of some
           milliseconds
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, TypeVar

from stoker.brain.domain.job import Job
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.domain.reason import ReasonCode
from stoker.brain.domain.units import NEVER
from stoker.control.control_plane import ControlPlane

Item = TypeVar("Item")

SLICE: Final = 2_000
_GIVE_WAY_S: Final = 0.0

WAITING: Final = (
    ReasonCode.AWAITING_PASS,
    ReasonCode.NO_NODES,
    ReasonCode.NODES_UNAVAILABLE,
    ReasonCode.NODES_RETURNING,
    ReasonCode.NO_FITTING_NODE,
    ReasonCode.NO_SELECTED_NODE,
    ReasonCode.TENANT_LIMIT,
    ReasonCode.POOL_LIMIT,
    ReasonCode.GUARANTEE_KEPT,
    ReasonCode.INSUFFICIENT_GPUS,
    ReasonCode.INSUFFICIENT_NODES,
    ReasonCode.INSUFFICIENT_CPUS,
    ReasonCode.INSUFFICIENT_MEMORY,
    ReasonCode.NO_FREE_PORT,
    ReasonCode.BUDGET_SPENT,
    ReasonCode.HELD,
    ReasonCode.BEGIN_TIME,
    ReasonCode.RETRY_BACKOFF,
    ReasonCode.REQUEUED,
    ReasonCode.DEPENDENCY,
    ReasonCode.ARRAY_LIMIT,
)


class Queue(NamedTuple):
    """The waiting line in numbers."""

    by_reason: dict[ReasonCode, int]
    """Jobs and members of arrays, those reasons that nobody has too."""
    running_arrays: int
    """Arrays that are shown as running because a member is."""


async def count_queue(control: ControlPlane) -> Queue:
    state, loop = control.committer.state, control.loop
    counts: Counter[ReasonCode] = Counter({ReasonCode.HELD: len(state.indexes.by_state[JobState.HELD])})
    for part in _slices(list(state.indexes.waiting.items())):
        for (_, shape, _), ids in part:
            counts[loop.reason_of(shape).code] += len(ids)
        await control.clock.sleep(_GIVE_WAY_S)
    for delayed in _slices(list(state.indexes.delayed.entries)):
        for _, job_id in delayed:
            job = state.jobs.get(job_id)
            if job is not None:
                counts[_delay(job)] += 1
        await control.clock.sleep(_GIVE_WAY_S)
    running = await _count_arrays(control, counts)
    others = state.indexes.pending_count - sum(counts.values())
    counts[ReasonCode.DEPENDENCY] += max(0, others)
    return Queue({code: max(0, counts[code]) for code in (*WAITING, *sorted(set(counts) - set(WAITING)))}, running)


async def _count_arrays(control: ControlPlane, counts: Counter[ReasonCode]) -> int:
    """Replace each array, which counts as one job while it is held or delayed, by its members that wait."""
    state, running = control.committer.state, 0
    for part in _slices(list(state.indexes.arrays)):
        for array_id in part:
            array = state.jobs.get(array_id)
            if array is None or array.members is None or array.is_final:
                continue
            running += state.shown_state(array) is JobState.RUNNING
            _count_array(control, array, array.members.waiting, counts)
        await control.clock.sleep(_GIVE_WAY_S)
    return running


def _count_array(control: ControlPlane, array: Job, waiting: int, counts: Counter[ReasonCode]) -> None:
    state, loop = control.committer.state, control.loop
    held = array.state is JobState.HELD
    if held and state.shown_state(array) is JobState.HELD:
        counts[ReasonCode.HELD] -= 1
    elif not held and array.not_before != NEVER:
        counts[_delay(array)] -= 1
    if waiting:
        counts[loop.reason_for(array).code] += waiting


def _delay(job: Job) -> ReasonCode:
    return ReasonCode.RETRY_BACKOFF if job.reason is None else job.reason.code


def _slices(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    return (items[at : at + SLICE] for at in range(0, len(items), SLICE))
