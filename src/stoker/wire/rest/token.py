"""The REST shapes of tokens: who may ask, and what of it is shown.

The text of a token is in one answer only, that to whoever made it; its digest is in none.
"""

import msgspec

from stoker.brain.domain.access import Role, Token, TokenId
from stoker.brain.domain.errors import StokerError, refusal_error
from stoker.brain.domain.ids import TenantName
from stoker.brain.domain.units import NEVER, Instant
from stoker.wire.rest.view import iso, iso_or_none, view_of
from stoker.wire.text import parse_duration
from stoker.wire.token import digest_of, id_of


class NewTokenBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A token to make."""

    role: Role
    """`viewer` reads, `user` submits in its tenant, `admin` may do everything, `agent` joins nodes."""
    tenant: str | None = None
    """A `user` is bound to one; a `viewer` may be."""
    user: str | None = None
    """Unix account of the jobs that are submitted with it."""
    comment: str | None = None
    """For people."""
    expires: str | None = None
    """After how long it ends: `30d`, `12h`. Left out = never."""


class TokenView(msgspec.Struct, frozen=True, kw_only=True):
    """A token without its text."""

    id: str
    role: Role
    tenant: str | None
    """None = bound to none."""
    user: str | None
    """None = the account of the node's agent, where that is allowed."""
    comment: str
    principal: str
    """Whom the audit trail names for what is done with it."""
    created_at: str
    created_by: str
    expires_at: str | None
    """None = never."""


class NewTokenView(TokenView, frozen=True, kw_only=True):
    """A token that was just made."""

    token: str
    """Its text, shown this once."""


class TokenListView(msgspec.Struct, frozen=True, kw_only=True):
    tokens: list[TokenView]
    total: int


def token_of(body: NewTokenBody, text: str, now: Instant) -> Token:
    """Return the token that a body describes, with a text that nobody had before.

    Raises: StokerError `bad_token`.
    """
    return Token(
        id=id_of(text),
        digest=digest_of(text),
        role=body.role,
        tenant=TenantName(body.tenant or ""),
        user=body.user or "",
        comment=body.comment or "",
        expires_at=NEVER if body.expires is None else Instant(now + _lasts_ms(body.expires)),
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
        created_at=iso(token.created_at),
        expires_at=iso_or_none(token.expires_at),
    )


def new_token_view(token: Token, text: str) -> NewTokenView:
    return view_of(NewTokenView, token_view(token), token=text)


def listed(tokens: dict[TokenId, Token], now: Instant) -> TokenListView:
    """Those that still hold, the oldest first."""
    held = [each for each in tokens.values() if each.expires_at == NEVER or each.expires_at > now]
    views = [token_view(each) for each in sorted(held, key=lambda each: (each.created_at, each.id))]
    return TokenListView(tokens=views, total=len(views))
