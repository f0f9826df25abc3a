"""Every command explains itself, and does so quickly."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from stoker.cli import commands
from stoker.cli.completion import tenants
from stoker.cli.main import root


def every_command() -> Iterator[tuple[str, ...]]:
    def below(path: tuple[str, ...], command: click.Command) -> Iterator[tuple[str, ...]]:
        yield path
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                child = command.get_command(context, name)
                assert child is not None, name
                yield from below((*path, name), child)

    yield from below((), root)


def command_at(path: tuple[str, ...]) -> click.Command:
    command: click.Command = root
    for name in path:
        assert isinstance(command, click.Group)
        child = command.get_command(click.Context(command), name)
        assert child is not None, path
        command = child
    return command


@pytest.mark.parametrize("path", list(every_command()), ids=" ".join)
def test_every_command_has_help_with_an_example(path: tuple[str, ...]) -> None:
    said = CliRunner().invoke(root, [*path, "--help"])
    assert said.exit_code == 0
    assert "Examples:\n" in said.output
    words = " ".join(("stoker", *path)).replace("stoker ps", "stoker list")
    assert words in said.output.partition("Examples:")[2]


def test_every_command_is_in_the_table_that_help_shows() -> None:
    said = CliRunner().invoke(root, ["--help"]).output
    assert all(f"\n  {name}" in said for name in root.list_commands(click.Context(root)))


def test_wherever_a_tenant_is_named_its_name_is_completed() -> None:
    found = {
        path: parameter
        for path in every_command()
        for parameter in command_at(path).params
        if "--tenant" in parameter.opts or (path[:1] == ("tenant",) and parameter.name == "parent")
    }
    assert {path[0] for path in found} >= {"submit", "list", "usage", "audit", "token", "tenant"}
    assert [path for path, parameter in found.items() if parameter._custom_shell_complete is not tenants] == []


def test_ps_is_another_word_for_list() -> None:
    assert command_at(("ps",)) is command_at(("list",))


def test_a_command_that_is_not_there_is_a_usage_error_that_names_the_nearest() -> None:
    said = CliRunner().invoke(root, ["lits"])
    assert said.exit_code == 2
    assert "list" in said.output


def test_every_option_says_what_it_is() -> None:
    for path in every_command():
        command = command_at(path)
        silent = [each.name for each in command.params if isinstance(each, click.Option) and not each.help]
        hidden = [each.name for each in command.params if isinstance(each, click.Option) and each.hidden]
        assert set(silent) <= set(hidden), path


def test_an_unknown_flag_is_a_usage_error() -> None:
    said = CliRunner().invoke(root, ["submit", "--aray", "0-9", "--", "true"])
    assert said.exit_code == 2
    assert "--aray" in said.output
    assert "--array" in said.output, "the nearest one is named"


def test_help_brings_no_server_and_no_wire_with_it() -> None:
    program = "import sys; from stoker.cli.main import root; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    heavy = {"msgspec", "fastapi", "grpc", "uvicorn", "pydantic", "rich", "asyncio", "yaml", "http.client"}
    assert not heavy & set(loaded)


@pytest.mark.parametrize(
    "words", [("status",), ("why",), ("cancel", "7"), ("hold",), ("wait",), ("logs",), ("node", "show")]
)
def test_a_variable_that_was_empty_names_nothing_and_asks_nobody(words: tuple[str, ...]) -> None:
    """`stoker status "$id"` without an id would have shown the cluster, and a script would have gone on."""
    said = CliRunner().invoke(root, [*words, "", "--server", "http://127.0.0.1:1"])
    assert said.exit_code == 2
    assert "names nothing" in said.output


NOTE = '''
import click

{section}
@click.command()
@click.argument("job_id")
def {name}(job_id: str) -> None:
    """Set a note on a job.

    \\b
    Examples:
      stoker my-job 7
    """
    click.echo(f"noted {{job_id}}")
'''


@pytest.mark.parametrize(("section", "title"), [('SECTION = "Jobs"', "Jobs"), ("", "Operation")])
def test_a_new_command_needs_one_file_and_stands_at_the_end_of_its_section(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, section: str, title: str
) -> None:
    (tmp_path / "my_job.py").write_text(NOTE.format(section=section, name="my_job"), encoding="utf-8")
    before = CliRunner().invoke(root, ["--help"]).output
    monkeypatch.setattr(commands, "__path__", [*commands.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "stoker.cli.commands.my_job", raising=False)
    after = CliRunner().invoke(root, ["--help"]).output
    (line,) = (line for line in after.splitlines() if line not in before.splitlines())
    assert line.split() == ["my-job", *["Set", "a", "note", "on", "a", "job."]]
    block = next(block for block in after.split("\n\n") if block.startswith(f"{title}:"))
    assert block.splitlines()[-1] == line
    assert after.replace(f"{line}\n", "") == before
    assert CliRunner().invoke(root, ["my-job", "7"]).output == "noted 7\n"
    assert "Did you mean 'my-job'?" in CliRunner().invoke(root, ["my-jbo"]).output


def test_a_file_that_holds_commands_of_other_names_is_no_command_itself() -> None:
    for name in ("listing", "job_operations", "job-operations"):
        assert "no such command" in CliRunner().invoke(root, [name]).output


def words_of(text: str) -> set[str]:
    return set(re.sub(r"\s+", " ", text).split())


@pytest.mark.parametrize("path", list(every_command()), ids=" ".join)
def test_help_fits_a_terminal_of_80_columns_and_breaks_no_word(path: tuple[str, ...]) -> None:
    said = CliRunner().invoke(root, [*path, "--help"], env={"COLUMNS": "80"}, terminal_width=80).output
    assert [line for line in said.splitlines() if len(line) > 80] == []
    command = command_at(path)
    told = [command.help or "", *(each.help or "" for each in command.params if isinstance(each, click.Option))]
    hidden = {each.help for each in command.params if isinstance(each, click.Option) and each.hidden}
    wanted = words_of(" ".join(text.replace("\b", "") for text in told if text not in hidden))
    assert wanted - words_of(said) == set(), "a word is broken"


def test_the_list_of_commands_shows_each_summary_whole() -> None:
    said = CliRunner().invoke(root, ["--help"], terminal_width=80).output
    assert "..." not in said.partition("Options:")[2]


def test_what_was_wrong_with_a_line_is_said_as_every_refusal_is() -> None:
    for words in (["lits"], ["list", "--foo"], ["cancel"], ["submit", "--gpus", "x", "--", "true"]):
        said = CliRunner().invoke(root, words)
        first, second = said.output.splitlines()
        assert said.exit_code == 2
        assert re.match(r"error: [a-z]", first), first
        assert re.fullmatch(r"hint: `.* --help` lists what it takes", second), second


def test_a_fault_with_a_hint_of_its_own_says_that_one_alone_on_a_line_of_its_own(tmp_path: Path) -> None:
    script = tmp_path / "a.sh"
    script.write_bytes(b"#!/bin/bash\r\necho\r\n")
    said = CliRunner().invoke(root, ["submit", str(script)]).output.splitlines()
    assert [line[:6] for line in said] == ["error:", "hint: "]
    assert said[1].startswith("hint: `sed -i")
    said = CliRunner().invoke(root, ["submit", "--name", "n\udce9", "--", "true"]).output.splitlines()
    assert said[0].endswith("holds bytes that aren't UTF-8, and what is sent must be")
    assert said[1].startswith("hint: write it in UTF-8; ")
