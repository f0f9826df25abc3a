"""Terminals of jobs while the agent, and then the active control plane, is killed in the middle."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.agent_process import AgentProcess
from tests.real.pair_process import Pair
from tests.real.screen import Terminal
from tests.real.up_process import environment, stoker

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(300)]
SHELL = {"TERM": "xterm", "PS1": "ready$ "}
BACK_S_MAX = 25.0
"""Promised are 5 s; a machine that is busy with other tests has five times as much."""
BASH = ("bash", "--norc", "--noprofile", "-i")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with Pair(tmp_path_factory.mktemp("inside")) as made:
        yield made.start()


@pytest.fixture(scope="module")
def agent(pair: Pair) -> AgentProcess:
    return pair.agent("n1").start()


@pytest.fixture(scope="module")
def seen(pair: Pair, agent: AgentProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    """In the terminal of an interactive job, which counts."""
    folder: Path = tmp_path_factory.mktemp("client")
    words = stoker("submit", "-it", "--env", "PS1=ready$ ", "--workdir", str(folder), "--", *BASH)
    with Terminal(words, environment(folder, **SHELL, **pair.environ)) as shown:
        shown.until("ready$", patience_s=90)
        shown.type("i=0; while read -t 0.1 x; [ $? -gt 128 ]; do i=$((i+1)); echo count $i; done\r")
        shown.until("count 5")
        yield shown


def counted(seen: Terminal) -> int:
    """The newest number; each stands there once, in order, whatever broke."""
    seen.still(0.0)
    found = [int(line.split()[1]) for line in seen.written.decode().splitlines() if line.startswith("count ")]
    assert found == list(range(1, found[-1] + 1)), "every line of output arrives, and arrives once"
    return found[-1]


def until_counted(seen: Terminal, above: int, patience_s: float) -> float:
    """Seconds until it has counted so far."""
    began = time.monotonic()
    while counted(seen) <= above:
        assert time.monotonic() < began + patience_s, f"it stands at {counted(seen)}:\n{seen.text}"
        time.sleep(0.02)
    return time.monotonic() - began


def test_an_agent_that_is_killed_takes_no_terminal_with_it(seen: Terminal, agent: AgentProcess) -> None:
    before = counted(seen)
    agent.kill()
    agent.start()
    until_counted(seen, before + 30, patience_s=60)


def test_a_take_over_leaves_program_and_terminal_and_what_was_typed_meanwhile_arrives(
    seen: Terminal, pair: Pair
) -> None:
    before, active = counted(seen), pair.active
    active.kill()
    pair.until_active(pair.other(active))
    taken_over = counted(seen)
    back_s = until_counted(seen, max(before, taken_over) + 1, patience_s=BACK_S_MAX)
    print(f"the client was back {back_s:.2f} s after the take-over")
    seen.type("\r")
    seen.until("ready$", gone=["read -t"], patience_s=60)
    seen.type("exit 4\r")
    assert seen.end() == 4
