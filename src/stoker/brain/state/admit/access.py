"""Admission of commands that create and revoke tokens.

Rules: K1  a token of role `user` is bound to a tenant; one of role `agent` to none, and to no user
       K2  an expiry lies ahead
       K3  there are at most `tokens_max`; expired ones don't count, and are revoked when another is made
"""

import re
from typing import Final

from stoker.brain.domain.access import Role, Token
from stoker.brain.domain.errors import Refusal, refuse
from stoker.brain.domain.units import Instant
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.commands import Answer, CreateToken, RevokeToken
from stoker.brain.state.events.access import TokenCreated, TokenRevoked
from stoker.brain.state.validation.fields import account_fault, comment_fault
from stoker.brain.state.validation.lookups import tenant_fault

_ID: Final = re.compile(r"[a-z0-9]{1,16}")


def create(state: ClusterState, command: CreateToken, now: Instant) -> Answer:
    """Admit a new token."""
    token = command.token
    expired = tuple(TokenRevoked(id=each.id) for each in state.tokens.values() if each.is_expired(now))
    fault = (
        _bound_fault(state, token)
        or account_fault(token.user)
        or comment_fault(token.comment, state.policy.text_bytes_max)
        or _expiry_fault(token, now)
        or _full(state, len(expired))
    )
    if fault:
        return fault
    assert token.id not in state.tokens, f"token {token.id} was made before"
    assert token.digest not in state.token_of_digest, "a token with this text was made before"
    return (*expired, TokenCreated(token=token))


def _bound_fault(state: ClusterState, token: Token) -> Refusal | None:
    # K1: a token of role `user` is bound to a tenant; one of role `agent` to none, and to no user.
    if token.role is Role.USER and not token.tenant:
        hint = "name one (`--tenant default`), or make a token of another role"
        return refuse("bad_token", "a token of role user is bound to a tenant, and none is named", hint)
    if token.role is Role.AGENT and (token.tenant or token.user):
        hint = "leave `--tenant` and `--user` out: what it joins serves all tenants"
        return refuse("bad_token", "a token of role agent has no tenant and no user", hint)
    return tenant_fault(state, token.tenant) if token.tenant else None


def _expiry_fault(token: Token, now: Instant) -> Refusal | None:
    # K2: an expiry lies ahead.
    if not token.is_expired(now):
        return None
    hint = "give a time ahead, or none"
    return refuse("bad_token", "it would have expired already", hint, expires_ms=token.expires_at)


def _full(state: ClusterState, expired: int) -> Refusal | None:
    most = state.policy.tokens_max
    if len(state.tokens) - expired < most:
        return None
    hint = "revoke those that nobody uses: `stoker token list`, `stoker token revoke ID`"
    return refuse("too_many_tokens", f"there are {most} tokens already, as many as are kept", hint, tokens_max=most)


def revoke(state: ClusterState, command: RevokeToken) -> Answer:
    """Admit the end of a token."""
    if command.id in state.tokens:
        return (TokenRevoked(id=command.id),)
    # A token given in place of its id must not be repeated where refusals are read.
    named = command.id if _ID.fullmatch(command.id) else "of that id"
    hint = "`stoker token list` shows the ids; what was revoked before or has expired isn't among them"
    return refuse("token_not_found", f"there is no token {named}", hint)
