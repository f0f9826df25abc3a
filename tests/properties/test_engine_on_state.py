"""The engine on the product's own view: same plans as on a view derived slowly, and every action is accepted."""

from hypothesis import given
from hypothesis import strategies as st

from stoker.brain.domain.demand import Demand
from stoker.brain.domain.errors import Refusal
from stoker.brain.domain.job import JobSpec
from stoker.brain.domain.lifecycle import LIVE
from stoker.brain.domain.policy import Policy
from stoker.brain.engine.decide import decide
from stoker.brain.state.commands import Submit
from stoker.brain.state.facade import ClusterView
from tests.brain.state.story import ANNA, Story, settle_all
from tests.builders import Cluster

_NODES = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 6)), min_size=1, max_size=4)
_DEMANDS = st.lists(
    st.builds(
        Demand,
        gpu_count=st.integers(0, 4),
        tasks=st.sampled_from([1, 1, 2, 3]),
        cpus=st.integers(1, 3),
        gpu_model=st.sampled_from(["", "h100"]),
    ),
    min_size=1,
    max_size=8,
)
_REFUSED = ("demand_unsatisfiable", "gpu_wish_without_gpus")


@given(_NODES, _DEMANDS, _DEMANDS)
def test_a_plan_on_live_state_is_accepted_whole_and_equals_the_plan_on_a_slow_view(
    nodes: list[tuple[int, int]], early: list[Demand], late: list[Demand]
) -> None:
    story = Story()
    for number, (gpus, cpus) in enumerate(nodes):
        story.node(f"n{number}", gpus, cpus=cpus)
    for demands in (early, late):
        for demand in demands:
            spec = JobSpec(name="j", demand=demand, command="true", priority=500, time_limit_ms=0)
            answer = story.ask(Submit(by=ANNA, specs=(spec,)))
            assert not isinstance(answer, Refusal) or answer.code in _REFUSED
        plan = decide(ClusterView(story.state), Policy(), story.now, 0, 1_024)
        assert plan == Cluster(story.state.nodes.values(), story.state.jobs.values()).plan()
        settle_all(story, plan)
        assert all(story.job(place.job).state in LIVE for place in plan.actions)
