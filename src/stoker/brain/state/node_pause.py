"""Pauses of nodes on which starts fail, so that a sick node doesn't swallow one job after the other.

Rules: S1  the node's own faults count once per job, or per array; what can be the command's fault (`start_failed`), or
           that of the image and registry that it names, once per person, since one person's says nothing about a node
       S2  `failed_starts_max` of them in a row pause the node: it gets no new work, and what it has goes on
       S3  after a pause the first start that fails by the node's own fault begins another, twice as long, up to
           `node_pause_max_ms`; so do commands of `failed_starts_max` people
       S4  a task that starts there ends the row and, once the pause is over, its growth; a person ends all of it
       S5  that a node takes no jobs of an account is nobody's fault, and counts for nothing here
       S6  all who may read hear what a node said, so it is without what the job named: its account, program,
           files and image
"""

from collections.abc import Iterator
from typing import Final

from stoker.brain.domain.ids import NodeName
from stoker.brain.domain.job import EndCause, Job, TaskEnd
from stoker.brain.domain.units import Instant, later
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.events.node import NodePaused, StartFailed

ERROR_MAX: Final = 300
"""Characters of an error that a pause repeats."""
_QUOTES: Final = ("cannot run ", "cannot write its ", "cannot use the working directory ")
"""How an error begins that names a program, file or folder of the job, before its cause."""
_IMAGES: Final = ("image ", "the pull of ")
"""How an error begins by which an image that the job names could not be had."""


def failed_start(
    state: ClusterState, name: NodeName, job: Job, end: TaskEnd, now: Instant
) -> Iterator[StartFailed | NodePaused]:
    """Yield what the end of a task of this job means for its node, if it is a failed start."""
    node, policy = state.nodes[name], state.policy
    if not end.failed_start or node.pause is not None or end.cause is EndCause.ACCOUNT_REFUSED:
        return
    of_image = end.cause is EndCause.NEVER_STARTED and end.error.startswith(_IMAGES)
    is_own = end.cause is EndCause.NEVER_STARTED and not of_image
    of = f"job:{job.array_of or job.id}" if is_own else job.by
    if not (node.pauses and is_own) and len({*node.failed_starts, of}) < policy.failed_starts_max:
        if of not in node.failed_starts:
            yield StartFailed(node=name, of=of)
        return
    pause_ms = min(policy.node_pause_first_ms << min(node.pauses, 32), policy.node_pause_max_ms)
    # What a command said when it couldn't start is only for those who may read the job.
    several = (
        "images of several people could not be had" if of_image else "commands of several people could not be started"
    )
    error = _without_names(job, end.error)[:ERROR_MAX] if is_own else several
    yield NodePaused(node=name, until=later(now, pause_ms), pauses=node.pauses + 1, error=error or end.cause.value)


def _without_names(job: Job, error: str) -> str:
    """Return what everybody may read of the error of a node (S6)."""
    if error.startswith(_QUOTES):
        return error.rpartition(": ")[2]
    return error.replace(f" as user {job.spec.user!r}", "") if job.spec.user else error
