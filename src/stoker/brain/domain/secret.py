"""Secrets: values that jobs get as variables and that nobody can read back.

A record holds a value encrypted, under a key that is nowhere in the state; a job names secrets only. A secret belongs
to one person in one tenant, for the jobs that this person submits there, or to all of the tenant.
"""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple, NewType

import msgspec

from stoker.brain.domain.ids import Principal, TenantName
from stoker.brain.domain.units import NEVER, Instant

SecretName = NewType("SecretName", str)

SECRET_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
"""That of a variable, since a secret becomes the variable of its name where a job says no other."""
SHARED: Final = Principal("")
"""Owner of the secrets that belong to all of a tenant."""
VALUE_BYTES_MAX: Final = 64 * 1024
"""Linux takes 128 KiB for one variable; a longer value is refused."""
JOB_SECRETS_MAX: Final = 32
"""Of one job; more are refused."""
TENANT_SECRETS_MAX: Final = 200
"""Of one tenant; one more is refused."""
TENANT_SECRETS_BYTES_MAX: Final = 512 << 10
"""All values of one tenant together, an eighth of those of the cluster; what goes beyond it is refused."""
SECRETS_MAX: Final = 2_000
"""Of the cluster; one more is refused."""
SECRETS_BYTES_MAX: Final = 4 << 20
"""All values of the cluster together, since every snapshot has them; what goes beyond it is refused."""


class SecretId(NamedTuple):
    """Tenant and owner of a secret, and its name among theirs."""

    tenant: TenantName
    owner: Principal
    """`SHARED` = it belongs to all of the tenant."""
    name: SecretName

    @property
    def label(self) -> str:
        """Text that is bound to the encrypted value, so that no record's value passes for that of another one."""
        return f"{self.tenant}/{self.owner}/{self.name}"

    @property
    def whose(self) -> str:
        """The owner for people."""
        return f"shared in tenant {self.tenant}" if self.owner == SHARED else f"of {self.owner} in tenant {self.tenant}"


class SealedValue(msgspec.Struct, frozen=True, kw_only=True):
    """An encrypted value."""

    key: str
    """Name of the key that opens it."""
    text: str
    """Base64."""


class Secret(msgspec.Struct, frozen=True, kw_only=True):
    """Record of one secret."""

    tenant: TenantName
    owner: Principal
    name: SecretName
    sealed: SealedValue
    size: int
    """Bytes of the value."""
    set_at: Instant = NEVER
    """Set when its event is applied, as is `set_by`."""
    set_by: Principal = Principal("")

    @property
    def id(self) -> SecretId:
        """Tenant, owner and name."""
        return SecretId(self.tenant, self.owner, self.name)


def find_secret(
    secrets: Mapping[SecretId, Secret], tenant: TenantName, by: Principal, name: SecretName
) -> Secret | None:
    """Return the secret that a job of this tenant, submitted by `by`, means by a name: its submitter's own comes first.

    None = there is neither such a one nor one that is shared.
    """
    return secrets.get(SecretId(tenant, by, name)) or secrets.get(SecretId(tenant, SHARED, name))
