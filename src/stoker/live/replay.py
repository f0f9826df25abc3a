"""What does a stored record do to the state?"""

from stoker.brain.domain.ids import Position
from stoker.brain.state.apply.dispatch import apply
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.codec import decode_fact
from stoker.live.feed import Entry
from stoker.ports import LogDamaged


def replayed(state: ClusterState, position: Position, record: bytes) -> Entry:
    """Apply it, and answer it as a fact.

    Raises: LogDamaged; the state may then be half changed.
    """
    try:
        fact = decode_fact(record)
        apply(state, fact, position)
    except (ValueError, AssertionError, LookupError) as fault:
        raise LogDamaged(f"record {position} of the log can't be replayed: {fault!r}") from fault
    return position, fact
