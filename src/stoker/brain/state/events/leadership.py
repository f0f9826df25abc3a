"""Facts about who is active, and under which policy decisions are made."""

import msgspec

from stoker.brain.domain.ids import Epoch
from stoker.brain.domain.policy import Policy


class ClusterCreated(msgspec.Struct, frozen=True, kw_only=True, tag="cluster_created"):
    """The first event of every log."""

    cluster_id: str


class EpochBegan(msgspec.Struct, frozen=True, kw_only=True, tag="epoch_began"):
    """A control plane became active. Epochs rise by at least one and never fall."""

    epoch: Epoch


class PolicySet(msgspec.Struct, frozen=True, kw_only=True, tag="policy_set"):
    policy: Policy


LeadershipEvent = ClusterCreated | EpochBegan | PolicySet
