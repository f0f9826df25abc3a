"""Access tokens, roles and callers.

A token names one caller: a role, the tenant it is bound to and the Unix account of its jobs. Only the digest of its
text is kept.

Roles: metrics scrapes the metrics, and nothing else
       viewer  reads, but neither what jobs run nor what they write; bound to a tenant, and where that lets its people
               see each other's jobs, it sees those in full
       user    submits jobs in its tenant and the tenants beneath it; reads and changes its own there, and the others'
               where their tenant lets its people do so
       lead    a user who reads and changes all jobs of its tenant and of the tenants beneath it
       admin   does everything
       join    gives a node of a certain name its identity, and nothing else
       agent   is a node; without TLS a token of this role joins any of them
"""

from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Final, NewType

import msgspec

from stoker.brain.domain.ids import DEFAULT_TENANT, NodeName, Principal, TenantName, account_of, node_principal
from stoker.brain.domain.tenant import NO_TENANT
from stoker.brain.domain.units import NEVER, Instant

TokenId = NewType("TokenId", str)

NO_TOKEN_ID: Final = TokenId("")
SESSIONS_PER_TOKEN_MAX: Final = 16
"""Browsers that are signed in with one token at the same time; one more signs the oldest out."""

LOCAL: Final = Principal("user:local")
"""The Unix account that runs `stoker up` or `stoker demo`, on the same machine."""


class Role(StrEnum):
    """Rights that a token gives."""

    METRICS = "metrics"
    VIEWER = "viewer"
    USER = "user"
    LEAD = "lead"
    ADMIN = "admin"
    JOIN = "join"
    AGENT = "agent"


PROGRAMS: Final = (Role.METRICS, Role.AGENT, Role.JOIN)
"""Roles of programs and machines, which are of no tenant and see no job of anybody."""
SUBMITTERS: Final = (Role.USER, Role.LEAD)
"""Roles beside admins that submit jobs, each to the tenant that it is bound to, and change those they see in full."""


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """Record of one access token, without its text, or of the key by which a node is known."""

    id: TokenId
    """Public: it names the token in lists, in the audit trail and to `token revoke`."""
    digest: str
    """SHA-256 of the whole text, in hex. The text is random, so it needs no slow hash. Of a node: of its public key."""
    role: Role
    tenant: TenantName = NO_TENANT
    """Of roles `user` and `lead` always one. Empty otherwise = bound to none."""
    user: str = ""
    """Unix account of the jobs submitted with it. Empty = the agent's own, where that is allowed."""
    node: str = ""
    """Of role `join` the name of the node that may join with it, or a glob of names. Of role `agent` the node whose key
    this is; empty there = any node, by a text."""
    session_of: TokenId = NO_TOKEN_ID
    """Of a session of the web pages: the token that was shown to open it, with which it ends. The session's own text is
    in a browser's cookie, and is good there alone. Empty = it is a token."""
    for_commands: bool = False
    """True = a session of commands on a person's machine: its text is sent as a token, and is good in no cookie."""
    comment: str = ""
    created_at: Instant = NEVER
    """Set when its event is applied."""
    created_by: Principal = Principal("")
    expires_at: Instant = NEVER
    """NEVER = it doesn't expire."""

    def is_expired(self, now: Instant) -> bool:
        """Return whether it has expired at `now`."""
        return self.expires_at != NEVER and self.expires_at <= now

    @property
    def principal(self) -> Principal:
        """The principal under which commands with this token are logged."""
        if self.role is Role.AGENT and self.node:
            return node_principal(NodeName(self.node))
        return Principal(f"user:{self.user}") if self.user else Principal(f"token:{self.session_of or self.id}")

    def may_join(self, node: NodeName) -> bool:
        """Return whether a node of this name may join with it."""
        return self.role is Role.JOIN and fnmatchcase(node, self.node)


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """The caller of a request: the principal and what its token allows."""

    principal: Principal
    role: Role
    tenant: TenantName = NO_TENANT
    user: str = ""
    token: TokenId = TokenId("")
    """Empty = no token was wanted."""
    proved_until: Instant = NEVER
    """When the certificate expires by which it proved itself. NEVER = it showed none."""

    @property
    def account(self) -> str:
        """The person behind it, as `Job.account` names whose a job is."""
        return account_of(self.user, self.principal)

    @property
    def sharer(self) -> str:
        """Tenant or, without one, principal whose share of what all have together this caller takes."""
        return self.tenant or self.principal

    @property
    def home(self) -> TenantName:
        """The tenant of the caller's jobs when a request names none."""
        return self.tenant or DEFAULT_TENANT


OWNER: Final = Caller(principal=LOCAL, role=Role.ADMIN)
"""The caller where no token is wanted."""
