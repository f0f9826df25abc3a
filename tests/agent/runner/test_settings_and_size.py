"""Arguments of the runner, and what keeps it small."""

import subprocess
import sys
from pathlib import Path

import pytest

import stoker.agent.runner as room
from stoker.agent.runner.settings import parse_arguments

FORBIDDEN = {"asyncio", "threading", "subprocess", "typing", "dataclasses", "inspect", "argparse", "logging", "hashlib"}


def test_arguments_are_read_by_the_type_of_their_default() -> None:
    settings = parse_arguments(["--data_dir", "/x", "--tether_s", "2.5", "--tasks_max", "7", "--tree", "scan"])
    assert (settings.data_dir, settings.tether_s, settings.tasks_max, settings.tree) == ("/x", 2.5, 7, "scan")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "data_dir"),
        (["--data_dir", "relative"], "absolute"),
        (["--data_dir", "/x", "--nonsense", "1"], "nonsense"),
        (["--data_dir", "/x", "--tasks_max", "many"], "many"),
        (["--data_dir", "/x", "--tree", "v3"], "--tree"),
        (["--data_dir"], "data_dir"),
    ],
)
def test_a_wrong_argument_is_named(arguments: list[str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_arguments(arguments)


@pytest.mark.parametrize(("files", "tasks"), [(1_024, 200), (64, 8), (10, 1), (-1, 4_096), (1 << 20, 4_096)])
def test_it_takes_no_more_tasks_than_its_open_files_allow(files: int, tasks: int) -> None:
    """Beyond them it could neither read /proc nor take a connection."""
    settings = parse_arguments(["--data_dir", "/x"])
    settings.keep_within(files)
    assert (settings.tasks_max, settings.short_of) == (
        tasks,
        f"{files} open files (`ulimit -n`)" if tasks < 4_096 else "",
    )


def test_nor_than_the_processes_of_its_account_allow() -> None:
    settings = parse_arguments(["--data_dir", "/x"])
    settings.keep_within(1_024, 40, 12)
    assert (settings.tasks_max, settings.short_of) == (5, "40 processes (`ulimit -u`), 12 in use")
    settings.keep_within(64, 40, 200)
    assert settings.tasks_max == 1, "there is always one"


def test_it_imports_nothing_of_ours_outside_its_folder_and_nothing_heavy() -> None:
    probe = "import sys; import stoker.agent.runner.__main__, stoker.agent.runner.loop; print(*sorted(sys.modules))"
    environ = {"PYTHONPATH": str(Path(room.__file__).parents[3])}
    loaded = set(
        subprocess.run(
            [sys.executable, "-S", "-c", probe], capture_output=True, text=True, check=True, env=environ
        ).stdout.split()
    )
    ours = {name for name in loaded if name.startswith("stoker")}
    assert ours - {"stoker", "stoker.agent"} == {name for name in ours if name.startswith("stoker.agent.runner")}
    assert not loaded & FORBIDDEN
    assert all(name.split(".")[0] in sys.stdlib_module_names for name in loaded - ours - {"__main__"})
