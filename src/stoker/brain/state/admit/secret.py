"""Admission of commands that set and delete secrets.

Rules: X1  a name is that of a variable, and its tenant exists; a value is neither empty nor longer than
           `VALUE_BYTES_MAX`
       X2  there are at most `TENANT_SECRETS_MAX` of one tenant and `SECRETS_MAX` in all, and so many bytes of values of
           one tenant and in all, so that no tenant takes the places of others
       X3  a secret that waiting jobs name may be deleted: they wait until it is there again
"""

from stoker.brain.domain.errors import Refusal, refuse
from stoker.brain.domain.secret import (
    SECRET_NAME,
    SECRETS_BYTES_MAX,
    SECRETS_MAX,
    TENANT_SECRETS_BYTES_MAX,
    TENANT_SECRETS_MAX,
    VALUE_BYTES_MAX,
    Secret,
)
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.commands import Answer, DeleteSecret, SetSecret
from stoker.brain.state.events.secret import SecretDeleted, SecretSet
from stoker.brain.state.validation.fields import refuse_long_text
from stoker.brain.state.validation.lookups import refuse_unknown, tenant_fault


def put(state: ClusterState, command: SetSecret) -> Answer:
    """Admit a new secret, or another value of one that exists."""
    secret = command.secret
    fault = (
        _name_fault(secret.name) or tenant_fault(state, secret.tenant) or _size_fault(secret) or _full(state, secret)
    )
    return fault or (SecretSet(secret=secret),)


def delete(state: ClusterState, command: DeleteSecret) -> Answer:
    """Admit the end of a secret (X3)."""
    tenant, owner, name = command.secret
    if command.secret in state.secrets:
        return (SecretDeleted(tenant=tenant, owner=owner, name=name),)
    known = [each.name for each in state.secrets.values() if (each.tenant, each.owner) == (tenant, owner)]
    hint = "`stoker secret list` shows those there are, and whose"
    unknown = refuse_unknown("secret_unknown", "secret", name, known, hint)
    return refuse("secret_unknown", f"{unknown.message} {command.secret.whose}", unknown.hint, **unknown.facts)


def _name_fault(name: str) -> Refusal | None:
    if SECRET_NAME.fullmatch(name):
        return None
    hint = "1 to 64 letters, digits and `_`, not beginning with a digit, as of a variable: WANDB_API_KEY"
    return refuse("bad_secret", f"{name[:80]!r} can't be the name of a secret", hint)


def _size_fault(secret: Secret) -> Refusal | None:
    if secret.size > VALUE_BYTES_MAX:
        hint = "keep what is longer in a file that only the job's account can read"
        return refuse_long_text("value", f"the value of {secret.name}", secret.size, VALUE_BYTES_MAX, hint)
    if secret.size < 1:
        return refuse("bad_secret", f"the value of {secret.name} is empty", "`stoker secret delete` takes one away")
    return None


def _full(state: ClusterState, secret: Secret) -> Refusal | None:
    others = [each for each in state.secrets.values() if each.id != secret.id]
    of_tenant = [each for each in others if each.tenant == secret.tenant]
    hint = "delete those that nobody uses: `stoker secret list`, `stoker secret delete NAME`"
    for known, most, bytes_max, whose in (
        (of_tenant, TENANT_SECRETS_MAX, TENANT_SECRETS_BYTES_MAX, f"of tenant {secret.tenant}"),
        (others, SECRETS_MAX, SECRETS_BYTES_MAX, "of all tenants"),
    ):
        if len(known) >= most:
            message = f"there are {most} secrets {whose}, as many as are kept"
            return refuse("too_many_secrets", message, hint, secrets_max=most)
        total = secret.size + sum(each.size for each in known)
        if total > bytes_max:
            message = (
                f"the values of the secrets {whose} would have {total} bytes together; at most {bytes_max} are kept"
            )
            return refuse("too_many_secrets", message, hint, bytes=total, bytes_max=bytes_max)
    return None
