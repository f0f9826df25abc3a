"""Sign-ins of people through an identity provider: what is told to it, and whom it tells of."""

from typing import NamedTuple


class SignIn(NamedTuple):
    """One sign-in through an identity provider, from the way there until the way back; all but the last are secrets."""

    state: str
    nonce: str
    verifier: str
    redirect_uri: str


class PersonIdentity(NamedTuple):
    """The person that an identity provider has told of."""

    subject: str
    """By which the provider knows the person for ever."""
    user: str
    """Account of the person's jobs; empty = it told none."""
    groups: tuple[str, ...]
