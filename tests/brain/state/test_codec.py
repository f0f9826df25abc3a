"""History as bytes: canonical, versioned, and the same state whoever reads it."""

import pytest

from stoker.brain.domain.ids import Position
from stoker.brain.state.apply.dispatch import apply
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.codec import decode_fact, encode_fact, load_snapshot, snapshot_chunks
from stoker.brain.state.invariants import violations
from tests.brain.state.story import Story, spec


def busy() -> Story:
    story = Story()
    story.node("n1", 8)
    first, second, third = (story.submit(spec(2, env={"B": "1", "A": "2"}, retries_max=1)) for _ in range(3))
    story.run(first, ("n1", 0))
    story.run(second, ("n1", 2))
    story.end(second, exit_code=1)
    story.cancel(third)
    return story


def snapshot(state: ClusterState) -> list[bytes]:
    return list(snapshot_chunks(state))


def test_replaying_the_log_gives_the_same_bytes() -> None:
    story = busy()
    replayed = ClusterState()
    for record in story.log:
        apply(replayed, decode_fact(record), Position(replayed.position + 1))
    assert snapshot(replayed) == snapshot(story.state)


def test_a_snapshot_reads_back_as_the_same_state() -> None:
    story = busy()
    loaded = load_snapshot(snapshot(story.state))
    assert snapshot(loaded) == snapshot(story.state)
    assert violations(loaded) == []
    assert loaded.next_job_id == 4


def test_a_snapshot_is_of_the_moment_it_was_begun_though_events_go_on() -> None:
    story = busy()
    before = snapshot(story.state)
    chunks = snapshot_chunks(story.state)
    first = next(chunks)
    story.submit()
    assert [first, *chunks] == before


def test_a_snapshot_that_is_not_whole_is_refused() -> None:
    chunks = snapshot(busy().state)
    for broken in ([], chunks[:1], chunks[:-1], [b"{}", *chunks[1:]], [chunks[0], b"[]", chunks[2]]):
        with pytest.raises(ValueError, match="snapshot"):
            load_snapshot(broken)


def test_a_record_of_another_format_is_refused_not_guessed() -> None:
    """Fault 125: unreadable records dropped in silence after an upgrade."""
    record = busy().log[0]
    with pytest.raises(ValueError, match="format 2"):
        decode_fact(record.replace(b'"v":1', b'"v":2'))
    for damaged in (b"", b"{", record[:-1], record.replace(b"cluster_created", b"cluster_dreamt")):
        with pytest.raises(ValueError, match="not a fact"):
            decode_fact(damaged)


def test_equal_facts_have_equal_bytes_whatever_the_order_of_their_maps() -> None:
    one, two = Story(), Story()
    one.submit(spec(env={"A": "1", "B": "2"}))
    two.submit(spec(env={"B": "2", "A": "1"}))
    assert one.log[-1] == two.log[-1]
    assert encode_fact(decode_fact(one.log[-1])) == one.log[-1]
