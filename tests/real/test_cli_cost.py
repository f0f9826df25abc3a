"""A command line that people type all day must be quick: budgets in CPU time, and what may not be imported."""

import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.real.up_process import UpProcess, environment, stoker

RUNS: Final = 7
INTERPRETER_MS: Final = 8
"""What an empty program costs on the machine for which the budgets were set."""


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    with UpProcess(tmp_path_factory.mktemp("up"), "--nodes", "1", "--gpus-per-node", "1") as cluster:
        yield cluster


def cpu_ms(command: list[str], env: dict[str, str]) -> float:
    """The cheapest of several runs: whatever else the machine does can only add."""

    def once() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, env=env, stdout=subprocess.DEVNULL, check=True, timeout=30)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1_000

    return min(once() for _ in range(RUNS))


@pytest.mark.parametrize(("words", "budget_ms"), [(("--help",), 100), (("list", "--json"), 120)], ids=["help", "list"])
def test_a_daily_command_stays_in_its_budget(
    up: UpProcess, tmp_path: Path, words: tuple[str, ...], budget_ms: int
) -> None:
    env = environment(tmp_path, STOKER_SERVER=up.url)
    slower = max(1.0, cpu_ms([stoker()[0], "-c", "pass"], env) / INTERPRETER_MS)
    assert cpu_ms(stoker(*words), env) < budget_ms * slower


@pytest.mark.parametrize("words", [("list", "--json"), ("status",), ("submit", "--", "true")], ids=" ".join)
def test_asking_a_server_never_loads_one_nor_draws(up: UpProcess, tmp_path: Path, words: tuple[str, ...]) -> None:
    program = (
        "import sys; from stoker.cli.main import root; "
        "root(sys.argv[1:], standalone_mode=False); print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [stoker()[0], "-c", program, *words],
        env=environment(tmp_path, STOKER_SERVER=up.url),
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    heavy = {"fastapi", "starlette", "grpc", "uvicorn", "pydantic", "rich", "asyncio", "yaml"}
    assert not heavy & set(done.stderr.split())
