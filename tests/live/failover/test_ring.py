"""What was shipped lately, for who follows closely."""

from stoker.brain.domain.ids import Epoch, Position
from stoker.live.failover.sender import Ring

E1 = Epoch(1)


def ring(end: int = 0, *, records_max: int = 10, bytes_max: int = 10_000) -> Ring:
    return Ring(Position(end), records_max=records_max, bytes_max=bytes_max)


def test_a_follower_reads_on_from_wherever_it_is() -> None:
    shipped = ring(end=7)
    shipped.add(E1, Position(7), [b"8", b"9"])
    shipped.add(Epoch(2), Position(9), [b"10"])
    assert [row.record for row in shipped.after(Position(7), 10) or ()] == [b"8", b"9", b"10"]
    assert [(row.position, row.epoch) for row in shipped.after(Position(8), 10) or ()] == [(9, 1), (10, 2)]
    assert [row.record for row in shipped.after(Position(7), 2) or ()] == [b"8", b"9"]
    assert shipped.after(Position(10), 10) == []


def test_who_is_behind_the_ring_is_sent_to_the_log() -> None:
    shipped = ring(end=7)
    assert shipped.after(Position(6), 10) is None
    for at in range(7, 27):
        shipped.add(E1, Position(at), [b"%d" % (at + 1)])
    assert (shipped.begin, shipped.end) == (17, 27)
    assert shipped.after(Position(16), 10) is None
    assert [row.position for row in shipped.after(Position(17), 100) or ()] == list(range(18, 28))


def test_bytes_are_bounded_too() -> None:
    shipped = ring(records_max=1_000, bytes_max=100)
    for at in range(20):
        shipped.add(E1, Position(at), [b"x" * 30])
    assert shipped.begin == 17


def test_the_newest_batch_stays_whole_however_large_it_is() -> None:
    """It isn't in the log yet."""
    shipped = ring(records_max=3)
    shipped.add(E1, Position(0), [b"1", b"2"])
    shipped.add(E1, Position(2), [b"x"] * 50)
    assert shipped.begin == 2
    assert len(shipped.after(Position(2), 100) or ()) == 50


def test_what_has_left_the_ring_costs_no_memory_for_long() -> None:
    shipped = ring()
    for at in range(5_000):
        shipped.add(E1, Position(at), [b"record"])
    assert len(shipped._rows) <= 2 * 1_001
    assert [row.position for row in shipped.after(Position(4_995), 10) or ()] == [4_996, 4_997, 4_998, 4_999, 5_000]
