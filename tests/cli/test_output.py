"""One answer, four forms: for people a table or lines, for programs all that the server said."""

import json
import sys
import time

import pytest
import yaml
from click.testing import CliRunner
from msgspec.structs import replace

from stoker.cli.clock import local_text
from stoker.cli.commands.why import why_lines
from stoker.cli.display.job_details import job_columns, job_pairs
from stoker.cli.display.output import pair_lines, show_lines, show_pairs, show_rows, show_value
from stoker.cli.display.table import csv_text, table_lines
from stoker.cli.display.terminal import size
from stoker.cli.main import root
from stoker.wire.rest.why import PriorityView
from tests.cli.test_help import command_at, every_command
from tests.cli.views import attempt, job, task, why

SILENT = {
    ("completion",),
    ("demo",),
    ("up",),
    ("control",),
    ("agent",),
    ("logs",),
    ("top",),
    ("ca", "export"),
    ("forward",),
    ("exec",),
    ("attach",),
}
"""They print bytes of a job, log lines, a picture, or a certificate."""


def test_every_command_that_answers_takes_each_form() -> None:
    for path in every_command():
        command = command_at(path)
        if path and not hasattr(command, "commands") and path not in SILENT:
            forms = [each for each in command.params if each.name == "form"]
            named = {flag for each in forms for flag in each.opts}
            # Of a simulation `--format` is that of the trace.
            assert named == {"-o", "--json"} | (set() if path[0] == "sim" else {"--format"}), path


def test_pairs_stand_below_each_other_and_only_a_state_is_coloured() -> None:
    pairs = [("state", "failed"), ("a key", "running\n"), ("empty", None)]
    assert pair_lines(pairs, paint=False) == ["state  failed", "a key  running\\n", "empty  -"]
    assert pair_lines(pairs, paint=True)[:2] == ["state  \x1b[31mfailed\x1b[0m", "a key  running\\n"]


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_programs_get_the_value_whatever_people_are_shown(form: str, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    value = {"name": "Größe\x1b", "list": [1, None]}
    show_value(form, value)
    show_rows(form, [], [], value)
    show_pairs(form, [("a", 1)], value)
    show_lines(form, ["a"], value)
    read = json.loads if form == "json" else yaml.safe_load
    said = capfdbinary.readouterr().out
    quarter = said[: len(said) // 4]
    assert said == quarter * 4
    assert read(quarter) == value


def test_wide_shows_nodes_gpus_and_times_that_a_table_leaves_out() -> None:
    gang = job(7, attempts=(attempt(tasks=(task(0, "a", ("GPU-1",)), task(1, "b", ("GPU-2",)))),))
    narrow, wide = (
        "\n".join(table_lines(job_columns(0), [gang], wide=wide, room=None, paint=False)) for wide in (False, True)
    )
    times = map(local_text, (gang.submitted_at, gang.started_at, gang.ended_at))
    for shown in ("a,b", "GPU-1,GPU-2", *times, "default", "batch", "local"):
        assert shown is not None
        assert shown not in narrow
        assert shown in wide


def test_the_whole_story_of_a_job_has_its_environment_and_each_ranks_times() -> None:
    told = job(7, attempts=(attempt(tasks=(task(0, "a", ("GPU-1",), end="2026-11-28T00:00:02Z"),)),), env={"A": "b"})
    short, whole = ("\n".join(pair_lines(job_pairs(told, 0, whole=whole), paint=False)) for whole in (False, True))
    assert "env A" not in short
    assert "  env A" in whole
    assert "to 2026-11-28 00:00:02 UTC, 1 CPUs" in whole


def test_of_a_job_of_another_tenant_only_what_it_takes_is_told_and_why_there_is_no_more() -> None:
    told = dict(job_pairs(job(reduced=True, tenant="red", name="", command="", submitted_by=""), 0, whole=True))
    assert told["asks for"] == "1 GPU"
    assert told["hidden"] == "the rest: it is for people of tenant red"
    assert not {"name", "command", "exit code", "workdir", "uid"} & told.keys()


def test_a_job_of_somebody_else_says_whose_it_is_and_what_is_not_shown() -> None:
    told = dict(
        job_pairs(
            job(outline=True, tenant="red", user="anna", name="train", command="", submitted_by=""), 0, whole=True
        )
    )
    assert told["name"] == "train"
    assert not told["command"]
    assert told["hidden"] == "what it runs and writes: that is for anna, leads of tenant red and admins"


def test_why_says_what_a_priority_is_made_of_where_others_wait_too() -> None:
    parts = PriorityView(effective=563, base=500, aging=13, fair_share=50)
    said = "priority: 563 = 500 + 13 for waiting + 50 fair share"
    assert said in why_lines(why(priority=parts, waiting=2))
    assert said not in why_lines(why(priority=parts, waiting=1))
    assert said in why_lines(why(priority=parts, waiting=1), whole=True)


def test_why_lists_the_numbers_behind_it_only_when_asked() -> None:
    answer = why(facts={"free": 2, "wanted": 4})
    assert list(why_lines(answer, whole=True)) == [*why_lines(answer), "free: 2", "wanted: 4"]


def test_a_command_whose_standard_output_is_closed_takes_the_size_that_it_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "__stdout__", None)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("LINES", "30")
    assert size() == (100, 30)


def test_the_version_is_shown_also_when_no_server_answers() -> None:
    done = CliRunner().invoke(root, ["version", "--json", "--server", "http://127.0.0.1:1"])
    assert done.exit_code == 0
    assert json.loads(done.stdout)["server"] is None
    said = CliRunner().invoke(root, ["version", "--server", "http://127.0.0.1:1"]).stdout
    assert "no control plane answers" in said


def test_times_are_told_in_the_zone_of_the_reader_with_its_name_and_for_programs_in_iso(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        shown = job(7, attempts=(attempt(),))
        told = dict(job_pairs(shown, 0, whole=True))
        row = csv_text(job_columns(0, ("ID", "ENDED")), [shown])
        table = table_lines(job_columns(0, ("ID", "ENDED")), [shown], wide=True, room=None, paint=False)
        assert local_text("2026-07-28T00:00:00Z") == "2026-07-28 02:00:00 CEST"
    finally:
        monkeypatch.delenv("TZ")
        time.tzset()
    assert str(told["submitted"]).endswith(" CET")
    assert row == f"ID,ENDED\r\n7,{shown.ended_at}\r\n"
    assert "01:00:0" in table[1]
    assert table[1].endswith(" CET")


def test_csv_quotes_as_rfc_4180_says_and_holds_nothing_that_acts_on_a_terminal() -> None:
    assert job_columns(0)[1].cell(job(name="n" * 99)) == "n" * 99, "what programs read is whole"
    odd = job(7, name='a,"b"\x1b\nc', exit_code=None)
    assert csv_text(job_columns(0, ("ID", "NAME", "EXIT")), [odd]) == 'ID,NAME,EXIT\r\n7,"a,""b""\\e\\nc",\r\n'


def test_the_peak_memory_of_a_gang_is_that_of_the_rank_that_used_most() -> None:
    used = [
        replace(task(rank, f"n{rank}", end="2026-11-28T00:00:02Z"), peak_memory_mb=mb)
        for rank, mb in enumerate((9, 70, 8))
    ]
    told = dict(job_pairs(job(7, attempts=(attempt(tasks=tuple(used)),), memory_mb=100), 0, whole=False))
    assert told["peak memory"] == "70 MiB of 100 MiB, rank 1 on n1"
    assert "peak memory" not in dict(job_pairs(job(8), 0, whole=False))


def test_why_says_that_a_job_which_waits_was_preempted_and_for_whom() -> None:
    told = list(why_lines(why(preempted="it was preempted at 2026-11-30 14:20:00 UTC for job 17")))
    assert "before: it was preempted at 2026-11-30 14:20:00 UTC for job 17" in told
