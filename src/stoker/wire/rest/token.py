"""The REST shapes of tokens: who may ask, and what of it is shown.

The text of a token is in one answer only, that to whoever made it; its digest is in none.
"""

from typing import Final

import msgspec

from stoker.brain.domain.access import Caller, Role, Token, TokenId
from stoker.brain.domain.errors import StokerError, refusal_error
from stoker.brain.domain.ids import TenantName
from stoker.brain.domain.units import NEVER, Instant
from stoker.wire.rest.view import iso, iso_or_none, view_of
from stoker.wire.text import parse_duration
from stoker.wire.token import digest_of, id_of

JOIN_LASTS: Final = "1d"
"""A join token that nobody thinks of any more must open nothing."""


class NewTokenBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A token to make."""

    role: Role
    """`metrics` scrapes `/metrics` alone, `viewer` reads, `user` submits in its tenant, `lead` also sees and changes
    all jobs there, `admin` may do everything, `join` lets nodes join; `agent` is what agents show a control plane
    without TLS."""
    tenant: str | None = None
    """A `user` and a `lead` are bound to one; a `viewer` may be."""
    user: str | None = None
    """Unix account of the jobs that are submitted with it."""
    nodes: str | None = None
    """Of role `join`: the name of the node that may join with it, or a glob: `gpu-*`."""
    comment: str | None = None
    """For people."""
    expires: str | None = None
    """After how long it ends: `30d`, `12h`. Left out = never; of role `join` after a day."""


class TokenView(msgspec.Struct, frozen=True, kw_only=True):
    """A token without its text."""

    id: str
    role: Role
    tenant: str | None
    """None = bound to none."""
    user: str | None
    """None = the account of the node's agent, where that is allowed."""
    node: str | None = None
    """Of role `join` the nodes that may join with it; of role `agent` the node whose key this is. None = any, as from
    0.2.0, whose tokens name none."""
    session_of: str | None = None
    """Of a session of the web pages: the token with which somebody signed in. None = it is a token."""
    comment: str
    principal: str
    """Whom the audit trail names for what is done with it."""
    created_at: str
    created_by: str
    expires_at: str | None
    """None = never."""


class CallerView(msgspec.Struct, frozen=True, kw_only=True):
    """The caller of a request, as the control plane knows it."""

    principal: str
    """Whom the audit trail names."""
    role: Role
    tenant: str | None
    """None = bound to none."""
    user: str | None
    """Unix account of jobs that are submitted so. None = that of the node's agent, where that is allowed."""
    token: str | None
    """Id of the token that was sent. None = none was wanted."""


class NewTokenView(TokenView, frozen=True, kw_only=True):
    """A token that was just made."""

    token: str
    """Its text, shown this once; where the control plane speaks TLS, followed by a dot and the fingerprint of the
    authority that certifies it."""


class TokenListView(msgspec.Struct, frozen=True, kw_only=True):
    tokens: list[TokenView]
    total: int


def token_of(body: NewTokenBody, text: str, now: Instant) -> Token:
    """Return the token that a body describes, with a text that nobody had before.

    Raises: StokerError `bad_token`.
    """
    lasts = JOIN_LASTS if body.expires is None and body.role is Role.JOIN else body.expires
    return Token(
        id=id_of(text),
        digest=digest_of(text),
        role=body.role,
        tenant=TenantName(body.tenant or ""),
        user=body.user or "",
        node=body.nodes or "",
        comment=body.comment or "",
        expires_at=NEVER if lasts is None else Instant(now + _lasts_ms(lasts)),
    )


def _lasts_ms(text: str) -> int:
    try:
        return parse_duration(text)
    except StokerError as fault:
        why = f"{text[:80]!r} is not a time after which a token could expire"
        hint = "write how long it is to last: `30d`, `12h`, `90m`; left out, it never expires"
        raise refusal_error("bad_token", why, hint, got=text[:80]) from fault


def token_view(token: Token) -> TokenView:
    return view_of(
        TokenView,
        token,
        tenant=token.tenant or None,
        user=token.user or None,
        node=token.node or None,
        session_of=token.session_of or None,
        created_at=iso(token.created_at),
        expires_at=iso_or_none(token.expires_at),
    )


def caller_view(caller: Caller) -> CallerView:
    return CallerView(
        principal=caller.principal,
        role=caller.role,
        tenant=caller.tenant or None,
        user=caller.user or None,
        token=caller.token or None,
    )


def new_token_view(token: Token, text: str) -> NewTokenView:
    return view_of(NewTokenView, token_view(token), token=text)


def listed(tokens: dict[TokenId, Token], now: Instant) -> TokenListView:
    """Those that still hold, the oldest first."""
    held = [each for each in tokens.values() if each.expires_at == NEVER or each.expires_at > now]
    views = [token_view(each) for each in sorted(held, key=lambda each: (each.created_at, each.id))]
    return TokenListView(tokens=views, total=len(views))
