"""A cluster of one node, n1, and how its labels and taints are told in a line."""

from msgspec.structs import replace

from stoker.brain.domain.ids import NodeName
from stoker.brain.domain.label import labels_of, parse_taint, taint_text, taints_of
from stoker.brain.domain.policy import Policy
from stoker.brain.state.commands import LabelNode, TaintNode
from tests.brain.state.story import ANNA, Story, inventory

N1 = NodeName("n1")


def label(story: Story, *remove: str, **labels: str) -> dict[str, str]:
    """The labels of n1 but for its name, once these are set and taken off."""
    story.do(LabelNode(by=ANNA, node=N1, labels=labels, remove=remove))
    return shown(story)


def shown(story: Story) -> dict[str, str]:
    found = labels_of(story.state.nodes[N1])
    return {key: value for key, value in found.items() if not key.startswith("stoker.io/")}


def taint(story: Story, *texts: str, remove: tuple[str, ...] = ()) -> list[str]:
    story.do(TaintNode(by=ANNA, node=N1, taints=tuple(map(parse_taint, texts)), remove=remove))
    return list(map(taint_text, taints_of(story.state.nodes[N1])))


def story_with_n1(policy: Policy | None = None, **carried: object) -> Story:
    """`carried`: labels and taints of its agent."""
    story = Story(policy)
    story.register("n1", replace(inventory("n1"), **carried))
    story.compare("n1")
    return story
