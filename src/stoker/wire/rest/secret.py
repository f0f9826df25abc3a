"""The REST shapes of secrets. A value is in one body only, that of the request which sets it, and in no answer."""

import msgspec

from stoker.brain.domain.secret import SHARED, Secret
from stoker.wire.rest.view import iso, view_of


class SecretBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A value to keep."""

    value: str
    """At most 64 KiB of UTF-8, without NUL."""
    tenant: str | None = None
    """Whose jobs may use it. Left out = that of the token, or `default`."""
    shared: bool = False
    """Whether all jobs of the tenant may use it. False = those that the same principal submits there."""

    def __repr__(self) -> str:
        return f"SecretBody(tenant={self.tenant!r}, shared={self.shared})"  # never the value


class SecretListQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Query of the list of secrets."""

    tenant: str = ""
    """Only those of this tenant."""


class SecretQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Query for one secret of the path's name."""

    tenant: str = ""
    """Left out = that of the token, or `default`."""
    shared: bool = False
    """The one that all jobs of the tenant may use."""
    owner: str = ""
    """For leads and admins: the principal whose secret it is. Left out = the caller's."""


class SecretView(msgspec.Struct, frozen=True, kw_only=True):
    """A secret without its value."""

    name: str
    tenant: str
    owner: str | None
    """Principal whose jobs get it. None = all jobs of the tenant."""
    set_at: str
    set_by: str


class SecretListView(msgspec.Struct, frozen=True, kw_only=True):
    secrets: list[SecretView]
    total: int


def secret_view(secret: Secret) -> SecretView:
    owner = None if secret.owner == SHARED else secret.owner
    return view_of(SecretView, secret, owner=owner, set_at=iso(secret.set_at))
