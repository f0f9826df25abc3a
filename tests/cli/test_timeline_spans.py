"""What the API says becomes spans: nothing more, nothing less."""

from stoker.brain.domain.lifecycle import JobState, Outcome
from stoker.cli.display.formatting import instant_ms
from stoker.cli.display.timeline import Timeline, gpu_timeline
from stoker.wire.rest.job import JobView
from stoker.wire.rest.node import GpuListView, GpuView
from tests.cli.views import at, attempt, job, task


def gpus(*uuids: str) -> GpuListView:
    shown = [
        GpuView(
            id=uuid,
            uuid=uuid,
            node_id="n",
            node="n",
            device_index=index,
            model="m",
            memory=1,
            memory_mb=1,
            status="idle",
            current_task=None,
            simulated=True,
            updated_at=at(0),
        )
        for index, uuid in enumerate(uuids)
    ]
    return GpuListView(total=len(shown), idle=len(shown), busy=0, offline=0, gpus=shown)


def timeline(*jobs: JobView) -> Timeline:
    return gpu_timeline(gpus("a", "b", "c"), jobs, instant_ms(at(30)))


def test_a_gpu_is_held_from_placement_to_the_proved_end_of_its_task() -> None:
    ranks = (task(0, gpus=("a",), end=at(4)), task(1, gpus=("b", "c"), end=at(6.5)))
    drawn = timeline(job(attempts=(attempt(1, Outcome.SUCCEEDED, ranks, placed=at(2)),)))
    assert [(span.gpu, span.end_ms - span.start_ms) for span in drawn.spans] == [
        ("a", 2_000),
        ("b", 4_500),
        ("c", 4_500),
    ]


def test_every_attempt_is_a_span_with_its_own_outcome() -> None:
    tries = (
        attempt(1, Outcome.FAILED, (task(gpus=("a",), end=at(3)),), placed=at(2)),
        attempt(2, Outcome.SUCCEEDED, (task(gpus=("b",), end=at(9)),), placed=at(5)),
    )
    assert [(span.gpu, span.attempt, span.outcome) for span in timeline(job(attempts=tries)).spans] == [
        ("a", 1, "failed"),
        ("b", 2, "succeeded"),
    ]


def test_what_still_runs_is_drawn_to_now() -> None:
    running = job(state=JobState.RUNNING, attempts=(attempt(tasks=(task(gpus=("a",)),), placed=at(20)),))
    (span,) = timeline(running).spans
    assert (span.end_ms - span.start_ms, span.outcome) == (10_000, "")


def test_a_job_without_gpus_or_attempts_holds_nothing() -> None:
    assert timeline(job(), job(2, attempts=(attempt(tasks=(task(),)),))).spans == ()


def test_a_clock_that_stepped_back_makes_no_span_of_negative_length() -> None:
    tried = attempt(1, Outcome.SUCCEEDED, (task(gpus=("a",), end=at(1)),), placed=at(2))
    (span,) = timeline(job(attempts=(tried,))).spans
    assert span.start_ms == span.end_ms
