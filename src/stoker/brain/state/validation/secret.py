"""Checks of the secrets that a submitted job names.

Rules: U1  a variable is called as a secret may be, and is not given a value of its own too
       U2  each secret is there for the jobs of this submitter in this tenant
       U3  a job names at most `JOB_SECRETS_MAX`, and with its environment they fit into one
"""

from stoker.brain.domain.errors import Refusal, refuse
from stoker.brain.domain.ids import Principal
from stoker.brain.domain.job import JobSpec
from stoker.brain.domain.secret import JOB_SECRETS_MAX, SECRET_NAME, SHARED, find_secret
from stoker.brain.domain.suggestion import did_you_mean
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.validation.fields import refuse_long_text


def secrets_fault(state: ClusterState, spec: JobSpec, by: Principal) -> Refusal | None:
    """Return the refusal of a job that names secrets which it can't get."""
    if not spec.secrets:
        return None
    if len(spec.secrets) > JOB_SECRETS_MAX:
        message = f"the job names {len(spec.secrets)} secrets; at most {JOB_SECRETS_MAX} are given to one"
        hint = "put several values into one secret, such as a JSON text"
        return refuse("too_many_secrets", message, hint, secrets_max=JOB_SECRETS_MAX)
    for variable in spec.secrets:
        if not SECRET_NAME.fullmatch(variable):
            message = f"{variable[:80]!r} can't be the variable of a secret"
            hint = "1 to 64 letters, digits and `_`, not beginning with a digit: `--secret NAME=VARIABLE`"
            return refuse("bad_secret", message, hint)
        if variable in spec.env:
            message = f"variable {variable} is given a value and a secret"
            return refuse("bad_secret", message, "give it one of the two; `--secret NAME=VARIABLE` names another")
    size = 0
    for variable, name in spec.secrets.items():
        secret = find_secret(state.secrets, spec.tenant, by, name)
        if secret is None:
            mine = [each.name for each in state.secrets if each.tenant == spec.tenant and each.owner in (by, SHARED)]
            hint = did_you_mean(name, sorted(dict.fromkeys(mine)), f"set it first: `stoker secret set {name[:64]}`")
            message = f"there is no secret {name[:80]!r} of {by} in tenant {spec.tenant}, nor a shared one"
            return refuse("unknown_secret", message, hint, secret=name[:80])
        size += len(variable) + secret.size + 2
    return environment_fault(spec, size, state.policy.env_bytes_max)


def environment_fault(spec: JobSpec, secret_bytes: int, bytes_max: int) -> Refusal | None:
    """Return the refusal of an environment that would be too large with secrets of so many bytes (U3)."""
    own = sum(len(text.encode(spec.encoding, "replace")) + 1 for both in spec.env.items() for text in both)
    if own + secret_bytes <= bytes_max:
        return None
    hint = "put long values in a file that the job reads"
    return refuse_long_text("secrets", "the environment with its secrets", own + secret_bytes, bytes_max, hint)
