"""Facts about partitions."""

from typing import ClassVar

import msgspec

from stoker.brain.domain.ids import PartitionName
from stoker.brain.domain.partition import Partition
from stoker.brain.domain.where import where_text
from stoker.brain.state.events.row import Audience, LogLine, Row, SubjectNote


class PartitionDefined(msgspec.Struct, frozen=True, kw_only=True, tag="partition_defined"):
    """A partition was made, or replaced whole. Jobs that are in already keep their time limits."""

    row: ClassVar["Row[PartitionDefined]"] = Row(
        wakes=True,
        audience=Audience.EVERYONE,
        log=LogLine(
            "partition_defined",
            lambda event: {"partition": event.partition.name, "where": where_text(event.partition.where)},
        ),
        audit=lambda event: SubjectNote("partition_set", event.partition.name),
    )

    partition: Partition


class PartitionDeleted(msgspec.Struct, frozen=True, kw_only=True, tag="partition_deleted"):
    """A partition was deleted; no job that hasn't ended names it."""

    row: ClassVar["Row[PartitionDeleted]"] = Row(
        wakes=False,
        audience=Audience.EVERYONE,
        log=LogLine("partition_deleted", lambda event: {"partition": event.name}),
        audit=lambda event: SubjectNote("partition_delete", event.name),
    )

    name: PartitionName


PartitionEvent = PartitionDefined | PartitionDeleted
