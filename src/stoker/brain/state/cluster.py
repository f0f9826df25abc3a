"""The state of a cluster: every record, and the indexes derived from them.

ClusterState is the one aggregate. Only `apply` changes it, by replacing frozen records; everyone else reads. Since
records are never changed in place, a reader may keep one as long as it likes.
"""

from stoker.brain.domain.access import Role, Token, TokenId
from stoker.brain.domain.allocation import Claim
from stoker.brain.domain.array import JobRef, index_of
from stoker.brain.domain.demand import Demand, Shape
from stoker.brain.domain.errors import Refusal
from stoker.brain.domain.ids import Epoch, JobId, NodeName, PartitionName, Position, Principal, TenantName
from stoker.brain.domain.job import Job, SubmitKey, key_name, member_of
from stoker.brain.domain.lifecycle import JobState, NodeState
from stoker.brain.domain.node import Node
from stoker.brain.domain.partition import Partition
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.preemption import may_claim
from stoker.brain.domain.quota import Pools
from stoker.brain.domain.reason import Reason
from stoker.brain.domain.secret import Secret, SecretId
from stoker.brain.domain.tenant import THE_DEFAULT, InheritedLimits, Tenant, inherited_limits
from stoker.brain.domain.units import NEVER, Instant
from stoker.brain.state.decayed_usage import DecayedUsage
from stoker.brain.state.indexes import Indexes, rebuild
from stoker.brain.state.quota_limits import QuotaLimits
from stoker.brain.state.view import FutureRelease


class ClusterState:
    """All that the log adds up to, at `position`."""

    def __init__(self) -> None:
        self.cluster_id = ""
        self.epoch = Epoch(0)
        self.position = Position(0)
        self.last_at: Instant = NEVER
        """Time of the newest event; the next one is never earlier."""
        self.clock_moved_ms = 0
        """The sum of all `ClockMoved`: what time limits don't count."""
        self.next_job_id = JobId(1)
        self.jobs: dict[JobId, Job] = {}
        self.nodes: dict[NodeName, Node] = {}
        self.partitions: dict[PartitionName, Partition] = {}
        self.claims: dict[JobId, Claim] = {}
        """What is kept for jobs for which others were told to give way, oldest first."""
        self.submit_keys: dict[str, SubmitKey] = {}
        """Idempotency keys of submits, oldest first, by principal and key."""
        self.tenants: dict[TenantName, Tenant] = {THE_DEFAULT.name: THE_DEFAULT}
        self._standings: dict[TenantName, InheritedLimits] = {}
        """As far as anybody asked since a tenant last changed."""
        self.releases: dict[NodeName, tuple[tuple[object, ...], list[FutureRelease]]] = {}
        """What ends of jobs will free on nodes, of those that a view was asked about: the records that it was made
        from, and the answer. One that is out of date is seen to be, so nothing keeps it up."""
        self.demand_faults: dict[tuple[TenantName, Demand], Refusal | None] = {}
        """Which demands a tenant's limits let in, remembered by `admit` until a tenant changes."""
        self.pools = Pools()
        self.pools_configured: Pools | None = None
        """What the settings file said when it was last heeded."""
        self.tokens: dict[TokenId, Token] = {}
        self.token_of_digest: dict[str, TokenId] = {}
        self.secrets: dict[SecretId, Secret] = {}
        self.indexes = Indexes(self.nodes, self.jobs, self.tenants)
        policy = Policy()
        self.decayed_usage = DecayedUsage(policy.fair_share_half_life_ms)
        self.indexes.usage_ledger.decayed = self.decayed_usage
        self.put_policy(policy)

    def put_job(self, job: Job) -> None:
        old = self.jobs.get(job.id)
        self.jobs[job.id] = job
        self.indexes.job_changed(old, job)
        if job.id in self.claims and not may_claim(old, job):
            del self.claims[job.id]

    def drop_job(self, job: JobId) -> None:
        self.indexes.job_changed(self.jobs.pop(job), None)

    def put_node(self, node: Node) -> None:
        old = self.nodes.get(node.name)
        self.nodes[node.name] = node
        self.indexes.node_changed(old, node)

    def drop_node(self, name: NodeName) -> None:
        """A forgotten one: it holds nothing and owns no GPU."""
        assert self.nodes.pop(name).forgotten, f"node {name} is dropped without having been forgotten"
        self.releases.pop(name, None)
        self.indexes.node_dropped(name)

    def put_policy(self, policy: Policy) -> None:
        self.policy = policy
        self.decayed_usage.set_half_life(policy.fair_share_half_life_ms)
        self.indexes.ended_max, self.indexes.ended_bytes_max = policy.ended_jobs_max, policy.ended_bytes_max
        self.indexes.warn_before(policy.time_limit_warning_ms)

    def put_tenant(self, tenant: Tenant) -> None:
        self.tenants[tenant.name] = tenant
        self._standings.clear()
        self.demand_faults.clear()
        self.indexes.usage_ledger.tenant_changed(tenant.name, tenant)

    def drop_tenant(self, name: TenantName) -> None:
        del self.tenants[name]
        self._standings.clear()
        self.demand_faults.clear()
        self.indexes.usage_ledger.tenant_changed(name, None)
        self.decayed_usage.forget(name)

    def standing(self, name: TenantName) -> InheritedLimits:
        """Return the limits and guarantees that hold for every job of this tenant."""
        standing = self._standings.get(name)
        if standing is None:
            standing = inherited_limits(self.tenants, name)
            if standing.path:  # of names that nobody made there is no end
                self._standings[name] = standing
        return standing

    def wall(self, shape: Shape) -> Reason | None:
        """Return the quota limit that one more job of this shape would break now; None = none."""
        usage_ledger = self.indexes.usage_ledger
        if not (usage_ledger.limited or usage_ledger.unlending or self.pools.strict):
            return None
        return QuotaLimits(self.tenants, self.pools, self.indexes.milli_in_service).before(shape, usage_ledger)

    def put_token(self, token: Token) -> None:
        self.tokens[token.id] = token
        self.token_of_digest[token.digest] = token.id

    def drop_token(self, token: TokenId) -> None:
        del self.token_of_digest[self.tokens.pop(token).digest]

    def key_of(self, node: NodeName) -> Token | None:
        """The record of the key by which a node is known; None = it hasn't joined. It costs a step for each token."""
        return next((each for each in self.tokens.values() if each.role is Role.AGENT and each.node == node), None)

    def rebuilt_indexes(self) -> Indexes:
        policy = self.policy
        made = rebuild(
            self.jobs,
            self.nodes,
            self.tenants,
            ended_max=policy.ended_jobs_max,
            ended_bytes_max=policy.ended_bytes_max,
        )
        made.warn_before(policy.time_limit_warning_ms)
        return made

    def find(self, ref: JobRef) -> Job | None:
        """The job, or the one member, that `ref` names. Members that are no records are shown as the array has them.
        None = it never was, or its record is gone."""
        ref = self.locate(ref.job) if ref.members is None else ref
        job = self.jobs.get(ref.job)
        if ref.members is None or job is None:
            return job
        return member_of(job, ref.members[0][0], self.jobs)

    def submitted_under(self, by: Principal, key: str) -> SubmitKey | None:
        """Return the jobs that were submitted under an idempotency key of this principal; None = none were."""
        return self.submit_keys.get(key_name(by, key))

    def locate(self, job: JobId) -> JobRef:
        """Return the reference by which a job's record is found; a member without a record leads to its array."""
        if job not in self.jobs and job < self.next_job_id:
            array = self.jobs.get(self.indexes.arrays.below(job) or job)
            spec = array.spec.array if array else None
            if array is not None and spec is not None and job <= array.id + spec.count:
                index = index_of(array.id, spec, job)
                return JobRef(array.id, ((index, index, 1),))
        return JobRef(job)

    def shown_state(self, job: Job) -> JobState:
        """The public word, which of an array depends on its members."""
        return job.state if job.members is None else self.indexes.arrays.shown(job)

    def node_state(self, name: NodeName) -> NodeState:
        """The public word for a node; what is worst about it comes first."""
        node = self.nodes[name]
        if node.forgotten:
            return NodeState.FORGOTTEN
        if not node.reachable and not (node.inventory.fault and node.inventory.opens_no_stream):
            return NodeState.UNREACHABLE
        if node.inventory.fault:
            return NodeState.FAULTY
        if node.drain is None:
            return NodeState.READY if node.pause is None else NodeState.PAUSED
        return NodeState.DRAINING if name in self.indexes.held else NodeState.DRAINED
