"""Facts about tokens."""

from typing import ClassVar

import msgspec
from msgspec.structs import replace

from stoker.brain.domain.access import Token, TokenId
from stoker.brain.state.events.row import Audience, Fields, LogLine, Row, SubjectNote


def token_text(token: Token) -> str:
    """A token in the words of the audit trail: its role, tenant and user; nothing by which it could be used."""
    bound = (f"{name} {value}" for name, value in (("tenant", token.tenant), ("user", token.user)) if value)
    return ", ".join((f"role {token.role}", *bound))


def _created_fields(event: "TokenCreated") -> Fields:
    token = event.token
    return {"token": token.id, "role": token.role, "tenant": token.tenant, "user": token.user}


class TokenCreated(msgspec.Struct, frozen=True, kw_only=True, tag="token_created"):
    row: ClassVar["Row[TokenCreated]"] = Row(
        wakes=False,
        audience=Audience.ADMINS,
        log=LogLine("token_created", _created_fields),
        audit=lambda event: SubjectNote("token_create", event.token.id, token_text(event.token), event.token.tenant),
        public=lambda event: replace(event, token=replace(event.token, digest="")),
    )

    token: Token


class TokenRevoked(msgspec.Struct, frozen=True, kw_only=True, tag="token_revoked"):
    """From now on it is as unknown as one that never was."""

    row: ClassVar["Row[TokenRevoked]"] = Row(
        wakes=False,
        audience=Audience.ADMINS,
        log=LogLine("token_revoked", lambda event: {"token": event.id}),
        audit=lambda event: SubjectNote("token_revoke", event.id),
    )

    id: TokenId


AccessEvent = TokenCreated | TokenRevoked
