"""Secrets between the record, which holds them encrypted, and those who may set, list, delete and use them.

Rules: S1  who submits to a tenant has secrets there, for the own jobs, and may share one with all jobs of the tenant
       S2  a shared one is replaced and deleted by who set it, a lead of the tenant or an admin; one of a person by
           that person, and those may delete it. Nobody reads a value back
       S3  a value is encrypted before it is handed to the writer, and decrypted when a start is sent to its node
"""

from collections.abc import Iterator
from typing import Final

from stoker.brain.domain.access import Caller, Role
from stoker.brain.domain.errors import StokerError, refusal_error
from stoker.brain.domain.ids import TenantName
from stoker.brain.domain.job import Job
from stoker.brain.domain.secret import SHARED, Secret, SecretId, find_secret
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.validation.secret import environment_fault
from stoker.control.access import may_submit, not_allowed
from stoker.control.control_ports import SecretVault
from stoker.ports import Telemetry

_OVER_ALL: Final = (Role.LEAD, Role.ADMIN)
"""Roles that see and delete other people's secrets, each where it may submit."""


def visible_secrets(state: ClusterState, caller: Caller, tenant: TenantName) -> Iterator[Secret]:
    """Yield the secrets whose names the caller may know, of this tenant; the empty one stands for all."""
    for secret in state.secrets.values():
        if tenant in ("", secret.tenant) and _may_know(state, caller, secret):
            yield secret


def _may_know(state: ClusterState, caller: Caller, secret: Secret) -> bool:
    if not may_submit(state, caller, secret.tenant):
        return False
    return caller.role in _OVER_ALL or secret.owner in (SHARED, caller.principal)


def check_keeper(state: ClusterState, caller: Caller, secret: SecretId) -> None:
    """Refuse a caller who may neither set nor delete this secret (S1, S2). Raises: StokerError `not_allowed`."""
    if secret.tenant in state.tenants and not may_submit(state, caller, secret.tenant):
        raise not_allowed(
            f"your token is for tenant {caller.home} and those beneath it, and the secret is of {secret.tenant}",
            "leave the tenant out, or ask an admin for a token of that tenant",
        )
    if caller.role in _OVER_ALL:
        return
    if secret.owner not in (SHARED, caller.principal):
        hint = "its owner may set and delete it, a lead of the tenant or an admin delete it"
        raise not_allowed(f"the secret is {secret.owner}'s", hint)
    known = state.secrets.get(secret)
    if secret.owner == SHARED and known is not None and known.set_by != caller.principal:
        raise not_allowed(
            f"the shared secret {secret.name} was set by {known.set_by}",
            "ask them, a lead or an admin; or set one of your own, which goes first in your jobs (without `--shared`)",
        )


def sealed_secret(state: ClusterState, vault: SecretVault, secret: SecretId, value: str) -> Secret:
    """Return the record of a new value (S3). Raises: StokerError `bad_secret` or `secret_key_unusable`."""
    try:
        content = value.encode()
    except UnicodeEncodeError:
        raise refusal_error("bad_secret", "the value contains half a surrogate pair", "send valid Unicode") from None
    if b"\0" in content:
        raise refusal_error(
            "bad_secret", "the value contains a NUL character", "encode it, such as by base64: no variable can hold it"
        )
    sealed = vault.seal(secret.label, content, first=not state.secrets)
    return Secret(tenant=secret.tenant, owner=secret.owner, name=secret.name, sealed=sealed, size=len(content))


def secret_variables(state: ClusterState, vault: SecretVault | None, job: Job) -> dict[str, str]:
    """Return the variables of the job's secrets, with their values of now (S3).

    Raises: StokerError `unknown_secret`, `secret_key_unusable`, `text_too_long` or `not_supported_here`.
    """
    spec, variables, size = job.spec, dict[str, str](), 0
    for variable, name in spec.secrets.items():
        if vault is None:
            raise refusal_error("not_supported_here", "this control plane keeps no secrets", "ask an admin")
        secret = find_secret(state.secrets, spec.tenant, job.by, name)
        if secret is None:
            raise refusal_error(
                "unknown_secret",
                f"secret {name} of {job.by} in tenant {spec.tenant} was deleted, and none is shared there",
                f"set it again (`stoker secret set {name}`), or cancel the job",
            )
        # In a job of Latin-1 each letter stands for a byte, and those of a secret are UTF-8.
        variables[variable] = vault.open(secret.id.label, secret.sealed).decode(spec.encoding)
        size += len(variable) + secret.size + 2
    fault = environment_fault(spec, size, state.policy.env_bytes_max)
    if fault is not None:
        raise StokerError(fault)
    return variables


def lacking_keys(state: ClusterState, vault: SecretVault) -> set[str]:
    """Return the keys of secrets here that can't be opened. Raises: StokerError `secret_key_unusable`."""
    names = {secret.sealed.key for secret in state.secrets.values()}
    return vault.lacking(names) if names else set()


def warn_of_lost_keys(state: ClusterState, vault: SecretVault | None, telemetry: Telemetry) -> None:
    """Tell of secrets that can't be opened here, before a job misses them."""
    if vault is None:
        return
    try:
        lacking = lacking_keys(state, vault)
    except StokerError as fault:
        telemetry.warn("secret_key_unusable", error=fault.refusal.message, hint=fault.refusal.hint)
        return
    if lacking:
        hint = "put the file of `secrets.key_file` back from a copy; without one delete those secrets and set them anew"
        telemetry.warn("secret_key_missing", keys=",".join(sorted(lacking)), hint=hint)
