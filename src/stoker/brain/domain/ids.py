"""Identifiers of jobs, nodes, GPUs, tenants, partitions, principals, epochs and log positions.

Ids are typed, so that a node's name can't pass for a GPU's UUID, and parsed once, at the edge.
"""

from typing import Final, NewType

from stoker.brain.domain.errors import StokerError, refuse

JobId = NewType("JobId", int)
NodeName = NewType("NodeName", str)
GpuUuid = NewType("GpuUuid", str)
TenantName = NewType("TenantName", str)
PartitionName = NewType("PartitionName", str)
Principal = NewType("Principal", str)
"""The author of a command: `user:NAME`, `token:ID` of a token without a user, `node:NAME` or `control`."""
Epoch = NewType("Epoch", int)
Position = NewType("Position", int)
"""Place of an event in the log. The first event has position 1."""

JOB_ID_MAX: Final = 2**53 - 1
"""The largest integer that every JSON reader keeps exact."""

DEFAULT_TENANT: Final = TenantName("default")
CONTROL: Final = Principal("control")
NOBODY: Final = Principal("")


def parse_job_id(text: str) -> JobId:
    """Return the job id that people and clients write as `text`.

    Raises: StokerError `bad_job_id` for anything but a positive integer in ASCII digits.
    """
    if text.isascii() and text.isdigit() and len(text) <= 16 and 1 <= int(text) <= JOB_ID_MAX:
        return JobId(int(text))
    hint = "a job id is the whole number that `stoker submit` printed; `stoker list` shows them"
    raise StokerError(refuse("bad_job_id", f"{text[:80]!r} is not a job id", hint))


def account_of(user: str, by: Principal) -> str:
    """Return the person behind a job or a token: the Unix account, or the principal where there is none."""
    return user or by.removeprefix("user:")


def node_principal(node: NodeName) -> Principal:
    """Return the principal under which an agent's reports are logged."""
    return Principal(f"node:{node}")
