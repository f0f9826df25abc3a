"""Facts about who is active, and under which policy decisions are made."""

import msgspec

from stoker.brain.domain.ids import Epoch, JobId, Position
from stoker.brain.domain.policy import Policy


class ClusterCreated(msgspec.Struct, frozen=True, kw_only=True, tag="cluster_created"):
    """The first event of every log."""

    cluster_id: str


class EpochBegan(msgspec.Struct, frozen=True, kw_only=True, tag="epoch_began"):
    """A control plane became active. Epochs rise by at least one and never fall."""

    epoch: Epoch


class PolicySet(msgspec.Struct, frozen=True, kw_only=True, tag="policy_set"):
    policy: Policy


class ClusterRestored(msgspec.Struct, frozen=True, kw_only=True, tag="cluster_restored"):
    """What stands before this fact came from a backup, or from a standby that was made active by force; what happened
    after that is not known here."""

    backup: Position
    """The position of the backup, or of the standby's last record."""
    next_job_id: JobId
    """Ids below it may have been given to jobs that are not known here."""


LeadershipEvent = ClusterCreated | EpochBegan | PolicySet | ClusterRestored
