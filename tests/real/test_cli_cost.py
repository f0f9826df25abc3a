"""A command line that people type all day must be quick: what its commands load. `benchmarks/commands.py` times it."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.up_process import UpProcess, environment, stoker

HEAVY = {"fastapi", "starlette", "grpc", "uvicorn", "pydantic", "rich", "asyncio", "yaml", "ssl"}


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    with UpProcess(tmp_path_factory.mktemp("up"), "--nodes", "1", "--gpus-per-node", "1") as cluster:
        yield cluster


def loaded(up: UpProcess, folder: Path, words: tuple[str, ...]) -> set[str]:
    """The modules that a command has imported when it ends."""
    program = (
        "import sys; from stoker.cli.main import root; "
        "root(sys.argv[1:], standalone_mode=False); print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [stoker()[0], "-c", program, *words],
        env=environment(folder, STOKER_SERVER=up.url),
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    return set(done.stderr.split())


@pytest.mark.parametrize(
    ("words", "modules_max"), [(("--help",), 185), (("list", "--json"), 255)], ids=["help", "list"]
)
def test_a_daily_command_loads_little(up: UpProcess, tmp_path: Path, words: tuple[str, ...], modules_max: int) -> None:
    """An import costs a fifth of a millisecond, and nearly all that such a command costs is imports."""
    assert len(loaded(up, tmp_path, words)) <= modules_max


@pytest.mark.parametrize("words", [("list", "--json"), ("status",), ("submit", "--", "true")], ids=" ".join)
def test_asking_a_server_never_loads_one_nor_draws(up: UpProcess, tmp_path: Path, words: tuple[str, ...]) -> None:
    assert not HEAVY & loaded(up, tmp_path, words)
