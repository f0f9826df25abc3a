"""Admission of commands that create and revoke tokens.

Rules: K1  a token of role `user` or `lead` is bound to a tenant; those of programs and machines (`metrics`,
           `agent`, `join`) to none, and to no user; one of role `join`, and no other that people make, to nodes
       K2  an expiry lies ahead
       K3  there are at most `tokens_max`; expired ones don't count, and are revoked when another is made
       K4  a node joins with a token that is good for its name. Once it has joined, another key under its name wants a
           join token that was made after that: one that leaked before opens nothing
       K5  a tenth of all places is kept from nodes that join: who has a join token keeps no admin from making another
           token, however many names it invents; nor does who opens sessions of the web pages
       K6  a session has the rights of the token that was shown, ends with it, and opens no other; of those of one token
           the oldest is ended where it would be one too many
       K7  a token that is revoked takes its sessions along
"""

import re
from typing import Final

from stoker.brain.domain.access import PROGRAMS, SESSIONS_PER_TOKEN_MAX, SUBMITTERS, Role, Token, TokenId
from stoker.brain.domain.errors import Refusal, refuse
from stoker.brain.domain.ids import NodeName
from stoker.brain.domain.node import NODE_GLOB, NODE_NAME
from stoker.brain.domain.units import NEVER, Instant
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.commands import Answer, CreateToken, JoinNode, OpenSession, RevokeToken
from stoker.brain.state.events.access import NodeJoined, NodeKeyReplaced, TokenCreated, TokenRevoked
from stoker.brain.state.validation.fields import account_fault, comment_fault
from stoker.brain.state.validation.lookups import tenant_fault

_RESERVED_PART: Final = 10
"""One of so many places isn't for nodes that join (K5)."""
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
        or _full(state, len(expired), state.policy.tokens_max)
    )
    if fault:
        return fault
    assert token.id not in state.tokens, f"token {token.id} was made before"
    assert token.digest not in state.token_of_digest, "a token with this text was made before"
    return (*expired, TokenCreated(token=token))


def _bound_fault(state: ClusterState, token: Token) -> Refusal | None:
    if token.role in SUBMITTERS and not token.tenant:
        hint = "name one (`--tenant default`), or make a token of another role"
        return refuse("bad_token", f"a token of role {token.role} is bound to a tenant, and none is named", hint)
    if token.role in PROGRAMS and (token.tenant or token.user):
        hint = "leave `--tenant` and `--user` out: what it opens is of the whole cluster"
        return refuse("bad_token", f"a token of role {token.role} has no tenant and no user", hint)
    if token.role is Role.JOIN and not NODE_GLOB.fullmatch(token.node):
        hint = "name a node or a glob: `--nodes gpu01`, `--nodes 'gpu-*'`; `--nodes '*'` is any"
        what = f"{token.node[:80]!r} is no name of nodes" if token.node else "none is named"
        return refuse("bad_token", f"a token of role join is bound to names of nodes, and {what}", hint)
    if token.role is not Role.JOIN and token.node:
        return refuse("bad_token", f"a token of role {token.role} isn't bound to nodes", "leave `--nodes` out")
    return tenant_fault(state, token.tenant) if token.tenant else None


def _expiry_fault(token: Token, now: Instant) -> Refusal | None:
    # K2: an expiry lies ahead.
    if not token.is_expired(now):
        return None
    hint = "give a time ahead, or none"
    return refuse("bad_token", "it would have expired already", hint, expires_ms=token.expires_at)


def _full(state: ClusterState, expired: int, most: int) -> Refusal | None:
    if len(state.tokens) - expired < most:
        return None
    hint = "revoke those that nobody uses: `stoker token list`, `stoker token revoke ID`"
    message = f"there are {most} tokens and keys of nodes already, as many as are kept"
    return refuse("too_many_tokens", message, hint, tokens_max=most)


def _unreserved(state: ClusterState) -> int:
    """Return how many places are not kept from nodes and sessions (K5)."""
    return state.policy.tokens_max - state.policy.tokens_max // _RESERVED_PART


def open_session(state: ClusterState, command: OpenSession, now: Instant) -> Answer:
    """Admit a session of the web pages (K6)."""
    shown = state.tokens.get(command.shown)
    if shown is None or shown.is_expired(now) or shown.session_of:
        hint = "ask an admin for a new one (`stoker token create`)"
        return refuse("token_unknown", "the token that was shown isn't good any more", hint)
    if shown.role in PROGRAMS:
        hint = "sign in with a token of role viewer, user, lead or admin"
        return refuse("not_allowed", f"a token of role {shown.role} opens no session of the web pages", hint)
    over = {each.id for each in state.tokens.values() if each.is_expired(now)}
    of_token = sorted((each.created_at, each.id) for each in _sessions(state, shown.id) if each.id not in over)
    extra = [token for _, token in of_token[: max(0, len(of_token) - SESSIONS_PER_TOKEN_MAX + 1)]]
    ended = [*(token for token in state.tokens if token in over), *extra]
    fault = _full(state, len(ended), _unreserved(state))
    if fault:
        return fault
    assert command.id not in state.tokens, f"token {command.id} was made before"
    assert command.digest not in state.token_of_digest, "a token with this text was made before"
    session = Token(
        id=command.id,
        digest=command.digest,
        role=shown.role,
        tenant=shown.tenant,
        user=shown.user,
        session_of=shown.id,
        for_commands=command.for_commands,
        comment=f"session of {'commands' if command.for_commands else 'the web pages'}",
        expires_at=min(command.expires_at, shown.expires_at) if shown.expires_at != NEVER else command.expires_at,
    )
    return (*(TokenRevoked(id=token) for token in ended), TokenCreated(token=session))


def _sessions(state: ClusterState, token: TokenId) -> list[Token]:
    return [each for each in state.tokens.values() if each.session_of == token]


def join(state: ClusterState, command: JoinNode, now: Instant) -> Answer:
    """Admit the key of a node (K4)."""
    node, shown = NodeName(command.token.node), state.tokens.get(command.join)
    if not NODE_NAME.fullmatch(node):
        hint = "1 to 63 letters, digits, dots, dashes or underscores: `--name`"
        return refuse("bad_node_name", f"{node[:80]!r} is no name of a node", hint)
    if shown is None or shown.is_expired(now) or not shown.may_join(node):
        bound = f"it is for {shown.node}" if shown is not None and shown.role is Role.JOIN else "it joins no node"
        hint = f"make one for it: `stoker token create --role join --nodes {node}`"
        return refuse("not_allowed", f"this token doesn't join node {node}: {bound}", hint)
    known = state.key_of(node)
    if known is None:
        taken = state.token_of_digest.get(command.token.digest)
        if taken is not None:
            message = f"this key is that of node {state.tokens[taken].node}"
            copied = "`identity.json` and `joining.json` in the agent's data folder"
            hint = f"each node makes a key of its own: remove {copied}, and join again"
            return refuse("key_in_use", message, hint)
        return _full(state, 0, _unreserved(state)) or (NodeJoined(token=command.token, joined_with=shown.id),)
    if known.digest == command.token.digest:
        return ()
    if shown.created_at <= known.created_at:
        return refuse(
            "node_has_joined",
            f"node {node} has joined with another key since this token was made",
            f"if its machine was set up anew: `stoker node reset {node}`, or join with a new token; if not, somebody "
            "wants its place",
            node=node,
        )
    return (NodeKeyReplaced(token=command.token, joined_with=shown.id, replaced=known.id),)


def revoke(state: ClusterState, command: RevokeToken) -> Answer:
    """Admit the end of a token."""
    if command.id in state.tokens:
        # The last one names the command in the audit trail.
        return (*(TokenRevoked(id=each.id) for each in _sessions(state, command.id)), TokenRevoked(id=command.id))
    # A token given in place of its id must not be repeated where refusals are read.
    named = command.id if _ID.fullmatch(command.id) else "of that id"
    hint = "`stoker token list` shows the ids; what was revoked before or has expired isn't among them"
    return refuse("token_not_found", f"there is no token {named}", hint)
