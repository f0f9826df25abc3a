"""What is true now?

ClusterState is the one aggregate. Only `apply` changes it, by replacing frozen records; everyone else reads. Since
records are never changed in place, a reader may keep one as long as it likes.
"""

from stoker.brain.domain.ids import Epoch, JobId, NodeName, Position
from stoker.brain.domain.job import Job
from stoker.brain.domain.lifecycle import NodeState
from stoker.brain.domain.node import Node
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.units import NEVER, Instant
from stoker.brain.state.indexes import Indexes, rebuild


class ClusterState:
    """All that the log adds up to, at `position`."""

    __slots__ = ("cluster_id", "epoch", "indexes", "jobs", "last_at", "next_job_id", "nodes", "policy", "position")

    def __init__(self) -> None:
        self.cluster_id = ""
        self.epoch = Epoch(0)
        self.position = Position(0)
        self.last_at: Instant = NEVER
        """Time of the newest event; the next one is never earlier."""
        self.policy = Policy()
        self.next_job_id = JobId(1)
        self.jobs: dict[JobId, Job] = {}
        self.nodes: dict[NodeName, Node] = {}
        self.indexes = Indexes(self.nodes)

    def put_job(self, job: Job) -> None:
        old = self.jobs.get(job.id)
        self.jobs[job.id] = job
        self.indexes.job_changed(old, job)

    def drop_job(self, job: JobId) -> None:
        self.indexes.job_changed(self.jobs.pop(job), None)

    def put_node(self, node: Node) -> None:
        old = self.nodes.get(node.name)
        self.nodes[node.name] = node
        self.indexes.node_changed(old, node)

    def drop_node(self, name: NodeName) -> None:
        """A forgotten one: it holds nothing, owns no GPU and is in no index."""
        assert self.nodes.pop(name).forgotten, f"node {name} is dropped without having been forgotten"

    def put_policy(self, policy: Policy) -> None:
        self.policy = policy
        self.indexes.ended_max = policy.ended_jobs_max

    def rebuilt_indexes(self) -> Indexes:
        return rebuild(self.jobs, self.nodes, self.policy.ended_jobs_max)

    def node_state(self, name: NodeName) -> NodeState:
        """The public word for a node; what is worst about it comes first."""
        node = self.nodes[name]
        if node.forgotten:
            return NodeState.FORGOTTEN
        if not node.reachable:
            return NodeState.UNREACHABLE
        if node.drain is None:
            return NodeState.READY
        return NodeState.DRAINING if name in self.indexes.held else NodeState.DRAINED
