"""As whom may a job run, and on which nodes?"""

import pytest
from msgspec.structs import replace

from stoker.brain.domain.ids import NodeName
from stoker.brain.domain.where import selects
from stoker.brain.state.commands import Submit
from tests.brain.state.story import ANNA, Story, inventory, spec


def node(story: Story, name: str, account: str, *, allow_root: bool = False) -> None:
    story.register(name, replace(inventory(name, 4), account=account, allow_root=allow_root))


def admitted(story: Story, user: str) -> list[str]:
    """The nodes on which a job of this user may run."""
    job = story.job(story.submit(spec(1, user=user)))
    return [name for name, each in story.state.nodes.items() if selects(job.spec.where, each)]


def test_a_job_without_a_user_is_refused_where_every_agent_is_root() -> None:
    story = Story()
    node(story, "n1", "root")
    refusal = story.refused(Submit(by=ANNA, specs=(spec(1),)))
    assert refusal.code == "user_required"
    assert "token create" in refusal.hint
    assert admitted(story, "anna") == ["n1"]


def test_root_is_refused_unless_a_node_allows_it() -> None:
    story = Story()
    node(story, "n1", "root")
    assert story.refused(Submit(by=ANNA, specs=(spec(1, user="root"),))).code == "root_refused"
    node(story, "n2", "root", allow_root=True)
    assert admitted(story, "root") == ["n2"]


@pytest.mark.parametrize("other", ["stoker", ""])
def test_a_job_without_a_user_keeps_off_the_nodes_that_would_not_start_it(other: str) -> None:
    story = Story()
    node(story, "n1", "root")
    node(story, "n2", other)
    assert admitted(story, "") == ["n2"]
    assert admitted(story, "anna") == ["n1", "n2"], "an agent that isn't root runs all as itself"


def test_selections_stay_bare_where_no_node_is_so_strict() -> None:
    story = Story()
    node(story, "n1", "root", allow_root=True)
    job = story.job(story.submit(spec(1)))
    assert not job.spec.where.terms


def test_a_node_that_turns_strict_admits_no_more_of_them() -> None:
    story = Story()
    node(story, "n1", "root")
    node(story, "n2", "root", allow_root=True)
    job = story.job(story.submit(spec(1)))
    node(story, "n2", "root")
    assert not any(selects(job.spec.where, each) for each in story.state.nodes.values())
    assert not story.state.indexes.node_classes.admitted(job.spec.where).classes
    assert NodeName("n2") in story.state.nodes
