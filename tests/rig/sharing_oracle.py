"""Who shares a cluster gets what was promised: the part of the oracle about tenants, quotas and tokens.

Promises: O15 no placement breaks a limit of a tenant on its job's path, a strict pool, or what isn't lent
          O16 after every event the books say what the records add up to
          O17 no plan serves anyone before his turn, or gives him what is kept for another
          O18 a tenant or token that was acknowledged is there until somebody asks otherwise; what was revoked is gone
          O24 no task is placed on a node that its tenant, or one above it, may not use
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from stoker.brain.domain.access import TokenId
from stoker.brain.domain.ids import NodeName, TenantName
from stoker.brain.domain.job import Job
from stoker.brain.domain.plan import Plan
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.events.job import JobPlaced
from stoker.brain.state.events.union import Event
from tests.naive_quota import NodeCapacity, count, ledger_faults, limit_faults, pass_faults


def may_use(state: ClusterState, name: TenantName, node: NodeName) -> bool:
    """May jobs of this tenant run there? By rules of the rig's own."""
    tenant = state.tenants.get(name)
    while tenant is not None:
        if tenant.nodes and not any(fnmatchcase(node, pattern) for pattern in tenant.nodes):
            return False
        tenant = state.tenants.get(tenant.parent)
    return True


@dataclass(slots=True)
class SharingOracle:
    tenants: dict[TenantName, None] = field(default_factory=dict)
    """Acknowledged."""
    unwanted: dict[TenantName, None] = field(default_factory=dict)
    """Tenants that somebody once asked to delete: nothing is said of them any more."""
    tokens: dict[TokenId, str] = field(default_factory=dict)
    """Acknowledged, and nobody has asked to revoke them since; with their digests."""
    revoked: dict[TokenId, str] = field(default_factory=dict)
    """By an acknowledged order."""

    def applied(self, state: ClusterState, event: Event, open_jobs: Collection[Job]) -> Iterator[str]:
        """O15, O16. `open_jobs` are those that haven't ended."""
        found = count(state, open_jobs)
        for fault in ledger_faults(state, found):
            yield f"O16 at event {state.position}: {fault}"
        if isinstance(event, JobPlaced):
            spec = state.jobs[event.job].spec
            for task in event.tasks:
                if not may_use(state, spec.tenant, task.node):
                    yield f"O24 job {event.job} was placed on {task.node}, which tenant {spec.tenant} may not use"
            for fault in limit_faults(state, found, spec, NodeCapacity(state, open_jobs).free):
                yield f"O15 at event {state.position}, when job {event.job} was placed: {fault}"

    def planned(self, state: ClusterState, plan: Plan) -> Iterator[str]:
        """O17."""
        if plan.actions:
            yield from (f"O17 after event {state.position}: {fault}" for fault in pass_faults(state, plan))

    def kept(self, state: ClusterState) -> Iterator[str]:
        """O18."""
        for name in self.tenants:
            if name not in state.tenants and name not in self.unwanted:
                yield f"O18 tenant {name} was acknowledged and is lost"
        for token, digest in self.tokens.items():
            if state.token_of_digest.get(digest) != token or token not in state.tokens:
                yield f"O18 token {token} was acknowledged and is lost"
        for token, digest in self.revoked.items():
            if token in state.tokens or digest in state.token_of_digest:
                yield f"O18 token {token} was revoked and is there"
