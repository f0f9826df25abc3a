"""Which list does a command line ask for?"""

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from stoker.cli.clock import local_text
from stoker.cli.commands.listing import _columns, _left_out
from stoker.cli.display.job_details import job_pairs
from stoker.cli.main import root
from stoker.wire.rest.job import JobListView
from tests.cli.views import job


def test_all_jobs_and_at_most_so_many_is_a_contradiction_that_is_told_before_a_server_is_asked() -> None:
    """`--all --limit 5` printed a hundred thousand rows."""
    nowhere = ("--server", "http://127.0.0.1:1")
    done = CliRunner().invoke(root, ["list", *nowhere, "--all", "--limit", "5"])
    assert (done.exit_code, done.stdout) == (2, "")
    assert "--all or --limit" in done.stderr
    assert CliRunner().invoke(root, ["list", *nowhere, "--all"]).exit_code == 5
    assert CliRunner().invoke(root, ["list", *nowhere, "--limit", "5"]).exit_code == 5


@pytest.mark.parametrize(
    "given", [["--state"], ["--state", ""], ["--state="], ["--state", " , "], ["--state", "--all"]]
)
def test_no_state_at_all_is_a_usage_error_that_names_the_states(given: list[str]) -> None:
    """An empty one showed all jobs, and one that was left out had no hint."""
    done = CliRunner().invoke(root, ["list", "--server", "http://127.0.0.1:1", *given])
    assert (done.exit_code, done.stdout) == (2, "")
    assert "'--state': give one or more of pending, held, starting, running," in done.stderr
    assert CliRunner().invoke(root, ["list", "--server", "http://127.0.0.1:1", "--state", "running"]).exit_code == 5


def test_what_was_left_out_is_never_counted_too_low() -> None:
    """`total` counts what the state remembers; 3 of 5 were said to leave 2 while the history held thousands."""
    page = JobListView(jobs=[job(5), job(4), job(3)], total=5, limit=3, next="3")
    assert _left_out(page) == "at least 2 more; --all shows them"
    assert _left_out(replace(page, total=3)) == "more that ended long ago; --all shows them"


def test_a_list_by_planned_start_shows_when_and_where_and_other_lists_show_it_only_when_wide() -> None:
    waits = replace(job(5), planned_start="2026-11-28T16:20:00.000Z", planned_nodes=["n1", "n2"])
    shown = {column.title: column.text(waits) for column in _columns({"planned": True}) if not column.wide}
    at = local_text("2026-11-28T16:20:00.000Z")
    assert (shown["START"], shown["PLANNED NODES"]) == (at, "n1,n2")
    assert "START" not in {column.title for column in _columns({"sort": "live"}) if not column.wide}
    assert ("starts", f"by {at} at the latest, on n1, n2") in list(job_pairs(waits, 0, whole=False))
    foreign = replace(waits, planned_nodes=[])
    assert ("starts", f"by {at} at the latest") in list(job_pairs(foreign, 0, whole=False))
