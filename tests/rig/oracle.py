"""What really happened, held against what the ledger says.

Safety is checked whenever an event is applied and whenever a process starts; liveness once the faults have ended.
"""

from dataclasses import dataclass, field

from stoker.brain.domain.ids import GpuUuid, JobId
from stoker.brain.domain.job import EndCause
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.invariants import violations
from tests.rig.sim_runner import Machine


@dataclass(slots=True)
class Oracle:
    machines: list[Machine]
    forgotten: set[str] = field(default_factory=set)
    """Nodes that a person declared gone by force: what runs there is outside what we can promise."""
    acknowledged: dict[JobId, None] = field(default_factory=dict)
    events: int = 0

    def check(self, state: ClusterState) -> None:
        """After every event: the brain's invariants, and no final job with a living process."""
        self.events += 1
        broken = violations(state)
        assert not broken, broken
        for machine in self.machines:
            for process in machine.live():
                job = state.jobs.get(process.key.job)
                if job is None or machine.name in self.forgotten:
                    continue
                assert not job.is_final, f"{job.story()} is final, but {process.key} runs on {machine.name}"

    def check_world(self) -> None:
        """No key was ever started twice; no GPU serves two live processes."""
        for machine in self.machines:
            twice = [key for key, times in machine.started.items() if times > 1]
            assert not twice, f"started twice on {machine.name}: {twice}"
            users: dict[GpuUuid, object] = {}
            for process in machine.live():
                for gpu in process.gpus:
                    assert gpu not in users, f"GPU {gpu} serves {users[gpu]} and {process.key}"
                    users[gpu] = process.key

    def check_single_attempt(self) -> None:
        """No job has live processes of two attempts at once, unless a person forced it."""
        attempts: dict[JobId, int] = {}
        for machine in self.machines:
            if machine.name in self.forgotten:
                continue
            for process in machine.live():
                job, attempt = process.key.job, process.key.attempt
                assert attempts.setdefault(job, attempt) == attempt, f"job {job} runs as {attempts[job]} and {attempt}"

    def check_end(self, state: ClusterState) -> None:
        """Liveness and honesty, after faults ended: every acknowledged job is known and final, its story is true."""
        for job_id in self.acknowledged:
            job = state.jobs.get(job_id)
            assert job is not None, f"job {job_id} was acknowledged and is lost"
            assert job.is_final, f"never ended: {job.story()}"
            if job.state is JobState.SUCCEEDED:
                for task in job.attempts[-1].tasks:
                    assert task.end is not None
                    assert (task.end.cause, task.end.exit_code) == (EndCause.EXITED, 0), job.story()
        for machine in self.machines:
            assert not machine.live(), f"{machine.name} still runs {[p.key for p in machine.live()]}"
        for name, free in state.indexes.free.items():
            assert len(free.gpus) == len(state.nodes[name].inventory.gpus), (
                f"{name} leaks GPUs: {state.nodes[name].strays}"
            )
