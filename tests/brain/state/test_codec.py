"""History as bytes: canonical, versioned, and the same state whoever reads it."""

from pathlib import Path
from typing import Final

import msgspec
import pytest

from stoker.brain.domain.ids import Position
from stoker.brain.state import codec
from stoker.brain.state.apply.dispatch import apply
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.codec import FORMAT, Fact, decode_fact, encode_fact, load_snapshot, snapshot_chunks
from stoker.brain.state.invariants import violations
from tests.brain.state.story import Story, spec

OLD: Final = Path(__file__).parents[2] / "old"


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
    with pytest.raises(ValueError, match=f"format {FORMAT + 1}"):
        decode_fact(record.replace(b'"v":%d' % FORMAT, b'"v":%d' % (FORMAT + 1)))
    for damaged in (b"", b"{", record[:-1], record.replace(b"cluster_created", b"cluster_dreamt")):
        with pytest.raises(ValueError, match="not a fact"):
            decode_fact(damaged)


def test_what_an_older_format_wrote_is_read_by_a_newer_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else to add an event would be to lose every log there is."""
    story = busy()
    old = snapshot(story.state)
    monkeypatch.setattr(codec, "FORMAT", FORMAT + 1)
    assert decode_fact(story.log[0]).v == FORMAT
    assert load_snapshot(old).jobs == story.state.jobs


RENAMED: Final = {
    "OrphanTask": "Stray",
    "StopRequest": "StopOrder",
}
"""Classes whose Python name changed after the list was released; no byte tells the name of a class without a tag."""


def written_by_this_version() -> str:
    """A line for each kind of record, of part or of word in the log, with its fields, or the words that there are."""
    (_,), shapes = msgspec.json.schema_components([Fact])
    lines: list[str] = []
    for name, shape in shapes.items():
        fields = dict(shape.get("properties", {}))
        tag = fields.pop("type", {}).get("enum", [RENAMED.get(name, name)])[0]
        lines.append(f"{tag}: {', '.join(sorted(shape.get('enum', fields)))}\n")
    return "".join(sorted(lines))


def test_every_event_and_field_belongs_to_the_number_of_the_format(request: pytest.FixtureRequest) -> None:
    """A follower of an older version can't read an added event or word, and would overlook an added field: it has to be
    refused by that number before it follows."""
    kept = OLD / f"format-{FORMAT}.txt"
    if request.config.getoption("--rewrite"):
        kept.write_text(written_by_this_version())
    assert (kept.read_text() if kept.exists() else "") == written_by_this_version(), (
        f"what is written isn't what {kept.name} lists. If a release has format {FORMAT}, raise FORMAT in "
        "brain/state/codec.py; then run this test with --rewrite, which writes the list for you to review"
    )


def test_equal_facts_have_equal_bytes_whatever_the_order_of_their_maps() -> None:
    one, two = Story(), Story()
    one.submit(spec(env={"A": "1", "B": "2"}))
    two.submit(spec(env={"B": "2", "A": "1"}))
    assert one.log[-1] == two.log[-1]
    assert encode_fact(decode_fact(one.log[-1])) == one.log[-1]
