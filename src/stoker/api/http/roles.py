"""Which role does a route want?

One table for all of them. A route that isn't in it wants a viewer to be read and an admin to change anything, so that
one which is forgotten here lets too few in, never too many.
"""

from typing import Final

from stoker.brain.domain.access import Caller, Role
from stoker.brain.domain.ids import Principal
from stoker.control.access import not_allowed
from stoker.wire.rest.problem import TYPES_PATH
from stoker.wire.versions import API_PREFIX

NOBODY: Final = Caller(principal=Principal("nobody"), role=Role.AGENT)
"""Who asks where everybody may: such routes show nothing of anyone's."""
OPEN: Final = frozenset({"/health", f"{API_PREFIX}/health", "/ready", "/openapi.json", TYPES_PATH})
"""Paths for which no token is wanted."""
_READS: Final = frozenset({"GET", "HEAD"})
_ADMINS: Final = tuple(f"{API_PREFIX}/{noun}" for noun in ("tokens", "audit", "backup"))
"""What only admins read."""
_USERS: Final = tuple(f"{API_PREFIX}/{noun}" for noun in ("jobs", "tasks"))
"""What users change, each of his own tenant."""
_RANKS: Final = {Role.AGENT: 0, Role.VIEWER: 1, Role.USER: 2, Role.ADMIN: 3}


def role_for(method: str, path: str) -> Role:
    """The least role that may ask this."""
    if method in _READS:
        return Role.ADMIN if path.startswith(_ADMINS) else Role.VIEWER
    return Role.USER if path.startswith(_USERS) else Role.ADMIN


def check_role(caller: Caller, method: str, path: str) -> None:
    """Raises: StokerError `not_allowed`."""
    if caller.role is Role.ADMIN:
        return
    wanted = role_for(method, path)
    if _RANKS[caller.role] < _RANKS[wanted]:
        raise not_allowed(
            f"{method[:20]} {path[:200]} is for the role {wanted}, and your token has the role {caller.role}",
            f"ask somebody who has it, or an admin for a token with it (`stoker token create --role {wanted}`)",
        )
