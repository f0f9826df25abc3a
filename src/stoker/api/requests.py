"""Rules for requests that hold in every interface: the role a path wants, its audit action, and the longest body.

A path that isn't in the table of roles wants a viewer to be read and an admin to change anything, so that one which is
forgotten here lets too few in, never too many. The audit action is for requests that are refused before they become a
command, or that never would: a denied read is told of too.
"""

from collections.abc import Mapping
from typing import Final

from stoker.brain.domain.access import Caller, Role
from stoker.brain.domain.array import parse_job_ref
from stoker.brain.domain.errors import StokerError, refusal_error
from stoker.brain.domain.ids import Principal
from stoker.control.access import not_allowed
from stoker.control.audit_actions import ACTIONS, AuditAction
from stoker.control.audit_trail import ASK
from stoker.wire import endpoints
from stoker.wire.endpoints import API_PREFIX
from stoker.wire.rest.problem import TYPES_PATH

BODY_BYTES_MAX: Final = 8 * 1024 * 1024
"""A longer body is refused with `body_too_large` before it is read. There is room for as many jobs as one request may
hold, of 800 bytes each."""
_MIB: Final = 1024 * 1024

NOBODY: Final = Caller(principal=Principal("nobody"), role=Role.AGENT)
"""Who asks where everybody may: such routes show nothing of anyone's."""
OPEN: Final = frozenset({"/health", f"{API_PREFIX}/health", "/ready", "/openapi.json", TYPES_PATH})
"""Paths for which no token is wanted."""
_READS: Final = frozenset({"GET", "HEAD"})
_ADMINS: Final = tuple(f"{API_PREFIX}/{noun}" for noun in ("tokens", "audit", "backup"))
"""What only admins read."""
_USERS: Final = tuple(f"{API_PREFIX}/{noun}" for noun in ("jobs", "tasks", "secrets"))
"""What users change, each of his own tenant."""
_SECRETS: Final = f"{API_PREFIX}/secrets"
"""What only users read, leads and admins."""
_RANKS: Final = {
    Role.AGENT: 0,
    Role.JOIN: 0,
    Role.METRICS: 0,
    Role.VIEWER: 1,
    Role.USER: 2,
    Role.LEAD: 2,
    Role.ADMIN: 3,
}
_ENTRIES: Final = ("exec", "attach")
"""What WebSockets into jobs are called: their handshake is a GET, and they are no reads."""
_METRICS: Final = endpoints.METRICS.path


def role_for(method: str, path: str) -> Role:
    """The least role that may ask this."""
    if method in _READS:
        if path == _METRICS:
            return Role.METRICS
        return Role.ADMIN if path.startswith(_ADMINS) else Role.USER if path.startswith(_SECRETS) else Role.VIEWER
    return Role.USER if path.startswith(_USERS) else Role.ADMIN


def check_role(caller: Caller, method: str, path: str) -> None:
    """Raises: StokerError `not_allowed`."""
    if caller.role is Role.ADMIN:
        return
    wanted = role_for(method, path)
    if not _may(caller, wanted):
        raise not_allowed(
            f"{method[:20]} {path[:200]} is for the role {wanted}, and your token has the role {caller.role}",
            f"ask somebody who has it, or an admin for a token with it (`stoker token create --role {wanted}`)",
        )


def _may(caller: Caller, wanted: Role) -> bool:
    if wanted is Role.METRICS:
        # They are of all tenants and users, so whoever is bound to one tenant doesn't scrape them.
        return caller.role is Role.METRICS or (caller.role is Role.VIEWER and not caller.tenant)
    return _RANKS[caller.role] >= _RANKS[wanted]


READ: Final = "read"
_CHANGES: Final[Mapping[tuple[str, str, str], str]] = {
    ("POST", "jobs", ""): "submit",
    ("DELETE", "jobs", ""): "cancel",
    ("PATCH", "jobs", ""): "update",
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
    ("PUT", "secrets", ""): "secret_set",
    ("DELETE", "secrets", ""): "secret_delete",
    ("POST", "control", ""): "promote",
}
"""By method, noun, and what follows the name. An operation on jobs is called as its path ends."""


def audit_action_of(method: str, path: str) -> AuditAction:
    """Never what was in a query or a body."""
    noun, _, rest = path.removeprefix(API_PREFIX).strip("/").partition("/")
    name, _, tail = rest.partition("/")
    operation = tail if noun == "jobs" and tail in ACTIONS.values() else ASK
    action = READ if method in ("GET", "HEAD") else _CHANGES.get((method, noun, tail), operation)
    if noun == "jobs" and tail in _ENTRIES:
        action = "exec"
    if action == READ and noun in ("jobs", "tasks") and tail:
        action = f"{READ}_{tail.partition('/')[0][:20]}"
    if noun not in ("jobs", "tasks") or not name:
        return AuditAction(action, name if action in _CHANGES.values() else path.removeprefix(API_PREFIX))
    try:
        return AuditAction(action, name, parse_job_ref(name))
    except StokerError:
        return AuditAction(action, name)


def too_large() -> StokerError:
    """Return the refusal of a longer body."""
    limit_mib = BODY_BYTES_MAX // _MIB
    return refusal_error(
        "body_too_large",
        f"the body is longer than {limit_mib} MiB",
        "submit fewer jobs at once, and hand large inputs over as files",
        limit_bytes=BODY_BYTES_MAX,
    )
