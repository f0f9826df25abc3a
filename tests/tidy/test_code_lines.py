"""The count of code lines: one number for the size of the tree that everybody gets alike."""

from pathlib import Path
from textwrap import dedent

import pytest

from tools.code_lines import by_package, code_lines, longest_lines, main
from tools.python_files import python_files
from tools.tidy_rules.source import Source


def count(text: str) -> int:
    return code_lines(Source("src/a.py", dedent(text)))


def test_blank_lines_comments_and_docstrings_are_no_code() -> None:
    text = '''
    """A module

    of two lines."""

    # a comment
    x: int = 1  # the only line of code but two
    """What x is."""


    class Job:
        """A class."""

        def f(self):
            """A function."""
    '''
    assert count(text) == 3


def test_a_bare_string_anywhere_is_a_docstring() -> None:
    assert count("def f():\n    x = 1\n    'a remark'\n    return x\n") == 3


def test_a_string_over_several_lines_in_an_expression_counts_with_each() -> None:
    assert count('x = """a\n\nb"""\n') == 3
    assert count('x = f"""a\n{y}\nb"""\n') == 3


def test_a_docstring_beside_code_does_not_hide_the_code() -> None:
    assert count("class Job: 'A job.'\n") == 1


def test_brackets_on_lines_of_their_own_count() -> None:
    assert count("x = (\n    # why\n    1,\n\n)\n") == 3


def test_a_package_counts_with_the_packages_inside_it() -> None:
    sources = [Source("stoker/ports.py", "x = 1\n"), Source("stoker/brain/domain/job.py", "x = 1\ny = 2\n")]
    assert by_package(sources) == {".": 3, "stoker": 3, "stoker/brain": 2, "stoker/brain/domain": 2}


def test_the_longest_line_comes_first_and_every_other_that_is_too_long_follows() -> None:
    assert longest_lines([Source("a.py", f"x = 1\n# {'x' * 119}\n# {'y' * 120}\n")]) == [
        (122, "a.py:3"),
        (121, "a.py:2"),
    ]
    assert longest_lines([Source("a.py", "x = 1\ny = 22\n")]) == [(6, "a.py:2")]
    assert longest_lines([]) == []


def test_generated_and_hidden_files_are_left_out(tmp_path: Path) -> None:
    for path in ("stoker/a.py", "stoker/wire/gen/a_pb2.py", ".venv/b.py", "stoker/c.txt"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("x = 1\n")
    assert [source.path for source in python_files(tmp_path)] == ["stoker/a.py"]


def test_a_tree_that_is_not_there_is_not_counted_as_empty(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        main([str(tmp_path / "gone")])


def test_the_command_prints_a_row_for_each_package(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "stoker").mkdir()
    (tmp_path / "stoker" / "a.py").write_text("x = 1\n")
    assert main([str(tmp_path)]) == 0
    assert [row.split()[0] for row in capsys.readouterr().out.splitlines()] == ["1", "1"]


@pytest.mark.parametrize(("length", "status"), [(120, 0), (121, 1)])
def test_a_line_of_more_than_120_characters_fails(tmp_path: Path, length: int, status: int) -> None:
    (tmp_path / "a.py").write_text("#" + "x" * (length - 1) + "\n")
    assert main([str(tmp_path), "--longest"]) == status
