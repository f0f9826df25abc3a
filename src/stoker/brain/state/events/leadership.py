"""Facts about who is active, by which clock, and under which policy decisions are made."""

from typing import ClassVar, Final

import msgspec

from stoker.brain.domain.ids import Epoch, JobId, Position
from stoker.brain.domain.policy import Policy
from stoker.brain.state.events.row import Audience, LogLine, Row, SubjectNote

RESTORE: Final = "restore"
"""The audit action of a person while no control plane ran."""


def _restored_note(event: "ClusterRestored") -> SubjectNote:
    ids = f"job ids go on at {event.next_job_id}"
    return SubjectNote(RESTORE, "", f"went on at position {event.backup}, perhaps without what came after; {ids}")


class ClusterCreated(msgspec.Struct, frozen=True, kw_only=True, tag="cluster_created"):
    """The first event of every log."""

    row: ClassVar["Row[ClusterCreated]"] = Row(wakes=False, audience=Audience.EVERYONE, log=None, audit=None)

    cluster_id: str


class EpochBegan(msgspec.Struct, frozen=True, kw_only=True, tag="epoch_began"):
    """A control plane became active. Epochs rise by at least one and never fall."""

    row: ClassVar["Row[EpochBegan]"] = Row(
        wakes=False,
        audience=Audience.EVERYONE,
        log=LogLine("role_changed", lambda event: {"role": "active", "epoch": event.epoch}),
        audit=None,
    )

    epoch: Epoch
    counts_usage: bool = False
    """True: usage decays and is counted from here on, if it wasn't before. Logs from before that lack it."""


class PolicySet(msgspec.Struct, frozen=True, kw_only=True, tag="policy_set"):
    row: ClassVar["Row[PolicySet]"] = Row(wakes=True, audience=Audience.EVERYONE, log=None, audit=None)

    policy: Policy


class ClusterRestored(msgspec.Struct, frozen=True, kw_only=True, tag="cluster_restored"):
    """The cluster goes on from a backup, or from a standby that was made active by force.

    What happened after the backup is not known here.
    """

    row: ClassVar["Row[ClusterRestored]"] = Row(
        wakes=False,
        audience=Audience.EVERYONE,
        log=LogLine("cluster_restored", lambda event: {"backup": event.backup, "next_job_id": event.next_job_id}),
        audit=_restored_note,
    )

    backup: Position
    """The position of the backup, or of the standby's last record."""
    next_job_id: JobId
    """Ids below it may have been given to jobs that are not known here."""


class ClockMoved(msgspec.Struct, frozen=True, kw_only=True, tag="clock_moved"):
    """The time of the log has moved otherwise than the active control plane has lived through.

    Its wall clock was corrected, its machine has slept, or it took over with another clock. Time limits don't count
    the difference.
    """

    row: ClassVar["Row[ClockMoved]"] = Row(
        wakes=False,
        audience=Audience.EVERYONE,
        log=LogLine("clock_moved", lambda event: {"by_ms": event.by_ms}, warning=True),
        audit=None,
    )

    by_ms: int
    """Below zero: the log was ahead of the wall clock, and has let it catch up."""


LeadershipEvent = ClusterCreated | EpochBegan | PolicySet | ClusterRestored | ClockMoved
