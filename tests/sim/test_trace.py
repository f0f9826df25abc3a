"""Readers of traces: what is read, and the one error that a faulty file gives (T1 to T4)."""

import gzip
from pathlib import Path

import pytest

from stoker.brain.domain.errors import StokerError
from stoker.sim.trace import read_trace

HEADER = "id,submit_s,duration_s,gpus\n"
PHILLY = "timestamp,duration,num_gpus,gpu_time,cluster\n"
MURI = "job_id,num_gpu,submit_time,duration\n"


def written(folder: Path, content: str | bytes) -> Path:
    file = folder / "trace"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file


def test_the_neutral_form_has_columns_that_may_be_left_out_or_empty(tmp_path: Path) -> None:
    text = (
        "id,submit_s,duration_s,gpus,tasks,cpus,memory_mb,priority,tenant\na,0,1.5,2,,,,,\nb,1,2,4,3,8,512,900,vision\n"
    )
    first, second = read_trace(written(tmp_path, text), "csv").jobs
    assert (first.duration_ms, first.tasks, first.cpus, first.priority, first.tenant) == (1_500, 1, 1, None, "")
    assert (second.total_gpus, second.cpus, second.memory_mb, second.priority) == (12, 8, 512, 900)
    assert second.tenant == "vision"


def test_times_count_from_the_first_submission_and_jobs_are_in_its_order(tmp_path: Path) -> None:
    """T2."""
    text = PHILLY + "2017-10-09 07:01:55,66.0,1,66.0,11cb48\n2017-10-09 07:01:50,5,8,40,6214e9\n"
    jobs = read_trace(written(tmp_path, text), "philly").jobs
    assert [(job.line, job.submit_ms, job.duration_ms, job.gpus, job.tenant) for job in jobs] == [
        (3, 0, 5_000, 8, "6214e9"),
        (2, 5_000, 66_000, 1, "11cb48"),
    ]


def test_muri_counts_in_milliseconds(tmp_path: Path) -> None:
    (job,) = read_trace(written(tmp_path, MURI + "7,8,1534000,281000\n"), "muri").jobs
    assert (job.id, job.gpus, job.submit_ms, job.duration_ms) == ("7", 8, 0, 281_000)


def test_gzip_is_known_by_its_first_bytes(tmp_path: Path) -> None:
    """T3."""
    assert len(read_trace(written(tmp_path, gzip.compress((HEADER + "a,0,1,1\n").encode())), "csv").jobs) == 1


def test_jobs_of_a_standard_workload_that_never_ran_are_left_out_and_counted(tmp_path: Path) -> None:
    """T4."""
    text = "; Version: 2.2\n1 0 -1 10 4 -1\n2 1 -1 -1 4 -1\n3 2 -1 10 -1 -1\n"
    trace = read_trace(written(tmp_path, text), "swf")
    assert ([job.id for job in trace.jobs], trace.left_out) == (["1"], 2)


@pytest.mark.parametrize(
    ("form", "text", "line", "field", "says"),
    [
        ("csv", "id,submit_s,gpus\n", 1, "duration_s", "no such column"),
        ("philly", HEADER, 1, "timestamp", "no such column"),
        ("csv", "", 1, "id", "the file is empty"),
        ("csv", HEADER, 0, "", "no job that ran"),
        ("csv", HEADER + "a,0,1,1\nb,0,-1,1\n", 3, "duration_s", "-1 is negative"),
        ("csv", HEADER + "a,-0.5,1,1\n", 2, "submit_s", "-0.5 is negative"),
        ("csv", HEADER + "a,0,1,1\n\na,0,1,1\n", 4, "id", "already on line 2"),
        ("muri", MURI + "1,1,0,1\n1,1,0,1\n", 3, "job_id", "already on line 2"),
        ("csv", HEADER + "a,0,nan,1\n", 2, "duration_s", "isn't a number"),
        ("csv", HEADER + "a,0,1e300,1\n", 2, "duration_s", "longer than any run"),
        ("csv", HEADER + "a,0,1,0\n", 2, "gpus", "isn't a whole number from 1"),
        ("csv", HEADER + "a,0,1,1.5\n", 2, "gpus", "isn't a whole number"),
        ("csv", HEADER + "a,0,1\n", 2, "gpus", "3 cells"),
        ("csv", HEADER + ",0,1,1\n", 2, "id", "empty"),
        ("csv", "id,submit_s,duration_s,gpus,gpus\n", 1, "gpus", "two columns"),
        ("csv", HEADER + "a,0,1,-4\n", 2, "gpus", "isn't a whole number from 1"),
        ("muri", MURI + "1,1,-5,1\n", 2, "submit_time", "-5 is negative"),
        ("muri", "job_id,num_gpu,duration\n", 1, "submit_time", "no such column"),
        ("philly", PHILLY + "2017-10-09 07:01:55,-66,1,1,x\n", 2, "duration", "-66 is negative"),
        ("swf", "1 -7 -1 10 4 -1\n", 1, "submit", "-7 is negative"),
        ("swf", "1 0 -1 10 4 -1\n1 0 -1 10 4 -1\n", 2, "job", "already on line 1"),
        ("philly", PHILLY + "yesterday,1,1,1,x\n", 2, "timestamp", "isn't a date"),
        ("swf", "1 0 -1\n", 1, "run time", "3 fields"),
    ],
)
def test_a_fault_is_one_error_with_file_line_field_and_a_hint(  # columns of a table
    tmp_path: Path, form: str, text: str, line: int, field: str, says: str
) -> None:
    """T1."""
    file = written(tmp_path, text)
    with pytest.raises(StokerError) as caught:
        read_trace(file, form)
    refusal = caught.value.refusal
    assert (refusal.code, refusal.facts["file"], refusal.facts["line"], refusal.facts["field"]) == (
        *("bad_trace", str(file)),
        *(line, field),
    )
    assert says in refusal.message
    assert refusal.hint


@pytest.mark.parametrize("broken", [lambda packed: packed[:-200], lambda packed: packed[:40] + b"?" * 40 + packed[80:]])
def test_a_gzip_file_that_ends_early_or_is_damaged_says_so(tmp_path: Path, broken: "object") -> None:
    rows = "".join(f"{number},{number * 7 % 1000},{number * 31 % 977},1\n" for number in range(5_000))
    with pytest.raises(StokerError) as caught:
        read_trace(written(tmp_path, broken(gzip.compress((HEADER + rows).encode()))), "csv")  # type: ignore[operator]  # one of the two above
    assert "breaks off or is damaged" in caught.value.refusal.message


def test_a_gzip_file_of_which_not_even_a_line_is_left_names_no_line(tmp_path: Path) -> None:
    with pytest.raises(StokerError) as caught:
        read_trace(written(tmp_path, gzip.compress((HEADER + "a,0,1,1\n").encode())[:20]), "csv")
    assert "breaks off or is damaged before its first whole line" in caught.value.refusal.message


def test_bytes_that_are_no_text_say_so(tmp_path: Path) -> None:
    with pytest.raises(StokerError) as caught:
        read_trace(written(tmp_path, b"\xff\xfe\x00\x01"), "csv")
    assert "isn't UTF-8" in caught.value.refusal.message


def test_a_file_that_is_no_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(StokerError) as caught:
        read_trace(tmp_path, "csv")
    assert "can't be read" in caught.value.refusal.message


def test_every_trace_of_the_tree_is_named_with_its_source_and_its_licence() -> None:
    """A fresh clone finds what benchmarks and tests read, and who may use it."""
    folder = Path(__file__).resolve().parents[2] / "benchmarks" / "traces"
    rows = [line for line in (folder / "README.md").read_text().splitlines() if line.startswith("| `")]
    patterns = [row.split("`")[1] for row in rows]
    files = sorted(file for file in folder.glob("*/*") if file.is_file())
    assert files
    assert [file for file in files if not any(file.match(pattern) for pattern in patterns)] == []
    said = ("the same |", "Apache-2.0", "CC BY", "states no licence")
    assert [row for row in rows if not any(words in row for words in said)] == []
