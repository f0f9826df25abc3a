"""Which spans of which GPUs do the answers of the API tell of?

A GPU is held from the moment its task was placed until that task's end was proved; both come from the job's attempts.
"""

from collections.abc import Iterable, Iterator

from stoker.cli.display.formatting import instant_ms
from stoker.cli.display.timeline import Timeline, TimelineRow, TimelineSpan, make_timeline
from stoker.wire.rest.gpu import GpuListView
from stoker.wire.rest.job import JobView


def gpu_timeline(gpus: GpuListView, jobs: Iterable[JobView], now_ms: int) -> Timeline:
    """`now_ms` is where what still runs is drawn to."""
    lanes = [TimelineRow(node=gpu.node, index=gpu.device_index, uuid=gpu.uuid) for gpu in gpus.gpus]
    return make_timeline(lanes, (span for job in jobs for span in _spans(job, now_ms)))


def _spans(job: JobView, now_ms: int) -> Iterator[TimelineSpan]:
    for attempt in job.attempts:
        start_ms = instant_ms(attempt.placed_at)
        for task in attempt.tasks:
            end = task.ended_at or attempt.ended_at
            for uuid in task.gpus:
                yield TimelineSpan(
                    gpu=uuid,
                    job=job.id,
                    name=job.name,
                    attempt=attempt.number,
                    outcome=attempt.outcome.value if attempt.outcome else "",
                    start_ms=start_ms,
                    end_ms=max(start_ms, now_ms if end is None else instant_ms(end)),
                )
