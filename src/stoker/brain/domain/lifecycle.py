"""States of jobs and nodes, and the legal transitions between job states.

The tables here are the source: the documents and the words of other systems (dgpu, MVP, Slurm) are compared with them.
"""

from enum import StrEnum
from typing import Final

import msgspec


class JobState(StrEnum):
    """The public states of a job; `JOB_STATES` says what each means."""

    PENDING = "pending"
    HELD = "held"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out_of_memory"
    NODE_FAILED = "node_failed"


class StateWords(msgspec.Struct, frozen=True):
    """Meaning of a job state, and its name in each dialect."""

    meaning: str
    final: bool
    dgpu: str
    mvp: str
    slurm: str


JOB_STATES: Final[dict[JobState, StateWords]] = {
    JobState.PENDING: StateWords("waits; `reason` says why", False, "pending", "pending", "PD"),
    JobState.HELD: StateWords("a person holds it", False, "pending", "pending", "PD"),
    JobState.STARTING: StateWords("allocated, not yet confirmed by every agent", False, "pending", "pending", "CF"),
    JobState.RUNNING: StateWords("every task runs", False, "running", "running", "R"),
    JobState.STOPPING: StateWords(
        "ending or told to end; processes not yet proved gone, GPUs still held", False, "running", "running", "CG"
    ),
    JobState.SUCCEEDED: StateWords("exit 0", True, "success", "completed", "CD"),
    JobState.FAILED: StateWords(
        "exit other than 0, could not start, or a dependency that can never be met", True, "failed", "failed", "F"
    ),
    JobState.CANCELLED: StateWords("by a person, proved gone", True, "failed", "cancelled", "CA"),
    JobState.TIMEOUT: StateWords("its time limit ended it", True, "failed", "failed", "TO"),
    JobState.OUT_OF_MEMORY: StateWords("its memory limit ended it", True, "failed", "failed", "OOM"),
    JobState.NODE_FAILED: StateWords("its node or runner was lost", True, "failed", "failed", "NF"),
}

FINAL: Final = frozenset(state for state, words in JOB_STATES.items() if words.final)
LIVE: Final = frozenset({JobState.STARTING, JobState.RUNNING, JobState.STOPPING})
"""States in which an attempt holds GPUs."""
FAILED: Final = frozenset({JobState.FAILED, JobState.TIMEOUT, JobState.OUT_OF_MEMORY, JobState.NODE_FAILED})
"""Ends that are neither good nor what a person asked for."""

_ENDS: Final = tuple(sorted(FINAL))
JOB_MOVES: Final[dict[JobState, frozenset[JobState]]] = {
    JobState.PENDING: frozenset({JobState.HELD, JobState.STARTING, JobState.CANCELLED, JobState.FAILED}),
    JobState.HELD: frozenset({JobState.PENDING, JobState.CANCELLED, JobState.FAILED}),
    JobState.STARTING: frozenset({JobState.RUNNING, JobState.STOPPING, JobState.PENDING, JobState.HELD, *_ENDS}),
    JobState.RUNNING: frozenset({JobState.STOPPING, JobState.PENDING, JobState.HELD, *_ENDS}),
    JobState.STOPPING: frozenset({JobState.PENDING, JobState.HELD, *_ENDS}),
    # A person may ask for what ended once more (`requeue`).
    **{state: frozenset({JobState.PENDING}) for state in _ENDS},
}


class IllegalMove(AssertionError):
    """Error of an event that moves a job where the table has no transition: a bug, with that job's story."""


def check_move(old: JobState, new: JobState, story: str) -> None:
    """Assert that a job may go from `old` to `new`; `story` is that of the job, for the message."""
    if new is not old and new not in JOB_MOVES[old]:
        raise IllegalMove(f"{old} -> {new} is not in the table: {story}")


def states_named(word: str) -> tuple[JobState, ...]:
    """Return the states that `word` means in any dialect, first of all in Stoker's; empty = in none."""
    word = word.lower()
    exact = tuple(state for state in JobState if state.value == word)
    return exact or tuple(
        state for state, words in JOB_STATES.items() if word in (words.dgpu, words.mvp, words.slurm.lower())
    )


class NodeState(StrEnum):
    """The public states of a node."""

    READY = "ready"
    UNREACHABLE = "unreachable"
    FAULTY = "faulty"
    DRAINING = "draining"
    DRAINED = "drained"
    PAUSED = "paused"
    FORGOTTEN = "forgotten"


class Outcome(StrEnum):
    """The end of one attempt; `lost`, `requeued`, `preempted` and `port_taken` never become a state of the job."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    START_FAILED = "start_failed"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out_of_memory"
    NODE_FAILED = "node_failed"
    PORT_TAKEN = "port_taken"
    REQUEUED = "requeued"
    PREEMPTED = "preempted"
    LOST = "lost"
