"""Facts about secrets. What they hold of a value is encrypted."""

from typing import ClassVar

import msgspec
from msgspec.structs import replace

from stoker.brain.domain.ids import Principal, TenantName
from stoker.brain.domain.secret import SealedValue, Secret, SecretId, SecretName
from stoker.brain.state.events.row import Audience, Fields, LogLine, Row, SubjectNote


def _fields(secret: SecretId) -> Fields:
    return {"secret": secret.name, "tenant": secret.tenant, "owner": secret.owner}


class SecretSet(msgspec.Struct, frozen=True, kw_only=True, tag="secret_set"):
    """A secret has this value from now on."""

    row: ClassVar["Row[SecretSet]"] = Row(
        wakes=False,
        audience=Audience.ADMINS,
        log=LogLine("secret_set", lambda event: _fields(event.secret.id)),
        audit=lambda event: SubjectNote(
            "secret_set", event.secret.name, event.secret.id.whose, tenant=event.secret.tenant
        ),
        public=lambda event: replace(event, secret=replace(event.secret, sealed=SealedValue(key="", text=""), size=0)),
    )

    secret: Secret


class SecretDeleted(msgspec.Struct, frozen=True, kw_only=True, tag="secret_deleted"):
    """From now on it is as unknown as one that never was."""

    row: ClassVar["Row[SecretDeleted]"] = Row(
        wakes=False,
        audience=Audience.ADMINS,
        log=LogLine("secret_deleted", lambda event: _fields(event.id)),
        audit=lambda event: SubjectNote("secret_delete", event.name, event.id.whose, tenant=event.tenant),
    )

    tenant: TenantName
    owner: Principal
    name: SecretName

    @property
    def id(self) -> SecretId:
        """Tenant, owner and name that it had."""
        return SecretId(self.tenant, self.owner, self.name)


SecretEvent = SecretSet | SecretDeleted
