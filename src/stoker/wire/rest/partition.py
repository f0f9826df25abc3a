"""REST shapes of partitions."""

import msgspec

from stoker.brain.domain.ids import PartitionName
from stoker.brain.domain.partition import Partition
from stoker.brain.domain.where import make_where
from stoker.wire.rest.decode import bad_value
from stoker.wire.rest.submit import names_in
from stoker.wire.text import parse_duration


class PartitionBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A partition but for its name. What isn't given is as if it never had been."""

    where: str | None = None
    """A label selector, as in Kubernetes: `zone=a,disk!=hdd,tier in (x,y),!slow`."""
    exclude: str | list[str] | None = None
    """Names of nodes, as a list or with commas between them."""
    tolerate: str | list[str] | None = None
    """Taints that don't keep its jobs away: `KEY`, `KEY=VALUE`, or `*` for all."""
    time_default: str | int | None = None
    """For jobs that name no limit: `30` (minutes), `2h`, `1-12:00:00`. Null = the cluster's."""
    time_max: str | int | None = None
    """The longest that a job may ask for. Null = the cluster's."""
    comment: str | None = None
    """For people."""


class NewPartitionBody(PartitionBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A partition to make."""

    name: str
    """A word such as `a100` or `long-runs`."""


class PartitionView(msgspec.Struct, frozen=True, kw_only=True):
    """A partition, and what there is of it. Times are 0 where the cluster's hold."""

    name: str
    where: str
    exclude: tuple[str, ...]
    tolerate: tuple[str, ...]
    time_default_ms: int
    time_max_ms: int
    comment: str
    nodes: int
    """Nodes that its jobs may run on, but for what they select themselves. Forgotten ones aren't counted."""
    ready_nodes: int
    """Those of them that take new work."""
    total_gpus: int
    free_gpus: int
    pending_jobs: int
    """Jobs, and members of arrays, that wait or are held."""
    running_jobs: int
    """Those that hold GPUs or CPUs."""


class PartitionListView(msgspec.Struct, frozen=True, kw_only=True):
    partitions: list[PartitionView]
    total: int


def partition_of(name: str, body: PartitionBody) -> Partition:
    """Return the partition that a body describes.

    Raises: StokerError `bad_selector`, `bad_toleration` or `bad_time`.
    """
    return Partition(
        name=PartitionName(name),
        where=make_where(body.where or "", names_in(body.exclude), names_in(body.tolerate)),
        time_default_ms=_time_ms("time_default", body.time_default),
        time_max_ms=_time_ms("time_max", body.time_max),
        comment=body.comment or "",
    )


def _time_ms(field: str, given: str | int | None) -> int:
    if given is None:
        return 0
    if isinstance(given, int) and given <= 0:
        raise bad_value(field, wanted="a time above zero, or null", got=str(given)[:40])
    return parse_duration(str(given))
