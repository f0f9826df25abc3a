"""A cluster told in commands: admits, applies, and checks every invariant after every event."""

from stoker.brain.domain.allocation import TaskPlacement
from stoker.brain.domain.array import JobRef, parse_array, parse_job_ref
from stoker.brain.domain.demand import Demand
from stoker.brain.domain.errors import Refusal
from stoker.brain.domain.gpu import Gpu
from stoker.brain.domain.ids import (
    CONTROL,
    DEFAULT_TENANT,
    Epoch,
    GpuUuid,
    JobId,
    NodeName,
    Position,
    Principal,
    TenantName,
    node_principal,
)
from stoker.brain.domain.instruction import TaskKey
from stoker.brain.domain.job import EndCause, Job, JobSpec, TaskEnd
from stoker.brain.domain.node import Inventory
from stoker.brain.domain.plan import Place, Plan
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.report import Registration, Started, TaskFinished, TaskInventory, TaskPhase, TaskStatus
from stoker.brain.domain.secret import SealedValue, Secret, SecretName
from stoker.brain.domain.units import Instant
from stoker.brain.state.admit.dispatch import admit
from stoker.brain.state.apply.dispatch import apply
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.codec import Fact, decode_fact, encode_fact
from stoker.brain.state.commands import (
    BeginEpoch,
    Cancel,
    Command,
    CompareInventory,
    ForgetNode,
    Hold,
    Register,
    Release,
    ReportFinished,
    ReportStarted,
    Requeue,
    RunDeadlines,
    Submit,
)
from stoker.brain.state.events.union import Event
from stoker.brain.state.invariants import violations
from stoker.brain.state.state_view import StateView

ANNA = Principal("user:anna")


def spec(gpus: int = 1, *, tasks: int = 1, cpus: int = 1, **fields: object) -> JobSpec:
    demand = Demand(gpu_count=gpus, tasks=tasks, cpus=cpus)
    settings: dict[str, object] = {"name": "j", "command": "true", "priority": 500, "time_limit_ms": 0, **fields}
    return JobSpec(demand=demand, **settings)  # type: ignore[arg-type]  # a test passes fields by name


def inventory(
    node: str, gpus: int = 8, *, boot: str = "boot-1", uid: str = "", cpus: int = 64, leases: bool = False
) -> Inventory:
    found = tuple(Gpu(uuid=GpuUuid(f"{node}-{i}"), index=i, model="H100", memory_mb=81_920) for i in range(gpus))
    return Inventory(
        boot_id=boot,
        address=f"addr-{node}",
        gpus=found,
        cpus=cpus,
        memory_mb=1 << 20,
        agent_uid=uid,
        keeps_leases=leases,
    )


class Story:
    """One cluster under one clock that only `wait` moves."""

    def __init__(self, policy: Policy | None = None) -> None:
        self.state = ClusterState()
        self.log: list[bytes] = []
        self.now = Instant(1_000_000)
        self.do(BeginEpoch(by=CONTROL, epoch=Epoch(1), policy=policy or Policy()))

    def ask(self, command: Command) -> tuple[Event, ...] | Refusal:
        """The answer, applied when it is one of events."""
        answer = admit(self.state, command, self.now, lambda: f"uid-{len(self.log)}")
        if not isinstance(answer, Refusal):
            for event in answer:
                self.apply(event, command.by)
        return answer

    def do(self, command: Command) -> tuple[Event, ...]:
        answer = self.ask(command)
        assert not isinstance(answer, Refusal), answer
        return answer

    def refused(self, command: Command) -> Refusal:
        before = self.state.position
        answer = self.ask(command)
        assert isinstance(answer, Refusal), answer
        assert self.state.position == before
        assert answer.hint
        return answer

    def apply(self, event: Event, by: Principal = CONTROL) -> None:
        record = encode_fact(Fact(at=self.now, by=by, event=event))
        self.log.append(record)
        apply(self.state, decode_fact(record), Position(self.state.position + 1))
        assert violations(self.state) == []

    def wait(self, ms: int) -> "Story":
        self.now = Instant(self.now + ms)
        return self

    def deadlines(self) -> tuple[Event, ...]:
        return self.do(RunDeadlines(by=CONTROL))

    def node(self, name: str, gpus: int = 8, **fields: object) -> NodeName:
        self.register(name, inventory(name, gpus, **fields))  # type: ignore[arg-type]  # a test passes fields by name
        self.compare(name)
        return NodeName(name)

    def register(self, name: str, found: Inventory) -> tuple[Event, ...]:
        node = NodeName(name)
        return self.do(Register(by=node_principal(node), registration=Registration(node=node, inventory=found)))

    def compare(self, name: str, *statuses: TaskStatus) -> tuple[Event, ...]:
        node = NodeName(name)
        tasks = TaskInventory(boot_id="boot-1", tasks=statuses)
        return self.do(CompareInventory(by=node_principal(node), node=node, inventory=tasks))

    def submit(self, *specs: JobSpec) -> JobId:
        first = self.state.next_job_id
        self.do(Submit(by=ANNA, specs=specs or (spec(),)))
        return first

    def submit_array(self, text: str, gpus: int = 1, **fields: object) -> JobId:
        return self.submit(spec(gpus, array=parse_array(text), **fields))

    def run_named(self, label: str) -> JobId:
        """What is called so is placed, and has started."""
        job = self.named(label).id
        self.started(job)
        return job

    def place(self, job: JobId, *where: tuple[str, int], port: int = 0) -> None:
        """Rank by rank: (node, first GPU)."""
        demand = self.job(job).spec.demand
        tasks = tuple(
            TaskPlacement(
                rank=rank,
                node=NodeName(node),
                gpus=tuple(GpuUuid(f"{node}-{first + i}") for i in range(demand.gpu_count)),
                cpus=demand.cpus,
                memory_mb=demand.memory_mb,
            )
            for rank, (node, first) in enumerate(where)
        )
        number = self.job(job).newest_attempt + 1
        master = f"addr-{where[0][0]}" if port else ""
        place = Place(job=job, attempt=number, tasks=tasks, master_addr=master, master_port=port)
        before = self.state.position
        for events in settle_all(self, Plan(actions=(place,), reasons={})):
            assert events
        assert self.state.position == before + 1, "the placement was refused"

    def decide(self, budget: int = 1_000) -> list[str]:
        """One pass, carried out; the labels of what was placed."""
        from stoker.brain.cycle import propose

        plan = propose(StateView(self.state), self.state.policy, self.now, 1, budget)
        settle_all(self, plan)
        return [self.job(action.job).label for action in plan.actions if action.job in self.state.jobs]

    def named(self, label: str) -> Job:
        """A job or member, also one that is no record."""
        found = self.state.find(parse_job_ref(label))
        assert found is not None, label
        return found

    def tell(self, order: "type[Cancel | Hold | Release | Requeue]", label: str) -> tuple[Event, ...]:
        return self.do(order(by=ANNA, target=parse_job_ref(label)))

    def all_due(self) -> None:
        """What has fallen due, and what follows from that."""
        for _ in range(100):
            if not self.deadlines():
                return
        raise AssertionError("something is due for ever")

    def started(self, job: JobId, *ranks: int) -> None:
        for rank in ranks or range(len(self.job(job).attempts[-1].tasks)):
            key, node = self.key(job, rank)
            self.do(ReportStarted(by=node_principal(node), node=node, started=Started(key=key, at=self.now, pid=7)))

    def run(self, job: JobId, *where: tuple[str, int], port: int = 0) -> None:
        self.place(job, *where, port=port)
        self.started(job)

    def end(self, job: JobId, rank: int = 0, **fields: object) -> tuple[Event, ...]:
        key, node = self.key(job, rank)
        return self.finish(node, key, **fields)

    def finish(self, node: NodeName, key: TaskKey, **fields: object) -> tuple[Event, ...]:
        settings: dict[str, object] = {"cause": EndCause.EXITED, "at": self.now, **fields}
        if settings["cause"] is EndCause.EXITED and not settings.get("signal"):
            settings.setdefault("exit_code", 0)
        end = TaskEnd(**settings)  # type: ignore[arg-type]  # a test passes fields by name
        return self.do(ReportFinished(by=node_principal(node), finished=TaskFinished(node=node, key=key, end=end)))

    def cancel(self, job: JobId) -> tuple[Event, ...]:
        return self.do(Cancel(by=ANNA, target=JobRef(job)))

    def forget(self, name: str, *, force: bool = True) -> tuple[Event, ...]:
        return self.do(ForgetNode(by=ANNA, node=NodeName(name), force=force))

    def job(self, job: JobId) -> Job:
        return self.state.jobs[job]

    def key(self, job: JobId, rank: int = 0) -> tuple[TaskKey, NodeName]:
        attempt = self.job(job).attempts[-1]
        return TaskKey(job, attempt.number, rank), attempt.tasks[rank].placement.node

    def status(self, job: JobId, rank: int = 0, phase: TaskPhase = TaskPhase.RUNNING) -> TaskStatus:
        key, _ = self.key(job, rank)
        gpus = self.job(job).attempts[-1].tasks[rank].placement.gpus
        return TaskStatus(key=key, phase=phase, gpus=gpus)

    def free_gpus(self, name: str) -> int:
        return len(self.state.indexes.free[NodeName(name)].gpus)


def settle_all(story: Story, plan: Plan) -> list[tuple[Event, ...]]:
    """Carry a plan out as a body does: apply each action's events before asking for the next."""
    from stoker.brain.cycle import settle

    done: list[tuple[Event, ...]] = []
    for events in settle(story.state, plan, decided_at=story.state.position, seed=1):
        for event in events:
            story.apply(event)
        done.append(events)
    return done


def secret(
    name: str, *, tenant: TenantName = DEFAULT_TENANT, owner: str = "user:anna", size: int = 8, text: str = "c2VhbGVk"
) -> Secret:
    """A secret as its command brings it, which nothing opens."""
    sealed = SealedValue(key="of-tests", text=text)
    return Secret(tenant=tenant, owner=Principal(owner), name=SecretName(name), sealed=sealed, size=size)
