"""The picture is a valid file that says what the timeline says, whatever a user called the job."""

from itertools import pairwise
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from stoker.cli.display.timeline import TimelineRow, TimelineSpan, make_timeline
from stoker.cli.display.timeline_svg import svg

SVG = "{http://www.w3.org/2000/svg}"
ROWS = [TimelineRow(node=f"demo-{node}", index=index, uuid=f"{node}/{index}") for node in (1, 2) for index in range(2)]


def span(gpu: str, job: str, name: str, start: int, end: int, outcome: str = "succeeded") -> TimelineSpan:
    return TimelineSpan(gpu=gpu, job=job, name=name, attempt=1, outcome=outcome, start_ms=start, end_ms=end)


def drawn(*spans: TimelineSpan, title: str = "t") -> ElementTree.Element:
    return ElementTree.fromstring(svg(make_timeline(ROWS, spans), title))


def texts(root: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in root.iter(f"{SVG}text")]


def bars(root: ElementTree.Element) -> list[ElementTree.Element]:
    return [rect for rect in root.iter(f"{SVG}rect") if rect.get("rx") == "3"]


def test_there_is_one_bar_for_each_span_at_its_time_and_gpu() -> None:
    root = drawn(span("1/0", "1", "a", 0, 1_000), span("2/1", "2", "b", 1_000, 2_000))
    first, second = bars(root)
    assert float(first.get("x", "")) + float(first.get("width", "")) == float(second.get("x", ""))
    assert first.get("width") == second.get("width")
    assert float(first.get("y", "")) < float(second.get("y", ""))


def test_gpus_of_one_node_stand_closer_together_than_those_of_two() -> None:
    free = [rect for rect in drawn().iter(f"{SVG}rect") if rect.get("class") == "free" and rect.get("rx") is None]
    tops = [float(rect.get("y", "")) for rect in free][: len(ROWS)]
    within, between, within_next = (below - above for above, below in pairwise(tops))
    assert within == within_next < between


def test_axes_title_and_legend_are_there() -> None:
    shown = texts(drawn(span("1/0", "1", "train", 0, 4_000, "failed"), title="The title"))
    assert {"The title", "demo-1", "demo-2", "GPU 0", "GPU 1", "0", "1s", "4s", "free GPU"} <= set(shown)
    assert "1 train: failed" in shown


def test_what_ended_badly_is_marked_once() -> None:
    root = drawn(span("1/0", "1", "a", 0, 1_000, "timeout"), span("1/1", "2", "b", 0, 1_000))
    marks = [line for line in root.iter(f"{SVG}line") if line.get("class") == "mark"]
    assert len(marks) == 2, "one on the bar, one in the legend"


def test_a_bar_too_short_for_a_name_carries_none_but_tells_its_story_under_the_pointer() -> None:
    long, short = span("1/0", "1", "a", 0, 100_000), span("1/1", "77", "short-name", 0, 10)
    root = drawn(long, short)
    stories = [title.text or "" for title in root.iter(f"{SVG}title")]
    assert any("job 77 short-name, attempt 1: succeeded" in story for story in stories)
    assert not any(text == "77 short-name" for text in texts(root))


def test_a_legend_of_many_jobs_says_how_many_it_leaves_out() -> None:
    shown = texts(drawn(*(span("1/0", str(job), "n", job, job + 1) for job in range(100))))
    assert "and 40 more jobs" in shown


def test_nothing_to_draw_is_still_a_picture() -> None:
    assert drawn().tag == f"{SVG}svg"
    assert ElementTree.fromstring(svg(make_timeline([], []), "empty")).tag == f"{SVG}svg"


@given(st.text(max_size=40), st.text(max_size=40))
def test_any_name_leaves_the_file_valid_and_free_of_scripts(name: str, node: str) -> None:
    rows = [TimelineRow(node=node, index=0, uuid=name)]
    text = svg(make_timeline(rows, [span(name, "1", f"<script>{name}</script>]]>", 0, 10)]), name)
    root = ElementTree.fromstring(text)
    assert not list(root.iter(f"{SVG}script"))
    assert text.encode("utf-8")
