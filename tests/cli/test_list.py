"""Which list does a command line ask for?"""

import pytest
from click.testing import CliRunner

from stoker.cli.main import root


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
