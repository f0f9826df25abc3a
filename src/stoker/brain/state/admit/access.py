"""May this token be made or revoked?

Rules: K1  a token of role `user` is bound to a tenant; one of role `agent` to none, and to no user
       K2  an expiry lies ahead
       K3  at most `tokens_max`: those that have expired don't count and make room
"""

import re
from typing import Final

from stoker.brain.domain.access import Role, Token
from stoker.brain.domain.errors import Refusal, refuse
from stoker.brain.domain.units import Instant
from stoker.brain.state.admit.tenant import find_tenant
from stoker.brain.state.admit.text import comment_fault
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.commands import CreateToken, RevokeToken
from stoker.brain.state.events.access import TokenCreated, TokenRevoked
from stoker.brain.state.events.union import Event

Answer = tuple[Event, ...] | Refusal

_ACCOUNT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,30}\$?")
"""What useradd(8) takes, with capitals and dots, which directories of accounts have."""

_ID: Final = re.compile(r"[a-z0-9]{1,16}")


def create(state: ClusterState, command: CreateToken, now: Instant) -> Answer:
    token = command.token
    gone = expired(state, now)
    fault = (
        _bound_fault(state, token)
        or user_fault(token.user)
        or comment_fault(token.comment, state.policy.text_bytes_max)
        or _expiry_fault(token, now)
        or _full(state, len(gone))
    )
    if fault:
        return fault
    assert token.id not in state.tokens, f"token {token.id} was made before"
    assert token.digest not in state.token_of_digest, "a token with this text was made before"
    return (*gone, TokenCreated(token=token))


def expired(state: ClusterState, now: Instant) -> tuple[TokenRevoked, ...]:
    return tuple(TokenRevoked(id=token.id) for token in state.tokens.values() if token.is_expired(now))


def _bound_fault(state: ClusterState, token: Token) -> Refusal | None:
    """K1"""
    if token.role is Role.USER and not token.tenant:
        hint = "name one (`--tenant default`), or make a token of another role"
        return refuse("bad_token", "a token of role user is bound to a tenant, and none is named", hint)
    if token.role is Role.AGENT and (token.tenant or token.user):
        hint = "leave `--tenant` and `--user` out: what it joins serves all tenants"
        return refuse("bad_token", "a token of role agent has no tenant and no user", hint)
    found = find_tenant(state, token.tenant) if token.tenant else None
    return found if isinstance(found, Refusal) else None


def user_fault(user: str) -> Refusal | None:
    """Why this can't be the name of a Unix account; None also for the empty text."""
    if not user or _ACCOUNT.fullmatch(user):
        return None
    return refuse(
        "bad_user",
        f"{user[:80]!r} can't be the name of a Unix account",
        "a name has up to 32 letters, digits, `_`, `-` and `.`, and begins with a letter or `_`; "
        "`getent passwd` shows those of a node",
        user=user[:80],
    )


def _expiry_fault(token: Token, now: Instant) -> Refusal | None:
    """K2"""
    if not token.is_expired(now):
        return None
    return refuse(
        "bad_token", "it would have expired already", "give a time ahead, or none", expires_ms=token.expires_at
    )


def _full(state: ClusterState, gone: int) -> Refusal | None:
    """K3"""
    most = state.policy.tokens_max
    if len(state.tokens) - gone < most:
        return None
    hint = "revoke those that nobody uses: `stoker token list`, `stoker token revoke ID`"
    return refuse("too_many_tokens", f"there are {most} tokens already, as many as are kept", hint, tokens_max=most)


def revoke(state: ClusterState, command: RevokeToken) -> Answer:
    if command.id in state.tokens:
        return (TokenRevoked(id=command.id),)
    # A whole token in the place of its id must not be repeated, wherever refusals are read.
    named = command.id if _ID.fullmatch(command.id) else "of that id"
    return refuse(
        "token_not_found",
        f"there is no token {named}",
        "`stoker token list` shows the ids; what was revoked before or has expired isn't among them",
    )
