"""The engine on the product's own view: same plans as on a view derived slowly, and every action is accepted."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from stoker.brain.domain.array import parse_array
from stoker.brain.domain.demand import Demand
from stoker.brain.domain.errors import Refusal
from stoker.brain.domain.ids import NodeName, PartitionName, TenantName
from stoker.brain.domain.job import JobSpec
from stoker.brain.domain.label import parse_taint
from stoker.brain.domain.lifecycle import LIVE
from stoker.brain.domain.partition import Partition
from stoker.brain.domain.plan import Plan
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.tenant import path_of
from stoker.brain.domain.units import HOUR_MS, Instant
from stoker.brain.domain.where import ANYWHERE, make_where
from stoker.brain.engine.decide import decide
from stoker.brain.state.commands import LabelNode, PutPartition, PutTenant, Submit, TaintNode
from stoker.brain.state.state_view import StateView
from tests.brain.state.story import ANNA, Story, settle_all
from tests.builders import Cluster, tenant

_NODES = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 6)), min_size=1, max_size=4)
_CHANGES = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(["zone=x", "zone=y", "zone-", "old:NoSchedule", "old-"])), max_size=4
)
"""What people say of which node."""
_SPECS = st.lists(
    st.builds(
        JobSpec,
        name=st.just("j"),
        command=st.just("true"),
        time_limit_ms=st.just(0),
        demand=st.builds(
            Demand,
            gpu_count=st.integers(0, 4),
            tasks=st.sampled_from([1, 1, 2, 3]),
            tasks_per_node=st.sampled_from([0, 0, 1, 2]),
            cpus=st.integers(1, 3),
            gpu_model=st.sampled_from(["", "h100"]),
        ),
        priority=st.sampled_from([500, 500, 510]),
        where=st.sampled_from([ANYWHERE, ANYWHERE, make_where("zone=x"), make_where("zone!=x", ["n0"], ["old"])]),
        partition=st.sampled_from(["", "", "p"]).map(PartitionName),
        tenant=st.sampled_from(["default", "default", "lab", "team"]).map(TenantName),
        begin=st.sampled_from([0, 0, 3, 4]).map(lambda hours: Instant(hours * HOUR_MS)),
        array=st.sampled_from([None, None, "0-4", "0-4%2", "1,3,7-9%1"]).map(lambda text: text and parse_array(text)),
    ),
    min_size=1,
    max_size=6,
)
_LISTS: Final[Sequence[tuple[str, ...]]] = (("n0", "n2"), (), ("?1", "*3"))
"""What a tenant may use at one time or another."""
_REFUSED = ("demand_unsatisfiable", "gpu_wish_without_gpus", "unknown_node")


@given(_NODES, st.lists(st.tuples(_CHANGES, _SPECS), min_size=1, max_size=3))
def test_a_plan_on_live_state_is_accepted_whole_and_equals_the_plan_on_a_slow_view(
    nodes: list[tuple[int, int]], turns: list[tuple[list[tuple[int, str]], list[JobSpec]]]
) -> None:
    story = Story(Policy(ended_jobs_max=1))
    for number, (gpus, cpus) in enumerate(nodes):
        story.node(f"n{number}", gpus, cpus=cpus)
    partition = Partition(name=PartitionName("p"), where=make_where("zone=x"))
    story.do(PutPartition(by=ANNA, partition=partition, create=True))
    for name, parent, lists in (("lab", "", _LISTS), ("team", "lab", _LISTS[::-1])):
        story.do(PutTenant(by=ANNA, tenant=tenant(name, parent=parent, nodes=lists[0]), create=True))
    for turn, (changes, specs) in enumerate(turns):
        _change(story, changes)
        story.ask(PutTenant(by=ANNA, tenant=tenant("lab", nodes=_LISTS[turn % 3]), create=False))
        for spec in specs:
            answer = story.ask(Submit(by=ANNA, specs=(spec,)))
            assert not isinstance(answer, Refusal) or answer.code in _REFUSED
        for _ in range(2):
            plan = decide(StateView(story.state), Policy(), story.now, 0, 1_024)
            _check_nodes(story, plan)
            assert plan == _slowly(story)
            settle_all(story, plan)
            assert all(story.job(place.job).state in LIVE for place in plan.actions)
            _check_limits(story)
            _end_some(story)
            story.wait(HOUR_MS)


def _slowly(story: Story) -> Plan:
    state = story.state
    parts = state.nodes.values(), state.jobs.values(), state.partitions.values(), state.tenants.values()
    slow = Cluster(*parts)
    slow.tenant_use = StateView(state).tenant_use
    return slow.plan(now=story.now)


def _check_nodes(story: Story, plan: Plan) -> None:
    """No job of a tenant is placed outside its list, nor outside that of one above it."""
    for place in plan.actions:
        for above in path_of(story.state.tenants, story.job(place.array or place.job).spec.tenant):
            for task in place.tasks:
                assert not above.nodes or any(fnmatchcase(task.node, each) for each in above.nodes)


def _change(story: Story, changes: list[tuple[int, str]]) -> None:
    for number, word in changes:
        name = NodeName(f"n{number}")
        if name not in story.state.nodes:
            continue
        if word.startswith("zone="):
            story.do(LabelNode(by=ANNA, node=name, labels={"zone": word[5:]}))
        elif word == "zone-":
            story.ask(LabelNode(by=ANNA, node=name, labels={}, remove=("zone",)))
        elif word == "old-":
            story.ask(TaintNode(by=ANNA, node=name, taints=(), remove=("old",)))
        else:
            story.do(TaintNode(by=ANNA, node=name, taints=(parse_taint(word),)))


def _check_limits(story: Story) -> None:
    for array in story.state.jobs.values():
        most = array.spec.array.running_max if array.spec.array and array.members is not None else 0
        live = sum(each.array_of == array.id and each.state in LIVE for each in story.state.jobs.values())
        assert not most or live <= most


def _end_some(story: Story) -> None:
    """Every third that is live, by id."""
    live = [job.id for job in story.state.jobs.values() if job.state in LIVE]
    for job in live[::3]:
        story.started(job)
        for rank in range(len(story.job(job).attempts[-1].tasks)):
            story.end(job, rank)
    story.all_due()
