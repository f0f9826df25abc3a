"""May a control plane become active under this epoch?"""

from collections.abc import Callable

from stoker.brain.domain.errors import Refusal, refuse
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.commands import BeginEpoch
from stoker.brain.state.events.leadership import ClusterCreated, EpochBegan, PolicySet
from stoker.brain.state.events.tenant import PoolsSet
from stoker.brain.state.events.union import Event


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
    return tuple(events)
