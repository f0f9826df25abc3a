"""The tool as a whole: it reads what git knows, and every rule that exists is asked."""

import inspect
import subprocess
from pathlib import Path

from tools import tidy
from tools.tidy_rules import calls, names, outside, purity, silence, size, testing
from tools.tidy_rules.source import Source


def test_every_rule_of_every_family_is_asked() -> None:
    families = (calls, names, outside, purity, silence, size, testing)
    rules = {
        rule
        for family in families
        for name, rule in inspect.getmembers(family, inspect.isfunction)
        if rule.__module__ == family.__name__ and "Iterator[tools.tidy_rules.source.Fault]" in str(_answer(rule))
        if not name.startswith("_")
    }
    assert rules == {*tidy.FILE_RULES, *tidy.TREE_RULES}


def _answer(rule: object) -> object:
    return inspect.signature(rule).return_annotation  # type: ignore[arg-type]  # inspect finds functions only


def test_a_file_that_is_not_python_any_more_is_one_fault() -> None:
    (fault,) = tidy.faults([Source("src/stoker/control/loop.py", "def (:")])
    assert fault.rule == "syntax"


def test_new_files_are_read_and_ignored_ones_are_not(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / ".gitignore").write_text("built/\n")
    (tmp_path / "built").mkdir()
    (tmp_path / "built" / "a.py").write_text("x = 1\n")
    (tmp_path / "b.py").write_text("x = 1\n")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\xff")
    assert [source.path for source in tidy.tracked(tmp_path)] == [".gitignore", "b.py"]
