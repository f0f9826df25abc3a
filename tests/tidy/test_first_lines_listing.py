"""The listing of first lines: the tree as a reader who sees only these would know it."""

from pathlib import Path

import pytest

from tools.first_lines import listing, main
from tools.tidy_rules.source import Source

JOB = Source("stoker/job.py", '"""Jobs and their members.\n\nMore."""\nclass Job:\n    """Is it one?"""\n')


def test_a_module_is_listed_with_its_first_line() -> None:
    assert list(listing([JOB], with_classes=False)) == ["  stoker/job.py: Jobs and their members."]


def test_classes_follow_their_module_and_a_fault_is_marked() -> None:
    module, one = listing([JOB], with_classes=True)
    assert module == "  stoker/job.py: Jobs and their members."
    assert one.startswith("!     class Job: Is it one?    [it is a question")


def test_a_module_without_a_docstring_is_listed_too() -> None:
    assert list(listing([Source("a.py", "x = 1")], with_classes=False)) == ["  a.py: "]
    assert list(listing([Source("a.py", "x = 1")], with_classes=True)) == ["! a.py:     [no module docstring]"]


def test_class_names_defined_twice_are_listed_and_fail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.py").write_text("class Job: ...\n")
    assert main([str(tmp_path), "--duplicates"]) == 0
    (tmp_path / "b.py").write_text("class Job: ...\n")
    assert main([str(tmp_path), "--duplicates"]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "Job: a.py:1, b.py:1"
