"""Rule 33: the first line of a docstring is one declarative sentence about what the thing is or does."""

import pytest

from tests.tidy.caught import caught
from tools.tidy_rules.first_lines import (
    first_lines_are_statements,
    first_lines_name_their_subject,
    not_a_statement,
    without_a_subject,
)

HERE = "src/stoker/brain/engine/order.py"


@pytest.mark.parametrize(
    "line",
    [
        "When does a pass run?",
        "In which order does a pass look at jobs?",
        "Is it clean? Without arguments: make it so.",
        "Which job is next.",
        "Which limit would break now.",
        "How many GPUs are free.",
        "How far has it come.",
        "What's new.",
        "Where is the log.",
        "Why can't this be a name.",
        "May a job run here.",
        "Does the state show it.",
        "Do they agree.",
    ],
)
def test_a_question_is_caught_with_and_without_its_mark(line: str) -> None:
    assert "question" in not_a_statement(line)


@pytest.mark.parametrize("line", ["Tell whoever asked.", "Whoever holds the lock.", "The others wait."])
def test_a_riddle_is_caught(line: str) -> None:
    assert "leaves open" in not_a_statement(line)


@pytest.mark.parametrize("line", ["R3", "P1.", "V1 to V5.", "G2, G3.", "Rule E3.", "Z1 and Z2. Raises: OSError."])
def test_a_number_without_its_rule_is_caught(line: str) -> None:
    assert "number" in not_a_statement(line)


@pytest.mark.parametrize("line", ["The free GPUs", "The free GPUs, of all nodes that take", "(job, attempt, rank)"])
def test_half_a_sentence_is_caught(line: str) -> None:
    assert "one sentence" in not_a_statement(line)


@pytest.mark.parametrize(
    "line",
    [
        "Order pending jobs by effective priority, then age, then id.",
        "R3: a job waits for its tenant's quota.",
        "P1. Peers share a secret.",
        "The columns of a table:",
        "Do the rest.",
        "Have a look at /proc.",
        "Does nothing once the log is closed.",
        "Must be called under the lock.",
        "When a node falls silent, its jobs stay where they are.",
        "Match `?` in a pattern.",
        "Run once (see `propose`.)",
        "G0 is the first GPU.",
    ],
)
def test_a_declarative_sentence_passes(line: str) -> None:
    assert not_a_statement(line) == ""
    assert without_a_subject(line) == ""


@pytest.mark.parametrize(
    "line",
    [
        "What a GPU probe found.",
        "Who the tokens say that people are.",
        "How each dialect names a state.",
        "Why an attempt ended.",
        "Where jobs may keep checkpoints.",
    ],
)
def test_a_clause_in_the_place_of_a_noun_is_caught(line: str) -> None:
    assert "no noun" in without_a_subject(line)


def test_what_one_of_the_two_rules_says_the_other_does_not_repeat() -> None:
    assert without_a_subject("What does a probe find?") == ""


def test_modules_classes_and_public_functions_are_read_and_nothing_else() -> None:
    text = '''
    """Is it?"""

    class Job:
        """Is it?"""

        def state(self):
            """Is it?"""

        def _private(self):
            """Is it?"""

    class _Hidden:
        """Is it?"""

    def plain(): ...

    def outer():
        """A sentence."""

        def inner():
            """Is it?"""
    '''
    assert [fault.partition(": it is")[0] for fault in caught(first_lines_are_statements, HERE, text)] == [
        "2: the module",
        "5: Job",
        "8: Job.state",
        "14: _Hidden",
    ]


def test_the_line_of_a_docstring_that_begins_below_its_quotes_is_read() -> None:
    assert caught(first_lines_are_statements, HERE, '"""\nJobs in order.\n"""') == []
    assert len(caught(first_lines_are_statements, HERE, '"""\nIs it?\n"""')) == 1


def test_each_rule_bites_in_the_package_and_in_the_tools_only() -> None:
    for path, faults in {"src/stoker/a.py": 1, "tools/a.py": 1, "tests/a.py": 0, "src/stoker/wire/gen/a.py": 0}.items():
        assert len(caught(first_lines_are_statements, path, '"""Is it?"""')) == faults
        assert len(caught(first_lines_name_their_subject, path, '"""What it is about."""')) == faults
