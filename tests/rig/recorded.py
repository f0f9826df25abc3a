"""Does the history say what the log says?"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from stoker.brain.domain.ids import Position, Principal
from stoker.brain.domain.units import Instant
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.codec import decode_fact
from tests.rig.sim_history import SimArchive

if TYPE_CHECKING:
    from tests.rig.sim_log import SimDisk


def history_faults(state: ClusterState, archive: SimArchive) -> Iterator[str]:
    """What is missing or wrong in a history that was written to its end. The state remembers every job."""
    ended = {job.id: job for job in state.jobs.values() if job.is_final}
    written = {job: record for job, (_, record) in archive.jobs.items() if job not in state.jobs or job in ended}
    for job in sorted(ended.keys() | written.keys()):
        # An array's own record goes on changing while its members are pruned; its end doesn't.
        if job not in ended or job not in written or ended[job].ended_at != written[job].ended_at:
            yield f"H job {job} ended as {ended.get(job)} and was written as {written.get(job)}"
    held = {
        (job.id, attempt.number, task.placement.rank): (attempt.placed_at, task.placement.gpus, task.end.at)
        for job in state.jobs.values()
        for attempt in job.attempts
        for task in attempt.tasks
        if task.end is not None
    }
    for key in sorted(held.keys() | archive.holdings.keys()):
        holding = archive.holdings.get(key)
        if key not in held or holding is None or (holding.since, holding.gpus) != held[key][:2]:
            yield f"H task {key} held {held.get(key)} and was written as {holding}"
        elif holding.until < held[key][2]:
            yield f"H task {key} ended at {held[key][2]} and was written as ending earlier: {holding.until}"


def untold(disk: "SimDisk") -> Iterator[str]:
    """Commands of people that left facts in the log and not one row in the audit trail, or rows without such facts."""
    commands: dict[Position, tuple[Instant, Principal]] = {}
    for number, record in enumerate(disk.records):
        fact, position = decode_fact(record), Position(disk.first + number)
        if fact.joined is True:
            commands.pop(Position(position - 1), None)
        if fact.by.startswith("user:"):
            commands[position] = (fact.at, fact.by)
    rows = [row for row in disk.archive.audit.values() if not row.number and row.position >= disk.first]
    told = {row.position: (row.at, row.by) for row in rows}
    for position in sorted(commands.keys() | told.keys()):
        if commands.get(position) != told.get(position):
            yield f"H command at {position} was {commands.get(position)} and is told as {told.get(position)}"
