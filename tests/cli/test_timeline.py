"""The rules of the drawing, and what a person needs from it."""

from hypothesis import given
from hypothesis import strategies as st

from stoker.cli.display.safe_text import width
from stoker.cli.display.timeline import (
    BROKEN,
    FREE,
    WIDTH_MIN,
    Timeline,
    TimelineRow,
    TimelineSpan,
    make_timeline,
    plain,
    text_lines,
    tick_label,
    tick_step_ms,
)

ROWS = [TimelineRow(node=f"demo-{node}", index=index, uuid=f"{node}/{index}") for node in (1, 2) for index in range(4)]


def span(gpu: str, job: int, start: int, end: int, *, outcome: str = "succeeded", attempt: int = 1) -> TimelineSpan:
    return TimelineSpan(gpu=gpu, job=str(job), name="n", attempt=attempt, outcome=outcome, start_ms=start, end_ms=end)


def row(timeline: Timeline, gpu: str, cells: int = 60) -> str:
    """The cells of one GPU's line."""
    place = [each.uuid for each in timeline.rows].index(gpu)
    margin, *pieces = text_lines(timeline, cells + len("demo-1 GPU0  "))[place + 1]
    assert margin.text.startswith(("demo-", " "))
    return "".join(piece.text for piece in pieces)


def test_a_free_gpu_is_a_line_of_dots() -> None:
    assert row(make_timeline(ROWS, [span("1/0", 1, 0, 1_000)]), "2/3") == FREE * 60


def test_a_job_fills_the_cells_of_its_time_and_no_others() -> None:
    timeline = make_timeline(ROWS, [span("1/0", 1, 0, 1_000), span("1/1", 2, 500, 750)])
    assert row(timeline, "1/1")[:30] == FREE * 30
    assert row(timeline, "1/1")[45:] == FREE * 15
    assert FREE not in row(timeline, "1/1")[30:45]


def test_every_gpu_of_a_gang_shows_the_job_at_the_same_place() -> None:
    timeline = make_timeline(ROWS, [span(each.uuid, 7, 100, 900) for each in ROWS])
    assert len({row(timeline, each.uuid) for each in ROWS}) == 1


def test_a_run_carries_its_jobs_id() -> None:
    assert " 1234 " in row(make_timeline(ROWS, [span("1/0", 1234, 0, 1_000)]), "1/0")


def test_an_attempt_without_success_ends_in_a_mark() -> None:
    timeline = make_timeline(ROWS, [span("1/0", 1, 0, 900, outcome="failed"), span("1/1", 2, 0, 1_000)])
    assert row(timeline, "1/0").count(BROKEN) == 1
    assert row(timeline, "1/0").rstrip(FREE).endswith(BROKEN)
    assert BROKEN not in row(timeline, "1/1")


def test_an_instant_of_work_is_still_seen() -> None:
    timeline = make_timeline(ROWS, [span("1/0", 1, 0, 100_000), span("1/1", 2, 50_000, 50_001)])
    assert row(timeline, "1/1").count(FREE) == 59


def test_an_instant_of_work_is_seen_between_two_long_jobs() -> None:
    spans = [span("1/0", 1, 0, 50_000), span("1/0", 2, 50_000, 50_001), span("1/0", 3, 50_001, 100_000)]
    pieces = text_lines(make_timeline(ROWS, spans), 73)[1]
    assert [piece.job for piece in pieces if piece.job] == ["1", "2", "3"]


def test_neighbours_never_share_a_fill() -> None:
    # Jobs 1 and 5 would both be drawn with the first of four fills.
    spans = [span("2/0", job, job, 1_000) for job in (2, 3, 4)]
    spans += [span("1/0", 1, 0, 500), span("1/0", 5, 500, 1_000)]
    pieces = [piece.text for piece in text_lines(make_timeline(ROWS, spans), 73)[1] if piece.job]
    assert pieces[0][0] != pieces[1][0]


def test_two_attempts_of_a_job_are_two_runs() -> None:
    spans = [span("1/0", 1, 0, 500, outcome="failed"), span("1/0", 1, 500, 1_000, attempt=2)]
    pieces = [piece.text for piece in text_lines(make_timeline(ROWS, spans), 73)[1] if piece.job]
    assert len(pieces) == 2
    assert pieces[0][-1] == BROKEN


def test_a_node_is_named_once_and_its_gpus_counted() -> None:
    text = plain(text_lines(make_timeline(ROWS, []), 80))
    assert text.count("demo-1") == text.count("demo-2") == 1
    assert text.count("GPU3") == 2


def test_gpus_stand_in_order_of_node_and_index_whatever_order_they_came_in() -> None:
    assert make_timeline(reversed(ROWS), []).rows == tuple(ROWS)


def test_a_span_on_a_gpu_that_is_not_listed_is_left_out() -> None:
    lines = text_lines(make_timeline(ROWS[:1], [span("gone", 1, 0, 10)]), 80)
    assert {piece.job for line in lines for piece in line} == {""}


def test_a_cluster_without_gpus_or_jobs_can_be_drawn() -> None:
    assert text_lines(make_timeline([], []), 80)
    assert len(text_lines(make_timeline(ROWS, []), 80)) == len(ROWS) + 1


def test_ticks_are_round_and_few() -> None:
    assert tick_step_ms(7_500, 8) == 1_000
    assert tick_step_ms(90_000, 8) == 20_000
    assert tick_step_ms(3 * 3_600_000, 8) == 1_800_000
    assert 10**15 // tick_step_ms(10**15, 8) <= 8
    assert [tick_label(ms) for ms in (0, 500, 20_000, 180_000, 7_200_000)] == ["0", "0.5s", "20s", "3m", "2h"]


SPANS = st.lists(
    st.builds(
        lambda gpu, job, start, length, bad: span(
            gpu, job, start, start + length, outcome="failed" if bad else "succeeded"
        ),
        st.sampled_from([each.uuid for each in ROWS]),
        st.integers(1, 10**6),
        st.integers(0, 10**6),
        st.integers(0, 10**6),
        st.booleans(),
    ),
    max_size=30,
)


@given(SPANS, st.integers(0, 200))
def test_no_line_is_wider_than_asked_and_no_job_is_invented(spans: list[TimelineSpan], wanted: int) -> None:
    lines = text_lines(make_timeline(ROWS, spans), wanted)
    assert len(lines) == len(ROWS) + 1
    assert all(width("".join(piece.text for piece in line)) <= max(wanted, WIDTH_MIN) for line in lines)
    assert {piece.job for line in lines for piece in line} - {""} <= {each.job for each in spans}
