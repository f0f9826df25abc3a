"""Format of tokens and the header that carries one.

`stoker_<id>_<secret>`: the id is public and names the token in lists and in the audit trail; the secret has 256 random
bits, so a plain SHA-256 of the whole text is as good to keep as a slow hash of a password would be. The text itself is
shown once, to whoever made it, and is never kept, logged or repeated in a message.

`stoker_<id>_<secret>.<fingerprint>` is the same token for a client that has yet to learn whom to trust: the part after
the dot is the SHA-256 of the certificate of the cluster's authority (DER), in URL-safe base64. It is no secret, clients
don't send it, and no digest covers it.
"""

import binascii
import re
from collections.abc import Container
from typing import TYPE_CHECKING, Final

from stoker.brain.domain.access import TokenId

if TYPE_CHECKING:
    from stoker.ports import Entropy

HEADER: Final = "Authorization"
"""Of REST; gRPC has the same in lower case as metadata."""
_SCHEME: Final = "bearer"
_TEXT: Final = re.compile(r"(stoker_([a-z0-9]{8})_[A-Za-z0-9_-]{43})(?:\.([A-Za-z0-9_-]{43}))?")
_IN_A_TEXT: Final = re.compile(r"stoker_([a-z0-9]{8})_[A-Za-z0-9_-]{12,}(?:\.[A-Za-z0-9_-]{43})?")
"""Also one of which a long text has only the beginning; less of a secret than that helps nobody."""
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz234567"
_URLSAFE: Final = str.maketrans("+/", "-_")
"""RFC 4648, section 5."""
_ID_BITS: Final = 40
_SECRET_BITS: Final = 256
_SEED_BITS: Final = 63
_DRAWS: Final = -(-(_ID_BITS + _SECRET_BITS) // _SEED_BITS)


def fresh_token(entropy: "Entropy", taken: Container[TokenId] = ()) -> str:
    """The text of a token that nobody had before; its id is none of those `taken`."""
    text = _drawn(entropy)
    while id_of(text) in taken:
        text = _drawn(entropy)
    return text


def random_text(entropy: "Entropy") -> str:
    """Return 43 letters, digits, dashes and underscores, of 256 random bits: for what is good once."""
    return _text_of(_random_bits(entropy))


def _drawn(entropy: "Entropy") -> str:
    bits = _random_bits(entropy)
    name, bits = bits & ((1 << _ID_BITS) - 1), bits >> _ID_BITS
    id_text = "".join(_LETTERS[name >> at & 31] for at in range(0, _ID_BITS, 5))
    return f"stoker_{id_text}_{_text_of(bits)}"


def _random_bits(entropy: "Entropy") -> int:
    bits = 0
    for _ in range(_DRAWS):
        bits = bits << _SEED_BITS | entropy.seed()
    return bits


def _text_of(bits: int) -> str:
    secret = bits & ((1 << _SECRET_BITS) - 1)
    packed = binascii.b2a_base64(secret.to_bytes(_SECRET_BITS // 8), newline=False).decode()
    return packed.rstrip("=").translate(_URLSAFE)


def is_token(text: str) -> bool:
    """Return whether this could be the text of a token, with a fingerprint or without."""
    return _TEXT.fullmatch(text) is not None


def fingerprint_in(text: str) -> str:
    """Return the fingerprint of the cluster's authority that a token carries; empty = none."""
    found = _TEXT.fullmatch(text)
    return found[3] or "" if found is not None else ""


def without_fingerprint(text: str) -> str:
    """Return the part of a token that is sent; any other text as it is."""
    found = _TEXT.fullmatch(text)
    return found[1] if found is not None else text


def with_fingerprint(text: str, fingerprint: str) -> str:
    """Return a token that carries this fingerprint; an empty one changes nothing."""
    return f"{text}.{fingerprint}" if fingerprint else text


def id_of(text: str) -> TokenId:
    """The public part of the text of a token."""
    found = _TEXT.fullmatch(text)
    assert found is not None, "not the text of a token"
    return TokenId(found[2])


def without_secrets(text: str) -> str:
    """A text for others, in which somebody may have put a token in the place of its id, or of anything else."""
    return _IN_A_TEXT.sub(r"stoker_\1_...", text) if "stoker_" in text else text


def digest_of(text: str) -> str:
    """Return the digest that is kept of a token, in hex."""
    import hashlib  # a fifth of the time that a command takes which only sends one

    return hashlib.sha256(without_fingerprint(text).encode(errors="replace")).hexdigest()


def bearer(text: str) -> str:
    """The header's value that sends it."""
    return f"Bearer {without_fingerprint(text)}"


def token_in(authorization: str) -> str:
    """The text of the token that a header's value sends, without its fingerprint; empty where it is none.

    Source: RFC 6750, section 2.1; the scheme's case doesn't matter (RFC 9110, section 11.1).
    """
    scheme, _, text = authorization.strip().partition(" ")
    text = text.strip()
    return without_fingerprint(text) if scheme.lower() == _SCHEME and is_token(text) else ""
