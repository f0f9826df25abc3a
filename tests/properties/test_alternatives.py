"""What `why` says would start a job now: whatever it is, told to `stoker update` it does so in the next pass."""

from collections.abc import Iterator
from random import Random
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from stoker.brain.alternatives import alternatives
from stoker.brain.cycle import propose, settle
from stoker.brain.domain.alternative import Alternative, AlternativeKind
from stoker.brain.domain.array import JobRef
from stoker.brain.domain.demand import Demand
from stoker.brain.domain.errors import Refusal
from stoker.brain.domain.gpu import Gpu
from stoker.brain.domain.ids import CONTROL, GpuUuid, JobId, Position, TenantName
from stoker.brain.domain.job import JobSpec, WarnSignal
from stoker.brain.domain.lifecycle import LIVE, JobState
from stoker.brain.domain.node import Inventory
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.units import HOUR_MS, MINUTE_MS
from stoker.brain.state.admit.dispatch import admit
from stoker.brain.state.apply.dispatch import apply
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.codec import Fact, load_snapshot, snapshot_chunks
from stoker.brain.state.commands import PutTenant, Submit, UpdateJob
from stoker.brain.state.events.union import Event
from stoker.brain.state.state_view import StateView
from stoker.brain.state.wait_reason import wait_reason
from tests.brain.state.story import ANNA, Story, spec
from tests.builders import tenant

KEPT: Final = {
    AlternativeKind.SHORTER: 37,
    AlternativeKind.SPREAD: 50,
    AlternativeKind.FEWER_CPUS: 10,
    AlternativeKind.LESS_MEMORY: 7,
    AlternativeKind.MORE_TASKS: 54,
    AlternativeKind.OTHER_MODEL: 11,
    AlternativeKind.FEWER_GPUS: 0,
}
"""By kind a seed whose cluster has such an alternative."""


@pytest.mark.parametrize("kind", AlternativeKind)
def test_each_kind_is_found_in_some_cluster_and_starts(kind: AlternativeKind) -> None:
    assert kind in {told.kind for told in told_and_started(any_story(Random(KEPT[kind])))}


@settings(max_examples=40)
@given(st.integers(0, 1 << 32))
def test_whatever_is_told_starts_the_job_in_the_next_pass(seed: int) -> None:
    list(told_and_started(any_story(Random(seed))))


def told_and_started(story: Story) -> Iterator[Alternative]:
    """Every alternative of every job that waits. Raises where one doesn't start its job."""
    plan = propose(StateView(story.state), story.state.policy, story.now, 1, 1_000)
    for job in [job for job in story.state.jobs.values() if job.spec.shape in plan.reasons]:
        reason = wait_reason(story.state, job, plan.reasons.__getitem__)
        for told in alternatives(story.state, job, reason, plan.reservations, story.now):
            if told is not None:
                assert starts_so(story, job.id, told), f"job {job.id} wouldn't start {told}"
                yield told


def starts_so(story: Story, job: JobId, told: Alternative) -> bool:
    """Whether the next pass over the same state starts the job once it was updated so."""
    state = load_snapshot(list(snapshot_chunks(story.state)))
    answer = admit(state, UpdateJob(by=ANNA, target=JobRef(job), changes=told.changes), story.now, lambda: "uid")
    assert not isinstance(answer, Refusal), f"{told} is refused: {answer}"
    carry_out(state, story, *answer)
    plan = propose(StateView(state), state.policy, story.now, 1, 1_000)
    for events in settle(state, plan, decided_at=state.position, seed=1):
        carry_out(state, story, *events)
    return state.jobs[job].state in LIVE


def carry_out(state: ClusterState, story: Story, *events: Event) -> None:
    for event in events:
        apply(state, Fact(at=story.now, by=CONTROL, event=event), Position(state.position + 1))


def any_story(dice: Random) -> Story:
    """Nodes on which jobs run, and others that wait, after passes that can do no more."""
    story = Story(Policy(reserve_after_ms=0, reservations_max=dice.choice((0, 1, 8))))
    for name in "abcd"[: dice.randint(1, 4)]:
        story.register(name, any_inventory(name, dice))
        story.compare(name)
    for name in ("lab", "vision"):
        limits: dict[str, int] = dice.choice(({}, {}, {"gpus": 6}))
        of = tenant(name, guaranteed=dice.choice((0, 0, 4)), **limits)
        story.do(PutTenant(by=ANNA, tenant=of, create=True))
    for turn in range(3):
        for _ in range(dice.randint(1, 5)):
            story.ask(Submit(by=ANNA, specs=(any_spec(dice),)))
        for _ in range(2 + turn):
            story.decide()
        for job in [job for job in story.state.jobs.values() if job.state is JobState.STARTING]:
            story.started(job.id)
        story.wait(MINUTE_MS)
    while story.decide():
        pass
    return story


def any_inventory(name: str, dice: Random) -> Inventory:
    models = dice.choice((("H100",), ("A100",), ("H100", "A100")))
    gpus = tuple(
        Gpu(uuid=GpuUuid(f"{name}-{i}"), index=i, model=models[i % len(models)], memory_mb=81_920)
        for i in range(dice.choice((2, 4, 8)))
    )
    cpus, memory_mb = dice.choice((8, 16)), dice.choice((64, 1_024))
    return Inventory(boot_id="boot-1", address=f"addr-{name}", gpus=gpus, cpus=cpus, memory_mb=memory_mb)


def any_spec(dice: Random) -> JobSpec:
    demand = Demand(
        gpu_count=dice.choice((0, 1, 2, 4, 8)),
        tasks=dice.choice((1, 1, 1, 2, 4)),
        tasks_per_node=dice.choice((0, 0, 0, 1, 2)),
        cpus=dice.choice((1, 1, 4, 7)),
        memory_mb=dice.choice((0, 0, 8, 40)),
        gpu_model=dice.choice(("", "", "h100", "a100")),
    )
    if demand.gpu_count == 1 and dice.random() < 0.4:
        demand = Demand(gpu_count=1, gpu_share=dice.choice((300, 500)), tasks=demand.tasks)
    made = spec(
        priority=dice.choice((100, 500, 500, 1_000)),
        tenant=TenantName(dice.choice(("default", "lab", "vision"))),
        time_limit_ms=dice.choice((20 * MINUTE_MS, 3 * HOUR_MS, 24 * HOUR_MS)),
        preemptible=dice.random() < 0.2,
        warn=dice.choice((None, None, WarnSignal(signal=10, lead_ms=10 * MINUTE_MS))),
    )
    return replace(made, demand=demand)
