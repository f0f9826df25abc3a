"""Jobs of the demo, and the results that are expected of them.

Pure: bodies to submit, and expectations to hold the answers against. Each job shows one promise of Stoker.
"""

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from stoker.brain.domain.lifecycle import JobState, Outcome
from stoker.cli.display.formatting import instant_ms
from stoker.cli.display.timeline import Timeline
from stoker.wire.client import JobBody
from stoker.wire.rest.job import JobView, WhyView

NODES: Final = 2
GPUS_PER_NODE: Final = 4
RANK_PROGRAM: Final = Path(__file__).with_name("rank.py")
GANG: Final = "gang"
MISTAKE: Final = "mistake"
TOO_LONG: Final = "too-long"
HOTFIX: Final = "hotfix"
SWEEP: Final = "night-sweep"


_job: Final = partial(JobBody, time_limit="1m", gpu_count=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The end that a job of the demo must come to."""

    state: JobState = JobState.SUCCEEDED
    exit_code: int | None = 0
    outcomes: tuple[Outcome, ...] = (Outcome.SUCCEEDED,)


def first_wave() -> tuple[JobBody, ...]:
    """Seven GPUs' worth of jobs, then a gang that needs all eight and must wait."""
    rank = shlex.join((sys.executable, "-S", "-E", str(RANK_PROGRAM), str(GPUS_PER_NODE)))
    return (
        _job(name="train-small", command="echo one GPU: $CUDA_VISIBLE_DEVICES; sleep 2.5"),
        _job(name="train-pair", command="echo two GPUs: $CUDA_VISIBLE_DEVICES; sleep 3", gpu_count=2),
        _job(name="breaks", command="sleep 1; echo no such file: data.bin >&2; exit 3"),
        _job(name="flaky", command="sleep 0.7; [ $STOKER_ATTEMPT -ge 2 ]", retries=2),
        _job(name=TOO_LONG, command="echo $$; exec sleep 600", time_limit="2s"),
        _job(name=MISTAKE, command="echo $$; exec sleep 600"),
        _job(name=GANG, command=f"{rank} && sleep 2", gpu_count=GPUS_PER_NODE, tasks=NODES),
    )


def second_wave() -> tuple[JobBody, ...]:
    """Submitted while the gang holds every GPU: the urgent one comes later and must go first."""
    return (
        _job(name=SWEEP, command="sleep 1.2", gpu_count=3, tasks=2, priority="low"),
        _job(name="evaluate", command="sleep 1.5"),
        _job(name=HOTFIX, command="sleep 1.2", gpu_count=2, tasks=2, priority="urgent"),
    )


EXPECTED: Final[Mapping[str, Expected]] = {
    "train-small": Expected(),
    "train-pair": Expected(),
    "breaks": Expected(state=JobState.FAILED, exit_code=3, outcomes=(Outcome.FAILED,)),
    "flaky": Expected(outcomes=(Outcome.FAILED, Outcome.SUCCEEDED)),
    TOO_LONG: Expected(state=JobState.TIMEOUT, exit_code=None, outcomes=(Outcome.TIMEOUT,)),
    MISTAKE: Expected(state=JobState.CANCELLED, exit_code=None, outcomes=(Outcome.CANCELLED,)),
    GANG: Expected(),
    SWEEP: Expected(),
    "evaluate": Expected(),
    HOTFIX: Expected(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Observations of the demo besides the jobs themselves."""

    why: WhyView | None  # of the gang while it waited
    gang_logs: Sequence[str]  # by rank
    pids: Mapping[str, int]  # of the jobs that had to be ended, by name
    living: frozenset[int]  # of these, those still alive at the end
    free_gpus: int
    timeline: Timeline


DemoCheck = tuple[bool, str]
"""Whether it held, and what was checked."""


def checks(jobs: Mapping[str, JobView], seen: Evidence) -> Iterator[DemoCheck]:
    """Every promise, held against what the API answered and what the machine shows."""
    for name, expected in EXPECTED.items():
        yield _ended_as_expected(name, jobs.get(name), expected)
    yield _ranks_met(jobs.get(GANG), seen.gang_logs)
    why = seen.why
    waited = why is not None and why.code is not None and why.code.value == "insufficient_gpus"
    yield waited, "the gang waited for GPUs, and `why` said so"
    yield _went_first(jobs.get(HOTFIX), jobs.get(SWEEP)), "the urgent job overtook the low one that came before it"
    gone = len(seen.pids) == 2 and not seen.living
    yield gone, "the processes of the cancelled job and of the one out of time are gone"
    yield not overlaps(seen.timeline), "no GPU was held by two jobs at once"
    total = NODES * GPUS_PER_NODE
    yield seen.free_gpus == total, f"all {total} GPUs are free again"


def _ended_as_expected(name: str, job: JobView | None, expected: Expected) -> DemoCheck:
    tries = f" after {len(expected.outcomes)} attempts" if len(expected.outcomes) > 1 else ""
    code = f" with exit code {expected.exit_code}" if expected.exit_code else ""
    says = f"{name} ended {expected.state.value}{code}{tries}"
    if job is None:
        return False, f"{says}; it was never seen"
    outcomes = tuple(attempt.outcome for attempt in job.attempts)
    code_fits = expected.exit_code is None or job.exit_code == expected.exit_code
    if job.state is expected.state and code_fits and outcomes == expected.outcomes:
        return True, says
    tried = ", ".join(outcome.value if outcome else "live" for outcome in outcomes)
    return False, f"{says}; it is {job.state.value} with exit code {job.exit_code} and attempts [{tried}]"


def _ranks_met(job: JobView | None, logs: Sequence[str]) -> DemoCheck:
    last = job.attempts[-1] if job is not None and job.attempts else None
    nodes = len({task.node for task in last.tasks}) if last else 0
    met = len(logs) == NODES and all(f"rank {rank} of {NODES}" in log and "met" in log for rank, log in enumerate(logs))
    where = f" at {last.master_addr}:{last.master_port}" if last else ""
    return met and nodes == NODES, f"the gang's ranks ran on {nodes} nodes and met over TCP{where}"


def _went_first(first: JobView | None, second: JobView | None) -> bool:
    if first is None or second is None or not first.started_at or not second.started_at:
        return False
    came_later = instant_ms(first.submitted_at) >= instant_ms(second.submitted_at)
    return came_later and instant_ms(first.started_at) <= instant_ms(second.started_at)


def overlaps(timeline: Timeline) -> bool:
    """Whether any GPU is held twice at once."""
    busy_until: dict[str, int] = {}
    for span in timeline.spans:  # in order of their beginning
        if span.start_ms < busy_until.get(span.gpu, span.start_ms):
            return True
        busy_until[span.gpu] = span.end_ms
    return False
