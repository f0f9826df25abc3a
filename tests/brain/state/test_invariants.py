"""What the audit must not take for a bug, and what it must."""

from typing import Any

import pytest
from msgspec.structs import replace

from stoker.brain.domain.demand import Demand
from stoker.brain.domain.ids import CONTROL, Epoch, NodeName, node_principal
from stoker.brain.domain.job import EndCause
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.report import Registration
from stoker.brain.state.commands import BeginEpoch, Register
from stoker.brain.state.invariants import violations
from tests.brain.state.story import Story, spec


def test_a_bound_that_was_lowered_breaks_no_truth_about_what_was_before() -> None:
    story = Story()
    story.node("n1", 1)
    job = story.submit()
    for _ in range(2):
        story.run(job, ("n1", 0))
        story.end(job, cause=EndCause.RUNNER_LOST)
        story.wait(60_000).all_due()
    assert story.job(job).requeues_used == 2
    story.do(BeginEpoch(by=CONTROL, epoch=Epoch(2), policy=Policy(requeues_max=1)))  # checks every truth
    story.state.put_job(replace(story.job(job), requeues_used=3))
    assert "more tries used than were made" in violations(story.state)[0]


@pytest.mark.parametrize("fewer", [{"cpus": 1, "limits": "offers 1 of 64 CPUs"}, {"cpus": 1}, {"memory_mb": 1}])
def test_a_node_that_offers_less_than_its_tasks_hold_is_no_fault_of_the_ledger(fewer: dict[str, Any]) -> None:
    """Its next runner may have few open files, or somebody has lowered `node.cpus`, while what it was given goes on."""
    story, n1 = Story(), NodeName("n1")
    story.node("n1", 2)
    for gpu in range(2):
        story.run(story.submit(replace(spec(), demand=Demand(gpu_count=1, memory_mb=1_024))), ("n1", gpu))
    story.wait(1)
    less = replace(story.state.nodes[n1].inventory, **fewer)
    story.do(Register(by=node_principal(n1), registration=Registration(node=n1, inventory=less)))
    assert min(story.state.indexes.free[n1].cpus, story.state.indexes.free[n1].memory_mb) == 0
    assert violations(story.state) == []


def test_what_asks_for_no_memory_may_still_come_to_a_node_that_has_less_of_it_than_its_jobs_hold() -> None:
    story, n1 = Story(), NodeName("n1")
    story.node("n1", 2)
    story.run(story.submit(replace(spec(), demand=Demand(gpu_count=1, cpus=1, memory_mb=300))), ("n1", 0))
    less = replace(story.state.nodes[n1].inventory, memory_mb=200)
    story.do(Register(by=node_principal(n1), registration=Registration(node=n1, inventory=less)))
    story.wait(1)
    story.run(story.submit(), ("n1", 1))
    assert violations(story.state) == []


def test_a_node_that_was_given_more_than_it_has_is_a_fault_of_the_ledger() -> None:
    story, n1 = Story(), NodeName("n1")
    story.node("n1", 2)
    less = replace(story.state.nodes[n1].inventory, cpus=60)
    story.do(Register(by=node_principal(n1), registration=Registration(node=n1, inventory=less)))
    story.wait(1)
    story.run(story.submit(), ("n1", 0))
    node = story.state.nodes[n1]
    story.state.put_node(replace(node, inventory=replace(node.inventory, cpus=0)))
    assert [fault for fault in violations(story.state) if "is overdrawn: 1 of 0 CPUs" in fault]
