"""Admission of a control plane that becomes active, and of a cluster that goes on from a backup."""

from collections.abc import Callable
from typing import Final

from stoker.brain.domain.array import too_many_ids
from stoker.brain.domain.errors import Refusal, refuse
from stoker.brain.domain.ids import Epoch, JobId
from stoker.brain.domain.units import Instant
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.commands import Answer, BeginEpoch
from stoker.brain.state.events.leadership import ClusterCreated, ClusterRestored, EpochBegan, PolicySet
from stoker.brain.state.events.tenant import PoolsSet
from stoker.brain.state.events.union import Event

EPOCHS_SKIPPED: Final = 1_000
"""Epochs left out after a restore, and one more for each second since the backup: agents obey no epoch below the newest
that they have seen, and there may have been some since. A thousand starts are years of them."""
IDS_SKIPPED: Final = 1_000_000
"""Job ids left out after a restore, and one more for each millisecond since the backup: as many as may wait at once."""


def begin(state: ClusterState, command: BeginEpoch, ids: Callable[[], str]) -> Answer:
    """Admit a control plane as the active one under a new epoch; `ids` gives the id of a new cluster."""
    if command.epoch <= state.epoch:
        message = f"epoch {command.epoch} can't begin: the log already holds epoch {state.epoch}"
        return refuse("stale_epoch", message, "another control plane has taken over; stop this one", epoch=state.epoch)
    events: list[Event] = []
    if not state.cluster_id:
        events.append(ClusterCreated(cluster_id=ids()))
    events.append(EpochBegan(epoch=command.epoch, counts_usage=True))
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


def restore(state: ClusterState, now: Instant) -> Answer:
    """Admit a cluster from a backup, with an epoch and job ids that were never given away after the backup.

    One backup may be restored again after a cluster restored from it has worked and was lost. That cluster began
    earlier, so the new one begins behind it by as much as could be given away meanwhile: an id a millisecond, an epoch
    a second.
    """
    old_ms = now - state.last_at
    skipped = _skip_ids(state, IDS_SKIPPED + old_ms)
    if isinstance(skipped, Refusal):
        return skipped
    epoch = Epoch(state.epoch + EPOCHS_SKIPPED + old_ms // 1_000)
    return EpochBegan(epoch=epoch, counts_usage=True), skipped


def _skip_ids(state: ClusterState, number: int = IDS_SKIPPED) -> ClusterRestored | Refusal:
    spent = too_many_ids(state.next_job_id, number)
    return spent or ClusterRestored(backup=state.position, next_job_id=JobId(state.next_job_id + number))
