"""Checks of one job as a whole, the same at its submit and at each later change."""

from stoker.brain.domain.errors import Refusal
from stoker.brain.domain.ids import Principal
from stoker.brain.domain.job import JobSpec
from stoker.brain.domain.units import Instant
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.validation.quota import TenantRules
from stoker.brain.state.validation.secret import secrets_fault
from stoker.brain.state.validation.spec import spec_fault
from stoker.brain.state.validation.where import (
    executor_fault,
    kept_off_strict_nodes,
    kept_where_it_can_be_read,
    where_fault,
)


def completed(state: ClusterState, tenants: TenantRules, spec: JobSpec) -> JobSpec:
    """Return the job with the defaults of its tenant, and kept away from nodes that could not run it."""
    spec = tenants.filled(spec)
    if state.indexes.node_classes.strict.any:
        spec = kept_off_strict_nodes(spec)
    return kept_where_it_can_be_read(spec)


def job_fault(state: ClusterState, tenants: TenantRules, spec: JobSpec, now: Instant, by: Principal) -> Refusal | None:
    """Return the refusal of a completed job that `by` submitted; None = it may run, if it fits anywhere."""
    return (
        spec_fault(spec, state.policy, now)
        or tenants.fault(spec)
        or secrets_fault(state, spec, by)
        or executor_fault(state, spec)
        or where_fault(state, spec)
    )
