"""What becomes of an option that stands on the line twice? R1 of `cli.options`."""

import click
import pytest
from click.testing import CliRunner

from stoker.cli.main import root
from tests.cli.test_help import command_at, every_command

ADDING = {
    "submit": {
        "--where",
        "--exclude",
        "--tolerate",
        "--after",
        "--env",
        "--mount",
        "--export",
        "--secret",
        "--label",
        "--notify",
        "--notify-to",
    },
    "update": {"--where", "--exclude", "--tolerate", "--after"},
    "partition create": {"--where", "--exclude", "--tolerate"},
    "partition set": {"--where", "--exclude", "--tolerate"},
    "list": {"--state", "--label"},
    **{name: {"--state", "--label"} for name in ("cancel", "hold", "release", "requeue", "signal")},
    "control": {"--set"},
    "sim compare": {"--policy"},
    "sim replay": {"--policy"},
    "agent": {"--set"},
    "agent join": {"--set"},
    "doctor": {"--set"},
}
"""Options that add up, by command. The values of all others are one."""


def values(option: click.Option) -> list[list[str]]:
    """Two ways to give it that say different things."""
    if option.is_flag:
        names = [option.opts[-1], *option.secondary_opts]
        return [[names[0]], [names[-1]]]
    choices = option.type.choices if isinstance(option.type, click.Choice) else ("1", "2")
    return [[option.opts[-1], choices[0]], [option.opts[-1], choices[-1]]]


def parsed(path: tuple[str, ...], words: list[str]) -> dict[str, object]:
    """What a command receives. Raises: click.UsageError for the line; a missing argument isn't looked at."""
    command = command_at(path)
    params = command.params
    command.params = [each for each in params if isinstance(each, click.Option)]
    required = [each for each in command.params if each.required]
    for each in required:
        each.required = False
    try:
        return command.make_context(path[-1] if path else "stoker", words).params
    finally:
        command.params = params
        for each in required:
            each.required = True


@pytest.mark.parametrize("path", list(every_command()), ids=" ".join)
def test_every_option_of_every_command_adds_up_or_is_refused(path: tuple[str, ...]) -> None:
    for option in command_at(path).params:
        if not isinstance(option, click.Option):
            continue
        once, again = values(option)
        name = option.opts[-1]
        if name in ADDING.get(" ".join(path), set()):
            found = str(parsed(path, [name, "a=1", name, "b=2"])[option.name or ""])
            assert 0 <= found.find("a") < found.find("b"), (name, found)
        elif once == again:
            assert option.is_flag, f"{name}: only a flag says nothing more the second time"
        else:
            with pytest.raises(click.UsageError, match=r"is given twice, and only one could hold: give it once"):
                parsed(path, once + again)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["--server", "http://a", "list", "--server", "http://b"], "--server is given twice"),
        (["list", "-o", "wide", "--json"], "--format and --json say the same thing"),
        (["list", "--limit", "3", "--limit", "4"], "--limit is given twice"),
        (["partition", "create", "p", "--time", "3", "--time", "4"], "--time is given twice"),
    ],
)
def test_what_is_said_of_it_and_that_nothing_is_asked(line: list[str], said: str) -> None:
    done = CliRunner().invoke(root, line)
    assert (done.exit_code, said in done.stderr) == (2, True), done.stderr


def test_a_flag_may_be_repeated() -> None:
    assert parsed(("list",), ["--json", "--json"])["form"] == "json"
    assert parsed(("submit",), ["--hold", "--hold"])["hold"] is True


def test_selections_of_nodes_are_joined() -> None:
    assert parsed(("submit",), ["--where", "zone=b", "--where", "!disk"])["where"] == "zone=b,!disk"
    assert parsed(("submit",), [])["where"] is None
    assert parsed(("list",), ["--state", "pending", "--state", "running"])["state"] == "pending,running"
    with pytest.raises(click.BadParameter, match="give one or more of"):
        parsed(("list",), ["--state", ""])
