"""May a control plane become active under this epoch, and what does a cluster begin with that comes from a backup?"""

from collections.abc import Callable
from typing import Final

from stoker.brain.domain.errors import Refusal, refuse
from stoker.brain.domain.ids import JOB_ID_MAX, Epoch, JobId
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.commands import BeginEpoch
from stoker.brain.state.events.leadership import ClusterCreated, ClusterRestored, EpochBegan, PolicySet
from stoker.brain.state.events.tenant import PoolsSet
from stoker.brain.state.events.union import Event

EPOCHS_SKIPPED: Final = 1_000
"""Agents obey no epoch below the newest that they have seen, and since a backup there may have been some: a thousand
starts are years of them."""
IDS_SKIPPED: Final = 1_000_000
"""As many jobs may wait at once, and a backup that is a day old lacks no more of them than that."""


def begin(state: ClusterState, command: BeginEpoch, ids: Callable[[], str]) -> tuple[Event, ...] | Refusal:
    if command.epoch <= state.epoch:
        return refuse(
            "stale_epoch",
            f"epoch {command.epoch} can't begin: the log already holds epoch {state.epoch}",
            "another control plane has taken over; stop this one",
            epoch=state.epoch,
        )
    events: list[Event] = []
    if not state.cluster_id:
        events.append(ClusterCreated(cluster_id=ids()))
    events.append(EpochBegan(epoch=command.epoch))
    if command.policy != state.policy or not state.cluster_id:
        events.append(PolicySet(policy=command.policy))
    if command.pools != state.pools_configured:
        events.append(PoolsSet(pools=command.pools, configured=command.pools))
    if command.forced:
        skipped = _skip_ids(state)
        if isinstance(skipped, Refusal):
            return skipped
        events.append(skipped)
    return tuple(events)


def restore(state: ClusterState) -> tuple[Event, ...] | Refusal:
    """Nothing that was given away after the backup may be given away again: neither an epoch nor a job's id."""
    skipped = _skip_ids(state)
    if isinstance(skipped, Refusal):
        return skipped
    return EpochBegan(epoch=Epoch(state.epoch + EPOCHS_SKIPPED)), skipped


def _skip_ids(state: ClusterState) -> ClusterRestored | Refusal:
    following = state.next_job_id + IDS_SKIPPED
    if following > JOB_ID_MAX:
        return refuse("ids_spent", f"job ids end at {JOB_ID_MAX}", "start a new cluster with an empty data folder")
    return ClusterRestored(backup=state.position, next_job_id=JobId(following))
