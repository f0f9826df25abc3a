"""The tool as a whole: it reads what git knows, and every rule that exists is asked."""

import inspect
import subprocess
from pathlib import Path

from tests.programs import needs
from tools import tidy
from tools.tidy_rules import (
    calls,
    classes,
    doors,
    first_lines,
    names,
    outside,
    purity,
    retired,
    silence,
    size,
    small_files,
    testing,
)
from tools.tidy_rules.source import Import, Source


def test_every_rule_of_every_family_is_asked() -> None:
    families = (
        *(calls, classes, doors, first_lines, names, outside),
        *(purity, retired, silence, size, small_files, testing),
    )
    rules = {
        rule
        for family in families
        for name, rule in inspect.getmembers(family, inspect.isfunction)
        if rule.__module__ == family.__name__ and "Iterator[tools.tidy_rules.source.Fault]" in str(_answer(rule))
        if not name.startswith("_")
    }
    assert rules == {*tidy.FILE_RULES, *tidy.TREE_RULES}


def test_a_rule_that_is_not_yet_asked_is_one_of_the_rules() -> None:
    assert set(tidy.RULES) >= tidy.NOT_YET
    assert {*tidy.SWITCHED_ON, *tidy.NOT_YET} == set(tidy.RULES)


def test_a_rule_is_asked_by_its_name_even_before_it_is_switched_on() -> None:
    offence = Source("src/stoker/brain/engine/room.py", '"""Free GPUs of each node."""')
    (fault,) = tidy.faults([offence], [retired.no_retired_words])
    assert fault.rule == "retired"
    assert not list(tidy.faults([offence], [names.packages_open_with_prose]))


def test_a_rule_that_nobody_wrote_is_no_clean_tree() -> None:
    assert tidy.main(["no_such_rule"]) == 2


def test_imports_are_found_wherever_and_however_they_are_written() -> None:
    text = "import a.b\nfrom ..c import d\nfrom . import e\ndef f():\n    importlib.import_module('g.h')\n"
    assert Source("src/stoker/live/http/jobs.py", text).imports == [
        Import(1, "a.b"),
        Import(2, "stoker.live.c", "d"),
        Import(3, "stoker.live.http", "e"),
        Import(5, "g.h"),
    ]
    assert Source("src/stoker/live/http/__init__.py", "from . import e").imports == [Import(1, "stoker.live.http", "e")]


def _answer(rule: object) -> object:
    return inspect.signature(rule).return_annotation  # type: ignore[arg-type]  # inspect finds functions only


def test_a_file_that_is_not_python_any_more_is_one_fault() -> None:
    (fault,) = tidy.faults([Source("src/stoker/control/loop.py", "def (:")])
    assert fault.rule == "syntax"


@needs("git")
def test_new_files_are_read_and_ignored_ones_are_not(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / ".gitignore").write_text("built/\n")
    (tmp_path / "built").mkdir()
    (tmp_path / "built" / "a.py").write_text("x = 1\n")
    (tmp_path / "b.py").write_text("x = 1\n")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\xff")
    assert [source.path for source in tidy.tracked(tmp_path)] == [".gitignore", "b.py"]
