"""The quick check of invariants says what the whole one says: on sound states, and on states broken in many ways."""

from collections.abc import Callable
from unittest import mock

import pytest
from msgspec.structs import replace

from stoker.brain.domain.ids import Position
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.state.apply.dispatch import apply
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.codec import decode_fact
from stoker.brain.state.invariants import violations
from tests.rig.oracle import Oracle
from tests.rig.quick_check import QuickCheck
from tests.rig.run import simulate
from tests.rig.sim_log import SimDisk


def _a_log() -> list[bytes]:
    kept: list[bytes] = []

    def keep(oracle: Oracle, state: ClusterState, disk: SimDisk) -> None:
        kept.extend(disk.records if disk.first == 1 else [])

    with mock.patch.object(Oracle, "replayed", keep):
        seed = 1
        while not kept:
            seed += 1
            simulate(seed)
    return kept


@pytest.fixture(scope="module")
def log() -> list[bytes]:
    return _a_log()


def _lose_an_end(state: ClusterState) -> None:
    state.indexes.ended.entries.pop()


def _lose_a_success(state: ClusterState) -> None:
    state.indexes.by_state[JobState.SUCCEEDED].entries.pop()


def _lose_what_is_free(state: ClusterState) -> None:
    state.indexes.free.popitem()


def _lose_who_has_a_gpu(state: ClusterState) -> None:
    state.indexes.gpu_owner.popitem()


def _break_a_final_record(state: ClusterState) -> None:
    job = next(job for job in state.jobs.values() if job.is_final)
    state.jobs[job.id] = replace(job, reason=None)


def _revive_a_final_job(state: ClusterState) -> None:
    job = next(job for job in state.jobs.values() if job.state is JobState.SUCCEEDED and job.attempts)
    state.jobs[job.id] = replace(job, state=JobState.RUNNING)


def _drop_a_record(state: ClusterState) -> None:
    del state.jobs[next(iter(state.jobs))]


BREAKS: tuple[Callable[[ClusterState], None], ...] = (
    _lose_an_end,
    _lose_a_success,
    _lose_what_is_free,
    _lose_who_has_a_gpu,
    _break_a_final_record,
    _revive_a_final_job,
    _drop_a_record,
)


@pytest.mark.parametrize("broken", BREAKS, ids=[name.__name__ for name in BREAKS])
def test_it_says_of_a_broken_state_what_the_whole_check_says(
    broken: Callable[[ClusterState], None], log: list[bytes]
) -> None:
    state, quick = ClusterState(), QuickCheck()
    for position, record in enumerate(log, start=1):
        apply(state, decode_fact(record), Position(position))
        assert quick.violations(state) == []
    assert violations(state) == []
    broken(state)
    assert sorted(quick.violations(state)) == sorted(violations(state)) != []
