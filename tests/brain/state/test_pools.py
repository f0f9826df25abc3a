"""The shares of the class pools: who sets them, and what outlives a restart."""

import pytest

from stoker.brain.domain.demand import JobClass
from stoker.brain.domain.errors import Refusal
from stoker.brain.domain.ids import CONTROL, Epoch, NodeName
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.quota import WHOLE, Pools, share_text
from stoker.brain.state.codec import load_snapshot, snapshot_chunks
from stoker.brain.state.commands import BeginEpoch, DrainNode, SetPools
from stoker.brain.state.events.tenant import PoolsSet
from tests.brain.state.story import ANNA, Story, spec

HALVES = Pools(online=WHOLE // 2, batch=WHOLE // 2)
STRICT_POOLS = Pools(strict=True)


def set_pools(story: Story, pools: Pools, *, force: bool = False) -> str:
    """ "" when it was taken, else the code of the refusal."""
    answer = story.ask(SetPools(by=ANNA, pools=pools, force=force))
    return answer.code if isinstance(answer, Refusal) else ""


def begin(story: Story, pools: Pools) -> None:
    """A control plane starts with these shares in its settings file."""
    story.do(BeginEpoch(by=CONTROL, epoch=Epoch(story.state.epoch + 1), policy=Policy(), pools=pools))


# -- T6 ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("online", "batch"), [(-1, 0), (0, -1), (WHOLE + 1, 0), (0, WHOLE + 1), (WHOLE, 1), (700_000, 300_001)]
)
def test_t6_shares_below_zero_or_above_one_alone_or_together_are_refused(online: int, batch: int) -> None:
    story = Story()
    for force in (False, True):
        assert set_pools(story, Pools(online=online, batch=batch), force=force) == "bad_share"
    assert story.state.pools == Pools()


@pytest.mark.parametrize(("online", "batch"), [(0, 0), (WHOLE, 0), (0, WHOLE), (1, 1), (500_000, 0)])
def test_t6_shares_up_to_one_are_taken(online: int, batch: int) -> None:
    story = Story()
    assert set_pools(story, Pools(online=online, batch=batch)) == ""
    assert (story.state.pools.online, story.state.pools.batch) == (online, batch)


def test_t6_the_refusal_says_the_number_as_people_write_it() -> None:
    refusal = Story().refused(SetPools(by=ANNA, pools=Pools(online=1_200_000, batch=0)))
    assert refusal.facts == {"field": "online_percent", "value": "1.2"}


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0, "0"),
        (1, "0.000001"),
        (700_000, "0.7"),
        (WHOLE, "1"),
        (1_050_000, "1.05"),
        (-250_000, "-0.25"),
        (2 * WHOLE, "2"),
    ],
)
def test_a_share_is_written_as_people_write_it(share: int, text: str) -> None:
    assert share_text(share) == text


def test_to_set_the_shares_as_they_are_changes_nothing() -> None:
    assert Story().do(SetPools(by=ANNA, pools=Pools())) == ()


# -- T7 ----------------------------------------------------------------------------------------------------------


def _with_online_work(gpus: int) -> Story:
    story = Story()
    story.node("n1", 8)
    for at in range(gpus):
        story.run(story.submit(spec(1, job_class=JobClass.ONLINE)), ("n1", at))
    return story


def test_t7_a_share_below_what_is_in_use_is_taken_where_guarantees_are_no_walls() -> None:
    assert set_pools(_with_online_work(8), Pools(online=0, batch=WHOLE)) == ""


def test_t7_where_they_are_walls_it_is_refused_with_both_numbers_unless_it_is_forced() -> None:
    story = _with_online_work(5)
    walls = Pools(online=WHOLE // 2, batch=WHOLE // 2, strict=True)
    refusal = story.refused(SetPools(by=ANNA, pools=walls))
    assert (refusal.code, refusal.facts) == ("share_below_use", {"used": 5, "guaranteed": 4})
    assert story.do(SetPools(by=ANNA, pools=walls, force=True)) == (PoolsSet(pools=walls),)
    assert len(story.state.indexes.held) == 1, "what runs goes on"


def test_t7_a_share_that_covers_what_is_in_use_needs_no_force() -> None:
    assert set_pools(_with_online_work(4), Pools(online=WHOLE // 2, batch=WHOLE // 2, strict=True)) == ""


def test_q4_gpus_of_a_node_out_of_service_count_while_they_are_held_and_only_then() -> None:
    """Held or free: what neither runs work nor takes any promises nothing."""
    story = Story()
    story.node("n1", 8)
    story.node("n2", 8)
    story.run(story.submit(spec(2)), ("n2", 0))
    usage_ledger = story.state.indexes.usage_ledger
    assert usage_ledger.held_milli + story.state.indexes.free_milli == 16_000
    story.forget("n1")
    assert usage_ledger.held_milli + story.state.indexes.free_milli == 8_000
    story.do(DrainNode(by=ANNA, node=NodeName("n2"), reason="fan"))
    assert usage_ledger.held_milli + story.state.indexes.free_milli == 2_000


# -- the settings file and a person ------------------------------------------------------------------------------


def test_a_fresh_cluster_has_the_shares_of_its_settings_file_without_any_call() -> None:
    assert Story().state.pools == Pools(online=700_000, batch=300_000)
    story = Story()
    begin(story, HALVES)
    assert story.state.pools == HALVES


def test_a_persons_change_outlives_restarts_with_the_same_file() -> None:
    story = Story()
    begin(story, HALVES)
    set_pools(story, STRICT_POOLS)
    for _ in range(3):
        begin(story, HALVES)
        assert story.state.pools == STRICT_POOLS


def test_a_new_word_in_the_file_wins_over_what_a_person_said_before() -> None:
    story = Story()
    set_pools(story, STRICT_POOLS)
    begin(story, HALVES)
    assert story.state.pools == HALVES
    begin(story, Pools())
    assert story.state.pools == Pools()


def test_what_the_file_said_survives_a_snapshot() -> None:
    story = Story()
    begin(story, HALVES)
    set_pools(story, STRICT_POOLS)
    story.state = load_snapshot(list(snapshot_chunks(story.state)))
    begin(story, HALVES)
    assert story.state.pools == STRICT_POOLS
