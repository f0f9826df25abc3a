"""On which nodes may a job run, by labels, names and taints?

Grammar of a selector: that of Kubernetes' label selectors (`zone=a,disk!=hdd,tier in (x,y),!slow`).
"""

from enum import StrEnum

import msgspec

from stoker.brain.domain.ids import NodeName


class Operator(StrEnum):
    IN = "in"
    NOT_IN = "notin"
    EXISTS = "exists"
    ABSENT = "absent"


class Requirement(msgspec.Struct, frozen=True):
    """One condition on the labels of a node. `values` are sorted, and empty for `exists` and `absent`."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()


class Toleration(msgspec.Struct, frozen=True):
    """Taints that don't keep a job away. An empty key stands for every taint; `value` None for any value of the key."""

    key: str = ""
    value: str | None = None


class Where(msgspec.Struct, frozen=True, kw_only=True, cache_hash=True):
    """All must hold. The empty one admits every node without taints."""

    require: tuple[Requirement, ...] = ()
    exclude: tuple[NodeName, ...] = ()
    tolerate: tuple[Toleration, ...] = ()


ANYWHERE = Where()
