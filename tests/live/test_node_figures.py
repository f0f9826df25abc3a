"""Rules H1 and H2 of `live/node_figures.py`."""

from stoker.brain.domain.gpu_telemetry import GpuReading
from stoker.brain.domain.ids import GpuUuid, NodeName
from stoker.brain.domain.report import Beat
from stoker.brain.domain.units import Instant, Mono
from stoker.live.node_figures import BEATS, FigureBook
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
