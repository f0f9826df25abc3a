"""Application of events about secrets to the state."""

from typing import assert_never

from msgspec.structs import replace

from stoker.brain.domain.ids import Principal
from stoker.brain.domain.units import Instant
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.events.secret import SecretDeleted, SecretEvent, SecretSet


def apply_secret(state: ClusterState, event: SecretEvent, at: Instant, by: Principal) -> None:
    match event:
        case SecretSet():
            state.secrets[event.secret.id] = replace(event.secret, set_at=at, set_by=by)
        case SecretDeleted():
            del state.secrets[event.id]
        case _:
            assert_never(event)
