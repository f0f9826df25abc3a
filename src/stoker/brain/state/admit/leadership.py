"""May a control plane become active under this epoch, and what does a cluster begin with that comes from a backup?"""

from collections.abc import Callable
from typing import Final

from stoker.brain.domain.errors import Refusal, refuse
from stoker.brain.domain.ids import JOB_ID_MAX, Epoch, JobId
from stoker.brain.domain.units import Instant
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.commands import BeginEpoch
from stoker.brain.state.events.leadership import ClusterCreated, ClusterRestored, EpochBegan, PolicySet
from stoker.brain.state.events.tenant import PoolsSet
from stoker.brain.state.events.union import Event

EPOCHS_SKIPPED: Final = 1_000
"""Agents obey no epoch below the newest that they have seen, and since a backup there may have been some: a thousand
starts are years of them. One more for each second since the backup: see `restore`."""
IDS_SKIPPED: Final = 1_000_000
"""As many jobs may wait at once. One more for each millisecond since the backup."""


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


def restore(state: ClusterState, now: Instant) -> tuple[Event, ...] | Refusal:
    """Nothing that was given away after the backup may be given away again: neither an epoch nor a job's id.

    One backup may be restored again after a cluster that came of it has worked and was lost. That one began earlier, so
    with as much more as could be given away meanwhile (an id a millisecond, an epoch a second) we begin behind it.
    """
    old_ms = now - state.last_at
    skipped = _skip_ids(state, IDS_SKIPPED + old_ms)
    if isinstance(skipped, Refusal):
        return skipped
    return EpochBegan(epoch=Epoch(state.epoch + EPOCHS_SKIPPED + old_ms // 1_000)), skipped


def _skip_ids(state: ClusterState, number: int = IDS_SKIPPED) -> ClusterRestored | Refusal:
    following = state.next_job_id + number
    if following > JOB_ID_MAX:
        return refuse("ids_spent", f"job ids end at {JOB_ID_MAX}", "start a new cluster with an empty data folder")
    return ClusterRestored(backup=state.position, next_job_id=JobId(following))
