"""What does a stored record do to the state?"""

from stoker.brain.domain.ids import Position
from stoker.brain.state.apply.dispatch import apply
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.codec import decode_fact
from stoker.control.feed import Entry
from stoker.ports import LogDamaged


class LogTooNew(LogDamaged):
    """It is as it was written, and this version doesn't know what it means."""


def replayed(state: ClusterState, position: Position, record: bytes) -> Entry:
    """Apply it, and answer it as a fact.

    Raises: LogDamaged, LogTooNew; the state may then be half changed.
    """
    try:
        fact = decode_fact(record)
    except ValueError as fault:  # its checksum was right
        raise LogTooNew(f"record {position} of the log is unknown to this version: {fault}") from fault
    try:
        apply(state, fact, position)
    except (ValueError, AssertionError, LookupError) as fault:
        raise LogDamaged(f"record {position} of the log can't be replayed: {fault!r}") from fault
    return position, fact
