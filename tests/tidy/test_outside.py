"""Rules 26 and 27: every refusal has a row, and the tree works on any machine."""

import pytest

from tests.tidy.caught import caught, caught_in
from tools.tidy_rules.outside import STATUS, every_code_is_in_the_table, no_machine_is_named

TABLE = 'STATUSES: Final[dict[str, Status]] = {"job_not_found": _missing("No such job")}'


# `~` is taken out below: it keeps these lines from being what they warn of.
@pytest.mark.parametrize(
    "text",
    [
        "path = '/wo~rk/main/src'",
        "cd /root/stoker",
        "python = /home/jenkins/.venv/bin/python",
        "open('/Users/kim/stoker')",
        "--index-url https://example.org/simple",
        "wget https://files.python~hosted.org/packages/x.whl",
    ],
)
def test_a_path_or_registry_of_one_machine_is_caught(text: str) -> None:
    assert len(caught(no_machine_is_named, "docs/howto/install.md", text.replace("~", ""))) == 1


@pytest.mark.parametrize(
    "text",
    ["data_dir: /var/lib/stoker", "cd /home/ada/train", "https://example.org/work/", "a/wo~rk/main", "the /root file"],
)
def test_paths_that_are_the_same_everywhere_pass(text: str) -> None:
    assert caught(no_machine_is_named, "docs/howto/install.md", text.replace("~", "")) == []


@pytest.mark.parametrize(
    "call",
    [
        'refuse("job_gone", "x", "y")',
        'Refusal("job_gone")',
        'errors.refuse(code="job_gone", message="x")',
        'refuse_unknown("job_gone", "job", "x")',
    ],
)
def test_a_refusal_whose_code_has_no_row_is_caught(call: str) -> None:
    assert caught_in(every_code_is_in_the_table, {STATUS: TABLE, "src/stoker/api/http/jobs.py": call}) == [
        f"1: 'job_gone' has no row in {STATUS}: add one"
    ]


@pytest.mark.parametrize("call", ['refuse("job_not_found", "x", "y")', "refuse(code, message, hint)"])
def test_a_refusal_with_a_row_and_one_passed_on_pass(call: str) -> None:
    assert caught_in(every_code_is_in_the_table, {STATUS: TABLE, "src/stoker/api/http/jobs.py": call}) == []
