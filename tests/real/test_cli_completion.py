"""Tab in a real bash: commands, options, ids and names are completed, and nothing goes wrong without a server."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.wire.client import Client, JobBody
from tests.real.screen import Terminal
from tests.real.up_process import UpProcess, environment, stoker, until

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    with UpProcess(tmp_path_factory.mktemp("up"), "--nodes", "2", "--gpus-per-node", "1") as cluster:
        with Client(cluster.url) as client:
            until(lambda: client.status().online_nodes == 2, what="two nodes")
        yield cluster


def shell_environment(folder: Path, server: str) -> dict[str, str]:
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    return environment(folder, STOKER_SERVER=server, PATH=path, PS1="$ ", HISTFILE="")


def offered(folder: Path, server: str, *words: str) -> list[str]:
    """What bash offers for the last of `words`, also where a busy machine takes longer than Tab waits (N2)."""
    found: list[str] = []

    def press_tab() -> bool:
        found[:] = offered_at_once(folder, server, *words)
        return bool(found)

    until(press_tab, 60, f"anything for {words}")
    return found


def offered_at_once(folder: Path, server: str, *words: str) -> list[str]:
    quoted = " ".join(f"'{word}'" for word in words)
    script = (
        'eval "$(stoker completion bash)"; '
        f"COMP_WORDS=(stoker {quoted}); COMP_CWORD={len(words)}; "
        '_stoker_completion stoker; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    env = shell_environment(folder, server)
    done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, timeout=30, check=True)
    assert done.stderr == ""
    return done.stdout.split()


def test_tab_completes_a_command_an_option_and_an_id(up: UpProcess, tmp_path: Path) -> None:
    with Client(up.url) as client:
        job = client.submit(JobBody(command=["sleep", "600"], gpu_count=1))
    with Terminal(["bash", "--norc", "-i"], shell_environment(tmp_path, up.url)) as terminal:
        terminal.until("$")
        terminal.type('eval "$(stoker completion bash)"; echo rea"dy"\n')
        terminal.until("\nready\n")
        terminal.type("stoker canc\t")
        terminal.until("stoker cancel")
        terminal.type("--js\t")
        terminal.until("stoker cancel --json")
        terminal.type(f"{job.id[:-1]}\t\n")
        terminal.until('"time_limit_at"')
    with Client(up.url) as client:
        assert client.wait(job.id, at_most_s=20).state == "cancelled"


def test_ids_that_are_on_the_line_already_are_not_offered_again(up: UpProcess, tmp_path: Path) -> None:
    with Client(up.url) as client:
        ids = [job.id for job in client.submit_many([JobBody(command="sleep 600", gpu_count=1)] * 3)]
        assert set(ids) <= set(offered(tmp_path, up.url, "cancel", ""))
        assert set(offered(tmp_path, up.url, "cancel", ids[0], "")) & set(ids) == set(ids[1:])
        for job_id in ids:
            client.cancel(job_id)


def test_names_of_nodes_signals_and_words_of_options_are_offered(up: UpProcess, tmp_path: Path) -> None:
    assert offered(tmp_path, up.url, "node", "drain", "no") == ["node-1", "node-2"]
    assert offered(tmp_path, up.url, "signal", "7", "sigu") == ["USR1", "USR2"]
    assert offered(tmp_path, up.url, "list", "-o", "y") == ["yaml"]
    assert "--tenant" in offered(tmp_path, up.url, "submit", "--te")


def test_without_a_server_nothing_is_offered_and_nothing_is_said(tmp_path: Path) -> None:
    assert offered_at_once(tmp_path, "http://127.0.0.1:1", "cancel", "") == []


def test_names_of_signals_need_no_server(tmp_path: Path) -> None:
    assert offered_at_once(tmp_path, "http://127.0.0.1:1", "signal", "7", "sigu") == ["USR1", "USR2"]


def test_a_server_that_never_answers_costs_a_second_and_says_nothing(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began_s = time.monotonic()
        assert offered_at_once(tmp_path, f"http://127.0.0.1:{silent.getsockname()[1]}", "status", "") == []
        assert time.monotonic() - began_s < 10


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_its_script(tmp_path: Path, shell: str) -> None:
    command = stoker("completion", shell)
    done = subprocess.run(command, env=environment(tmp_path), capture_output=True, text=True, timeout=30, check=True)
    assert "_STOKER_COMPLETE" in done.stdout
    assert done.stderr == ""
