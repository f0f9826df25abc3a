"""Application of events about tokens to the state."""

from typing import assert_never

from msgspec.structs import replace

from stoker.brain.domain.ids import Principal
from stoker.brain.domain.units import Instant
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.events.access import AccessEvent, NodeJoined, NodeKeyReplaced, TokenCreated, TokenRevoked


def apply_access(state: ClusterState, event: AccessEvent, at: Instant, by: Principal) -> None:
    match event:
        case TokenCreated():
            state.put_token(replace(event.token, created_at=at, created_by=by))
        case TokenRevoked():
            state.drop_token(event.id)
        case NodeJoined():
            state.put_token(replace(event.token, created_at=at, created_by=by))
        case NodeKeyReplaced():
            state.drop_token(event.replaced)
            state.put_token(replace(event.token, created_at=at, created_by=by))
        case _:
            assert_never(event)
