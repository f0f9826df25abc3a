"""What does a request ask for, in the words of the audit trail?

For requests that are refused before they become a command, or that never would: who may not read is told of too.
"""

from collections.abc import Mapping
from typing import Final

from stoker.brain.domain.array import parse_job_ref
from stoker.brain.domain.errors import StokerError
from stoker.control.audit_actions import AuditAction
from stoker.control.audit_trail import ASK
from stoker.wire.versions import API_PREFIX

READ: Final = "read"
_CHANGES: Final[Mapping[tuple[str, str, str], str]] = {
    ("POST", "jobs", ""): "submit",
    ("DELETE", "jobs", ""): "cancel",
    ("POST", "jobs", "hold"): "hold",
    ("POST", "jobs", "release"): "release",
    ("POST", "jobs", "requeue"): "requeue",
    ("POST", "jobs", "signal"): "signal",
    ("POST", "tasks", ""): "submit",
    ("DELETE", "tasks", ""): "cancel",
    ("POST", "nodes", "drain"): "node_drain",
    ("POST", "nodes", "resume"): "node_resume",
    ("POST", "nodes", "labels"): "node_label",
    ("POST", "nodes", "taints"): "node_taint",
    ("DELETE", "nodes", ""): "node_forget",
    ("POST", "partitions", ""): "partition_set",
    ("PUT", "partitions", ""): "partition_set",
    ("DELETE", "partitions", ""): "partition_delete",
    ("POST", "tenants", ""): "tenant_set",
    ("PUT", "tenants", ""): "tenant_set",
    ("DELETE", "tenants", ""): "tenant_delete",
    ("PUT", "quota", ""): "quota_set",
    ("POST", "tokens", ""): "token_create",
    ("DELETE", "tokens", ""): "token_revoke",
    ("POST", "control", ""): "promote",
}
"""By method, noun, and what follows the name."""


def audit_action_of(method: str, path: str) -> AuditAction:
    """Never what was in a query or a body."""
    noun, _, rest = path.removeprefix(API_PREFIX).strip("/").partition("/")
    name, _, tail = rest.partition("/")
    action = READ if method in ("GET", "HEAD") else _CHANGES.get((method, noun, tail), ASK)
    if action == READ and noun in ("jobs", "tasks") and tail:
        action = f"{READ}_{tail.partition('/')[0][:20]}"
    if noun not in ("jobs", "tasks") or not name:
        return AuditAction(action, name if action in _CHANGES.values() else path.removeprefix(API_PREFIX))
    try:
        return AuditAction(action, name, parse_job_ref(name))
    except StokerError:
        return AuditAction(action, name)
