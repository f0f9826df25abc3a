"""Which word is a script, and what do its directives say?"""

import io
import os
from pathlib import Path

import click
import pytest

from stoker.brain.domain.errors import refuse
from stoker.cli.commands.submit import SCRIPT, submit
from stoker.cli.job_script import JobScript, command_remark, found_script, located, option_words, remarks

ON_PATH = {"python3", "make", "bash"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def found(word: str) -> JobScript | None:
    return found_script(word, ON_PATH.__contains__)


def words_of(text: str, *typed: str) -> list[str]:
    """The words of the command line that a script and what was typed before it mean, without the script."""
    Path("train.sh").write_text(text)
    ctx = click.Context(submit)
    words = submit._with_script(ctx, [*typed, "train.sh", "x"])  # type: ignore[attr-defined]  # of this command
    assert words[-3:] == ["--", "train.sh", "x"]
    assert ctx.meta[SCRIPT].text == text
    return words[:-3]


@pytest.mark.parametrize(
    ("name", "content", "is_script"),
    [
        ("train.sh", b"#!/bin/sh\necho\n", True),
        ("make", b"#!/bin/sh\necho\n", True),  # though it is a program too
        ("make", b"#STOKER --gpus 1\necho\n", True),
        ("make", b"echo\n", False),
        ("train.sh", b"echo\n", True),
        ("./make", b"echo\n", True),
        ("tool", b"\x7fELF\0\0", False),
        ("caf\xe9.sh", "#!/bin/sh\necho \xe9\n".encode("latin-1"), True),
    ],
)
def test_a_first_word_that_names_a_text_file_is_a_script(name: str, content: bytes, *, is_script: bool) -> None:
    Path(name).write_bytes(content)
    script = found(name)
    assert (script is not None) is is_script
    if script is not None:
        assert (script.name, os.fsencode(script.text)) == (os.path.basename(name), content)


def test_what_is_no_file_here_is_a_command(folder: Path) -> None:
    (folder / "data").mkdir()
    assert (found("data"), found("python3"), found("make data && ./train")) == (None, None, None)


def test_a_minus_is_a_script_on_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"echo hi\n")))
    assert found("-") == JobScript("stdin", "echo hi\n", "standard input")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
    with pytest.raises(click.UsageError, match="standard input: the script is empty"):
        found("-")


def test_behind_two_minuses_a_word_is_a_command_as_it_stands() -> None:
    Path("train.sh").write_text("#!/bin/sh\n#STOKER --gpus 2\n")
    args = ["--gpus", "1", "--", "./train.sh", "x"]
    assert submit._with_script(click.Context(submit), list(args)) == args  # type: ignore[attr-defined]  # of it


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train.py", "print()\n", "stoker submit ... -- python3 train.py"),
        ("a.sh", "#!/bin/bash\r\necho\r\n", "its lines end as on Windows"),
        ("a.sh", "\ufeff#!/bin/bash\necho\n", "begins with a byte order mark"),
        ("a.sh", "\n \n", "a.sh: the script is empty"),
        ("a.sh", "#!/bin/sh\n" + "#" * (4 << 20), "has more than 4194304 bytes"),
    ],
)
def test_what_runs_nowhere_is_refused_with_what_to_do(name: str, content: str, message: str) -> None:
    Path(name).write_bytes(content.encode())
    with pytest.raises(click.UsageError) as refused:
        found(name)
    assert message in refused.value.message


def test_directives_stand_before_the_first_line_of_code() -> None:
    text = "#!/bin/sh\n\n# why\n#STOKER --gpus 2 --time 1h  # of each task\n##STOKER --hold\necho\n#STOKER --gpus 8\n"
    assert words_of(text) == ["--gpus", "2", "--time", "1h"]
    script = JobScript("a.sh", text, "a.sh")
    assert list(remarks(script, ON_PATH.__contains__)) == [
        "line 7: a directive behind the first line of code (line 6) is a comment"
    ]


def test_the_command_line_replaces_what_the_script_says_and_stoker_lines_those_of_sbatch() -> None:
    text = "#!/bin/sh\n#SBATCH --gpus=4 --time=10 -J old\n#STOKER --gpus 2 --env A=1\n#STOKER --env B=2 --name new\n"
    assert words_of(text) == ["--time=10", "--gpus", "2", "--env", "A=1", "--env", "B=2", "--name", "new"]
    assert words_of(text, "--gpus=1", "--env", "C=3") == ["--time=10", "--name", "new", "--gpus=1", "--env", "C=3"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("#STOKER --gups 2", "train.sh, line 3: No such option '--gups'"),
        ("#STOKER --gpus two", "train.sh, line 3: Invalid value for '--gpus'"),
        ("#STOKER --time", "train.sh, line 3: Option '--time' requires an argument"),
        ("#STOKER python train.py", "train.sh, line 3: 'python' is no option"),
        ("#STOKER -- python", "train.sh, line 3: '--' is no option"),
        ("#STOKER --comment 'x", "train.sh, line 3: it can't be read: No closing quotation"),
        ("#STOKER --token x", "train.sh, line 3: --token belongs on the command line"),
        ("#STOKER --help", "train.sh, line 3: --help belongs on the command line"),
        ("#STOKER -o json", "train.sh, line 3: -o belongs on the command line"),
        ("#STOKER --time 2h", "train.sh, line 3: --time is given twice: line 2 gives it too"),
        ("#SBATCH --gups=2", "train.sh, line 3: sbatch has no option --gups: did you mean `--gpus`?"),
        ("#SBATCH --gpus=2 --nodes=3", "train.sh, line 3: --gpus=2 can't be divided"),
    ],
)
def test_a_directive_that_can_not_be_followed_is_one_error_with_file_and_line(line: str, message: str) -> None:
    with pytest.raises(click.UsageError) as refused:
        words_of(f"#!/bin/sh\n#STOKER --time 1h\n{line}\n")
    assert message in refused.value.message


def test_a_program_that_is_not_here_is_said_and_not_refused() -> None:
    """The node may have it."""

    def said(first: str) -> list[str]:
        return list(remarks(JobScript("a.sh", f"{first}\necho\n", "a.sh"), ON_PATH.__contains__))

    assert said("#!/bin/sh") == said("#!/usr/bin/env python3") == said("#!/usr/bin/env -S bash -e") == said("# x") == []
    assert said("#!/opt/conda/python") == [
        "its first line names /opt/conda/python, which isn't here; on the node it has to be"
    ]
    assert said("#!/usr/bin/env julia")[0].startswith("its first line names julia, which isn't here")


def test_a_file_that_is_typed_as_a_program_gets_the_right_suggestion() -> None:
    Path("train.sh").touch()
    Path("train.py").touch()
    Path("make").touch()

    def said(*words: str) -> str:
        return command_remark(words, ON_PATH.__contains__, as_it_stands=True)

    assert said("train.sh", "x") == "train.sh is a file here and no program on PATH: did you mean `-- ./train.sh`?"
    assert said("train.py").endswith("did you mean `-- python3 train.py`?")
    assert said("make") == said("./train.sh") == said("python3", "train.py") == said("train.sh && x") == said() == ""


def test_every_option_of_the_command_is_kept_whole() -> None:
    script = JobScript("a.sh", "#!/bin/sh\n#STOKER --hold --where 'tier in (x,y)' --comment='two words'\n", "a.sh")
    parser = submit.make_parser(click.Context(submit))
    said = ["--hold", "--where", "tier in (x,y)", "--comment=two words"]
    lines = {"hold": 2, "where": 2, "comment": 2}
    assert option_words(script, frozenset(), parser) == (said, [], lines)


def test_a_first_word_that_is_nothing_here_is_said_with_the_file_that_was_meant(folder: Path) -> None:
    (folder / "train.sh").touch()

    def said(word: str, *, as_it_stands: bool = False) -> str:
        return command_remark([word], ON_PATH.__contains__, as_it_stands=as_it_stands)

    assert said("trian.sh") == "trian.sh is neither a file here nor a program on PATH: did you mean train.sh?"
    assert said("./trian.sh") == "./trian.sh isn't here: did you mean ./train.sh?"
    assert said("nvidia-smi").endswith(": it is run as a program of the node")
    assert said("make") == said("trian.sh", as_it_stands=True) == ""


def test_what_is_refused_later_for_a_directive_is_said_with_file_and_line() -> None:
    lines = {"time_limit": 2, "gpu_memory": 3, "memory": 4}
    assert located(refuse("bad_time", "'x' is not a duration", "h", a=1), "./a.sh", lines) == refuse(
        "bad_time", "./a.sh, line 2: 'x' is not a duration", "h", a=1
    )
    for other in (refuse("bad_array", "m", "h"), refuse("bad_size", "m", "h"), refuse("no_server", "m", "h")):
        assert located(other, "a.sh", lines) == other


def test_how_a_job_gives_way_may_stand_in_its_script() -> None:
    text = "#!/bin/sh\n#STOKER --preemptible --checkpoint 10m\n#SBATCH --signal=B:USR1@90\n"
    assert words_of(text) == ["--signal=USR1@90", "--preemptible", "--checkpoint", "10m"]
    assert "--preemptible" not in words_of(text, "--no-preemptible")[:-1]
