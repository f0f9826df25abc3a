"""Which list does a command line ask for?"""

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
