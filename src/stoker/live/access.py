"""Who is it that asks, and may he?

The faces hand in what came as `Authorization`, and get a Caller. A token that is revoked or has expired stops at once:
whoever keeps a stream open watches his caller, and what changes something looks once more right before it does.

Rules: K1  a token that was never made, was revoked or has expired is refused with one text, which doesn't repeat it
       K2  where none is wanted, what is no token of Stoker's is overlooked; a token that is sent still says who asks
       K3  a token bound to a tenant reads and changes only jobs of that tenant and of those beneath it
Costs: one SHA-256 and two look-ups for each request with a token.
"""

import asyncio
from typing import Final

from stoker.brain.domain.access import OWNER, Caller, Role, Token
from stoker.brain.domain.errors import StokerError, refuse
from stoker.brain.domain.ids import Position, TenantName
from stoker.brain.domain.tenant import is_within
from stoker.brain.domain.units import NEVER, SECOND_MS
from stoker.brain.state.admit.access import is_expired
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.codec import Fact
from stoker.brain.state.events.access import TokenRevoked
from stoker.live.committer import Committer
from stoker.wire.token import digest_of, token_in

LOOK_MAX_S: Final = 60.0
"""Longest wait for an expiry before the clock is read again."""


class Access:
    """Who the tokens say that people and agents are."""

    def __init__(self, committer: Committer, *, open_to_owner: bool) -> None:
        """`open_to_owner`: whoever sends no token is the owner, since nobody else gets this far."""
        self.open_to_owner = open_to_owner
        self._committer = committer
        self._news = asyncio.Event()
        committer.watch(self._applied)

    def caller(self, authorization: str | None) -> Caller:
        """Who sent this header. Raises: StokerError `token_missing` or `token_unknown`."""
        text = token_in(authorization) if authorization else ""
        if not text:
            if self.open_to_owner:  # K2
                return OWNER
            raise token_unknown() if _is_bearer(authorization) else _token_missing()
        state = self._committer.state
        token_id = state.token_of_digest.get(digest_of(text))
        token = state.tokens.get(token_id) if token_id is not None else None
        if token is None or self._is_over(token):
            raise token_unknown()
        return Caller(principal=token.principal, role=token.role, tenant=token.tenant, user=token.user, token=token.id)

    def holds(self, caller: Caller) -> bool:
        """Is his token still good?"""
        if not caller.token:
            return self.open_to_owner
        token = self._committer.state.tokens.get(caller.token)
        return token is not None and not self._is_over(token)

    def check(self, caller: Caller) -> None:
        """Raises: StokerError `token_unknown` when his token was revoked, or has expired, since he asked."""
        if not self.holds(caller):
            raise token_unknown()

    async def watch(self, caller: Caller) -> None:
        """Returns once his token is no longer good: at once when it is revoked. For ever, where there is none."""
        while self.holds(caller):
            try:
                async with asyncio.timeout(self._left_s(caller)):
                    await self._news.wait()
            except TimeoutError:
                continue

    def _is_over(self, token: Token) -> bool:
        return token.expires_at != NEVER and is_expired(token, self._committer.now())

    def _left_s(self, caller: Caller) -> float | None:
        """Seconds until it may be worth a look again; None = there is nothing to wait for."""
        token = self._committer.state.tokens.get(caller.token)
        if token is None or token.expires_at == NEVER:
            return None
        return min(LOOK_MAX_S, max(0.001, (token.expires_at - self._committer.now()) / SECOND_MS))

    def _applied(self, _state: ClusterState, _position: Position, fact: Fact) -> None:
        if isinstance(fact.event, TokenRevoked):
            # Those who watch hold the old event; whoever comes now waits for the next news.
            self._news.set()
            self._news = asyncio.Event()


def may_read(state: ClusterState, caller: Caller, tenant: TenantName) -> bool:
    """May he see jobs of this tenant in full? Others he sees reduced. (K3)"""
    if caller.role is Role.ADMIN:
        return True
    if caller.role is Role.AGENT:
        return False
    return not caller.tenant or is_within(state.tenants, tenant, caller.tenant)


def may_change(state: ClusterState, caller: Caller, tenant: TenantName) -> bool:
    """May he submit, cancel or signal jobs of this tenant? (K3)"""
    if caller.role is Role.ADMIN:
        return True
    return caller.role is Role.USER and is_within(state.tenants, tenant, caller.tenant)


def require_admin(caller: Caller) -> None:
    """Raises: StokerError `not_allowed`."""
    if caller.role is not Role.ADMIN:
        raise not_allowed(f"this is for admins, and your token has the role {caller.role}", _ADMIN_HINT)


def not_allowed(message: str, hint: str) -> StokerError:
    return StokerError(refuse("not_allowed", message, hint))


def token_unknown() -> StokerError:
    """K1"""
    return StokerError(
        refuse(
            "token_unknown",
            "the token is not known here: it was never made, was revoked or has expired",
            "ask an admin for a new one (`stoker token create`), and see that the whole of it is sent, to the right "
            "control plane",
        )
    )


def _token_missing() -> StokerError:
    return StokerError(
        refuse(
            "token_missing",
            "no token was sent, and one is wanted here",
            "set STOKER_TOKEN or give --token; over HTTP send `Authorization: Bearer TOKEN`",
        )
    )


def _is_bearer(authorization: str | None) -> bool:
    """Was a token sent, though none of Stoker's?"""
    return authorization is not None and authorization.strip().lower().startswith("bearer ")


_ADMIN_HINT: Final = "ask an admin to do it, or for a token with the role admin"
