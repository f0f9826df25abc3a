"""Facts about tokens."""

import msgspec

from stoker.brain.domain.access import Token, TokenId


class TokenCreated(msgspec.Struct, frozen=True, kw_only=True, tag="token_created"):
    token: Token


class TokenRevoked(msgspec.Struct, frozen=True, kw_only=True, tag="token_revoked"):
    """From now on it is as unknown as one that never was."""

    id: TokenId


AccessEvent = TokenCreated | TokenRevoked
