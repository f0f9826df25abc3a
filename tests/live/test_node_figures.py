"""Rules H1 to H6 of `live/node_figures.py`."""

from stoker.brain.domain.gpu_telemetry import GpuReading
from stoker.brain.domain.ids import GpuUuid, NodeName
from stoker.brain.domain.report import Beat
from stoker.brain.domain.units import Instant, Mono
from stoker.control.control_ports import POINT_STEP_S
from stoker.live.node_figures import BEATS, HOUR_S, WATCH_S, WATCHED_MAX, FigureBook, FigureWatches
from stoker.wire.rest.gpu_figures import STALE_S, gpu_figures_view

N1 = NodeName("n1")
READING = GpuReading(uuid=GpuUuid("GPU-a"), utilization_percent=7)


def test_figures_grow_old_and_one_that_falls_silent_keeps_its_last_ones() -> None:
    book = FigureBook()
    assert book.figures(N1, Mono(1.0)) is None
    book.take(N1, Beat(sequence=1, gpus=(READING,), gpus_age_ms=500), Instant(0), Mono(10.0))
    book.take(N1, Beat(sequence=2), Instant(0), Mono(15.0))
    found = book.figures(N1, Mono(40.0))
    assert found is not None
    assert (found.readings, found.age_s) == ({READING.uuid: READING}, 30.5)
    assert gpu_figures_view(READING, found.age_s).stale
    assert not gpu_figures_view(READING, STALE_S).stale
    book.forget(N1)
    assert book.figures(N1, Mono(40.0)) is None


def test_a_clock_is_as_far_ahead_as_the_beat_says_that_took_the_shortest() -> None:
    book = FigureBook()
    assert book.clock_ahead_ms(N1) == 0
    for late_ms in (300, 20, 5_000):
        book.take(N1, Beat(sequence=1, at=Instant(100_000)), Instant(100_000 + late_ms), Mono(0.0))
    assert book.clock_ahead_ms(N1) == -20
    for _ in range(BEATS):
        book.take(N1, Beat(sequence=1, at=Instant(160_000)), Instant(100_000), Mono(0.0))
    assert book.clock_ahead_ms(N1) == 60_000


def test_of_the_last_hour_a_point_of_each_gpu_is_kept_every_ten_seconds() -> None:
    book = FigureBook()
    for second in range(0, 2 * HOUR_S, 1):
        reading = GpuReading(uuid=GpuUuid("GPU-a"), utilization_percent=second % 100, power_mw=400_000)
        book.take(N1, Beat(sequence=1, gpus=(reading,)), Instant(0), Mono(float(second)))
    points = book.last_hour(N1, Mono(2.0 * HOUR_S))[READING.uuid]
    assert len(points) == HOUR_S // POINT_STEP_S
    assert [points[-1].age_s, points[-2].age_s, points[0].age_s] == [10, 20, HOUR_S]
    assert (points[-1].utilization_percent, points[-1].power_mw, points[-1].temperature_c) == (90, 400_000, None)
    book.forget(N1)
    assert book.last_hour(N1, Mono(0.0)) == {}


def test_a_gpu_that_is_gone_loses_its_points_with_the_hour() -> None:
    book = FigureBook()
    book.take(N1, Beat(sequence=1, gpus=(READING,)), Instant(0), Mono(0.0))
    other = GpuReading(uuid=GpuUuid("GPU-b"), temperature_c=40)
    for second, left in ((HOUR_S - 10, {"GPU-a", "GPU-b"}), (HOUR_S + 10, {"GPU-b"})):
        book.take(N1, Beat(sequence=1, gpus=(other,)), Instant(0), Mono(float(second)))
        assert set(book.last_hour(N1, Mono(float(second)))) == left


def test_a_node_is_watched_for_as_long_as_it_is_read_and_its_agent_told_now_and_then_whoever_reads() -> None:
    watches = FigureWatches()
    told = [at for at in range(60) for _ in range(50) if watches.take([N1], Mono(at / 2))]
    assert told == [0, 10, 20, 30, 40, 50], "fifty viewers who ask twice a second: once in five seconds"
    assert watches.take([N1], Mono(29.9)) == []
    assert watches.take([N1], Mono(100.0)) == [N1]
    watches.forget(N1)
    assert watches.take([N1], Mono(100.0)) == [N1]


def test_only_so_many_nodes_are_watched_at_once_and_a_place_comes_free_by_itself() -> None:
    watches = FigureWatches()
    many = [NodeName(f"n{number}") for number in range(WATCHED_MAX + 5)]
    assert watches.take(many, Mono(0.0)) == many[:WATCHED_MAX]
    assert watches.take(many[WATCHED_MAX:], Mono(5.0)) == []
    assert watches.take(many, Mono(WATCH_S + 0.1)) == many[:WATCHED_MAX]
    assert watches.take(many[WATCHED_MAX:], Mono(2 * WATCH_S + 0.2)) == many[WATCHED_MAX:]
