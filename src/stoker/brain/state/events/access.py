"""Facts about tokens."""

from typing import ClassVar

import msgspec
from msgspec.structs import replace

from stoker.brain.domain.access import Token, TokenId
from stoker.brain.state.events.row import Audience, Fields, LogLine, Row, SubjectNote


def token_text(token: Token) -> str:
    """A token in the words of the audit trail: its role, tenant and user; nothing by which it could be used."""
    words = (("tenant", token.tenant), ("user", token.user), ("node", token.node))
    bound = (f"{name} {value}" for name, value in words if value)
    return ", ".join((f"role {token.role}", *bound))


def _created_fields(event: "TokenCreated") -> Fields:
    token = event.token
    return {"token": token.id, "role": token.role, "tenant": token.tenant, "user": token.user}


def _created_note(token: Token) -> SubjectNote:
    if token.session_of:
        return SubjectNote("sign_in", token.session_of, f"session {token.id}", token.tenant)
    return SubjectNote("token_create", token.id, token_text(token), token.tenant)


class TokenCreated(msgspec.Struct, frozen=True, kw_only=True, tag="token_created"):
    row: ClassVar["Row[TokenCreated]"] = Row(
        wakes=False,
        audience=Audience.ADMINS,
        log=LogLine("token_created", _created_fields),
        audit=lambda event: _created_note(event.token),
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


def _joined_fields(event: "NodeJoined | NodeKeyReplaced") -> Fields:
    return {"agent_id": event.token.node, "token": event.token.id, "with": event.joined_with}


class NodeJoined(msgspec.Struct, frozen=True, kw_only=True, tag="node_joined"):
    """A node is known by its key from now on."""

    row: ClassVar["Row[NodeJoined]"] = Row(
        wakes=False,
        audience=Audience.ADMINS,
        log=LogLine("node_joined", _joined_fields),
        audit=lambda event: SubjectNote("node_join", event.token.node, token_text(event.token)),
        public=lambda event: replace(event, token=replace(event.token, digest="")),
    )

    token: Token
    joined_with: TokenId
    """The join token that it showed."""


class NodeKeyReplaced(msgspec.Struct, frozen=True, kw_only=True, tag="node_key_replaced"):
    """A node is known by another key from now on: its machine was set up anew, or somebody took its name."""

    row: ClassVar["Row[NodeKeyReplaced]"] = Row(
        wakes=False,
        audience=Audience.ADMINS,
        log=LogLine("node_key_replaced", _joined_fields, warning=True),
        audit=lambda event: SubjectNote("node_join", event.token.node, f"another key than {event.replaced}"),
        public=lambda event: replace(event, token=replace(event.token, digest="")),
    )

    token: Token
    joined_with: TokenId
    replaced: TokenId
    """Of the key that it had, which nobody knows any more."""


AccessEvent = TokenCreated | TokenRevoked | NodeJoined | NodeKeyReplaced
