"""Log lines and metrics."""

import json
import logging
import os
import subprocess
import sys
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from stoker.adapters.logs import FIELD_CHARS_MAX, PLACES_MAX, LibraryLogs, StructuredTelemetry, library_logs
from stoker.adapters.metrics import Metrics
from stoker.brain.domain.units import Instant, Mono


class FixedClock:
    def now(self) -> Instant:
        return Instant(1_795_833_425_007)

    def mono(self) -> Mono:
        return Mono(0.0)

    def awake(self) -> Mono:
        return Mono(0.0)

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("a log line waits for nothing")


def lines(text: bytes) -> list[str]:
    return text.decode().splitlines()


def test_a_json_line_has_time_level_event_and_fields() -> None:
    out = BytesIO()
    StructuredTelemetry(FixedClock(), stream=out).event("task_submitted", task_id="7", gpu_ids=["a"], priority=500)
    assert json.loads(out.getvalue()) == {
        "at": "2026-11-28T02:37:05.007Z",
        "level": "info",
        "event": "task_submitted",
        "task_id": "7",
        "gpu_ids": ["a"],
        "priority": 500,
    }


def test_a_text_line_says_the_same_for_people() -> None:
    out = BytesIO()
    telemetry = StructuredTelemetry(FixedClock(), stream=out, format="text")
    telemetry.warn("agent_offline", agent_id="n1", why="no beat for 15 s", n=None, share=0.5, gpus=[1])
    assert lines(out.getvalue()) == [
        '2026-11-28T02:37:05.007Z warning agent_offline agent_id=n1 why="no beat for 15 s" n=null share=0.5 gpus=[1]'
    ]


@pytest.mark.parametrize("form", ["json", "text"])
@pytest.mark.parametrize(
    "evil", ["a\nforged", "a\r\nb", "\x1b[31m", 'q"q', "\u2028", "x=y z", "\udc80", "ü", "", "\x00"]
)
def test_t1_nothing_from_outside_can_forge_a_line(form: str, evil: str) -> None:
    out = BytesIO()
    telemetry = StructuredTelemetry(FixedClock(), stream=out, format="text" if form == "text" else "json")
    telemetry.event("task_submitted", text=evil)
    assert out.getvalue().count(b"\n") == 1
    assert b"\x1b" not in out.getvalue()
    assert b"\r" not in out.getvalue()


@pytest.mark.parametrize("form", ["json", "text"])
def test_t1_a_line_holds_nothing_that_acts_on_a_terminal(form: Literal["json", "text"]) -> None:
    out, evil = BytesIO(), "\x1b[2J\x7f\x80\x9b31m\x9f\u061c\u200e\u2028\u202e\u2066\u2069"
    StructuredTelemetry(FixedClock(), stream=out, format=form).event("task_submitted", job_name=f"{evil}é \u00a0 训练")
    line = out.getvalue().decode()
    assert set(line[:-1]) & set(evil) <= set("[2J31m")
    assert "é \u00a0 训练" in line
    shown = json.loads(line)["job_name"] if form == "json" else json.loads(line.split("job_name=")[1])
    assert shown == f"{evil}é \u00a0 训练"


def test_t2_any_value_becomes_a_line_and_a_long_one_is_cut() -> None:
    out = BytesIO()
    telemetry = StructuredTelemetry(FixedClock(), stream=out)
    telemetry.event("odd", big=2**70, thing=object, long="x" * 1_000_000, at="mine", level=3, many=list(range(100_000)))
    line = json.loads(out.getvalue())
    assert line["big"] == str(2**70)
    assert len(line["long"]) == FIELD_CHARS_MAX
    assert line["long"].endswith("...[cut]")
    assert (line["at_"], line["level_"]) == ("mine", 3)
    assert len(out.getvalue()) < 4 * FIELD_CHARS_MAX


def test_t3_a_reader_that_went_away_does_not_stop_the_process() -> None:
    class Broken(BytesIO):
        def write(self, data: object, /) -> int:
            raise BrokenPipeError

    metrics = Metrics()
    telemetry = StructuredTelemetry(FixedClock(), stream=Broken(), metrics=metrics)
    telemetry.event("one")
    telemetry.event("two")
    assert b"stoker_log_output_broken_total 1.0" in metrics.render()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")
def test_t5_a_log_on_a_disk_that_was_full_goes_on_once_there_is_space(tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(tmp_path)], check=True)
    try:
        with (tmp_path / "log").open("ab") as stream, suppress(OSError):
            telemetry = StructuredTelemetry(FixedClock(), stream=stream)
            telemetry.event("before")
            (tmp_path / "much").write_bytes(bytes(60 << 10))
            for number in range(1_000):
                telemetry.event("full", number=number)
            (tmp_path / "much").unlink()
            telemetry.event("after")
        lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
        assert (lines[0]["event"], lines[-1]["event"]) == ("before", "after"), "and every line is whole"
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def test_a_level_keeps_lower_lines_out() -> None:
    out = BytesIO()
    telemetry = StructuredTelemetry(FixedClock(), stream=out, level="warning")
    telemetry.event("task_submitted")
    telemetry.warn("agent_offline")
    assert [json.loads(line)["event"] for line in lines(out.getvalue())] == ["agent_offline"]


def test_warnings_of_libraries_come_in_the_same_form() -> None:
    out = BytesIO()
    with library_logs(StructuredTelemetry(FixedClock(), stream=out)):
        logging.getLogger("uvicorn.error").warning("socket %s", "closed")
        logging.getLogger("uvicorn.error").info("not this")
    logging.getLogger("uvicorn.error").warning("nor this, which comes later")
    line = msgspec.json.decode(out.getvalue())
    assert (line["event"], line["library"], line["message"]) == ("library_warned", "uvicorn.error", "socket closed")


def test_what_a_library_says_again_and_again_is_written_once_a_minute_with_how_often_it_was_said() -> None:
    out = BytesIO()
    handler = LibraryLogs(StructuredTelemetry(FixedClock(), stream=out))

    def says(message: str, at_s: float, *arguments: object, raised: bool = False) -> None:
        fact = {"name": "asyncio", "msg": message, "args": arguments, "created": at_s, "levelno": logging.ERROR}
        try:
            raise OSError("no more files")
        except OSError:
            handler.emit(logging.makeLogRecord({**fact, "exc_info": sys.exc_info() if raised else None}))

    for number in range(1_000):
        says("accept failed on %s", number / 1_000, number)
        says("accept failed", number / 1_000, raised=True)
    says("another", 2.0)
    says("accept failed on %s", 60.0, "all")
    said = [
        (line["message"].partition("\n")[0], line.get("repeated")) for line in map(json.loads, lines(out.getvalue()))
    ]
    assert said == [
        ("accept failed on 0", None),
        ("accept failed", None),
        ("another", None),
        ("accept failed on all", 999),
    ]
    for number in range(2 * PLACES_MAX):
        says(f"text of its own {number}", 61.0)
    assert len(handler._said) == PLACES_MAX


def test_without_metrics_counting_is_no_fault() -> None:
    telemetry = StructuredTelemetry(FixedClock(), stream=BytesIO())
    telemetry.count("x")
    telemetry.gauge("y", 1.0)
    telemetry.observe("z", 0.1)
    assert telemetry.render() == b""


def test_m1_metrics_are_named_after_stoker_with_their_units() -> None:
    telemetry = StructuredTelemetry(FixedClock(), stream=BytesIO(), metrics=Metrics())
    telemetry.count("tasks_submitted", 2, tenant="a")
    telemetry.count("tasks_submitted", 3, tenant="a")
    telemetry.gauge("gpus", 8.0, state="free")
    telemetry.gauge("gpus", 7.0, state="free")
    telemetry.observe("pass", 0.02)
    text = lines(telemetry.render())
    assert 'stoker_tasks_submitted_total{tenant="a"} 5.0' in text
    assert 'stoker_gpus{state="free"} 7.0' in text
    assert "stoker_pass_seconds_sum 0.02" in text
    assert 'stoker_pass_seconds_bucket{le="0.025"} 1.0' in text
    assert not [line for line in text if "_created" in line]


def test_m2_label_sets_beyond_the_bound_count_under_other() -> None:
    metrics = Metrics(series_max=3)
    for n in range(10):
        metrics.count("jobs", 1, {"tenant": f"t{n}"})
    metrics.count("jobs", 1, {"tenant": "t0"})
    text = lines(metrics.render())
    assert 'stoker_jobs_total{tenant="t0"} 2.0' in text
    assert 'stoker_jobs_total{tenant="other"} 7.0' in text
    assert len([line for line in text if line.startswith("stoker_jobs_total{")]) == 4


def test_m3_another_use_of_a_name_is_a_bug() -> None:
    metrics = Metrics()
    metrics.count("jobs", 1, {"tenant": "a"})
    metrics.count("jobs", 1, {"tenant": "b"})
    for labels in ({}, {"user": "a"}, {"tenant": "a", "user": "b"}):
        with pytest.raises(ValueError, match="tenant"):
            metrics.count("jobs", 1, labels)
    with pytest.raises(ValueError, match="Duplicated"):
        metrics.gauge("jobs", 1.0, {"tenant": "a"})


def test_labels_may_come_in_any_order() -> None:
    metrics = Metrics()
    metrics.gauge("gpus", 1.0, {"node": "n", "state": "free"})
    metrics.gauge("gpus", 2.0, {"state": "free", "node": "n"})
    assert 'stoker_gpus{node="n",state="free"} 2.0' in lines(metrics.render())
