"""`stoker top` in a real terminal, before a real cluster: what is seen at 80 x 24, what keys do, and how it ends."""

import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.wire.client import Client, JobBody
from tests.real.control_process import ControlProcess
from tests.real.screen import Terminal
from tests.real.up_process import UpProcess, environment, stoker, until

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    with UpProcess(
        tmp_path_factory.mktemp("up"), "--nodes", "2", "--gpus-per-node", "4", "--stop-grace", "1"
    ) as cluster:
        with Client(cluster.url) as client:
            until(lambda: client.status().online_nodes == 2, what="two nodes")
        yield cluster


@pytest.fixture
def jobs(up: UpProcess) -> Iterator[list[str]]:
    """One that runs and writes, and one that has to wait; ended afterwards."""
    with Client(up.url) as client:
        line = "while true; do echo a line of output; sleep 0.2; done"
        runs = client.submit(JobBody(command=line, name="训练 train", gpu_count=4, tasks=2))
        waits = client.submit(JobBody(command="true", name="w" * 100, gpu_count=1))
        until(lambda: client.job(runs.id).state == "running", what="it to run")
        yield [runs.id, waits.id]
        for job_id in (waits.id, runs.id):
            if client.job(job_id).ended_at is None:
                client.cancel(job_id)
        until(lambda: client.job(runs.id).ended_at is not None, what="the end")


def top(up: UpProcess, folder: Path, **more: str) -> Terminal:
    return Terminal(stoker("top"), environment(folder, STOKER_SERVER=up.url, **more))


def left_as_it_was(terminal: Terminal) -> bool:
    back = all(terminal.written.rfind(off) > terminal.written.rfind(on) for off, on in ((b"?1049l", b"?1049h"),))
    return back and terminal.cursor_shown and terminal.line_settings == terminal.settings_before


def test_without_its_library_one_refusal_names_the_extra_to_install(tmp_path: Path) -> None:
    """A module of that name that can't be imported stands before the real one, as if none were installed."""
    stub = tmp_path / "stub"
    stub.mkdir()
    (stub / "textual.py").write_text("raise ModuleNotFoundError(\"No module named 'textual'\", name='textual')\n")
    env = environment(tmp_path)
    env["PYTHONPATH"] = f"{stub}:{env['PYTHONPATH']}"
    with Terminal(stoker("top"), env, columns=160) as terminal:
        assert terminal.end() == 1
        said = [line for line in terminal.lines if line]
    assert said == [
        "error: `stoker top` draws with the library textual, which is not installed [extra_missing]",
        "hint: install it: pip install 'stoker[top]'. `stoker list --watch` shows the queue without it",
    ]


def test_at_80_by_24_head_nodes_and_queue_are_seen_and_nothing_is_folded(
    up: UpProcess, jobs: list[str], tmp_path: Path
) -> None:
    with top(up, tmp_path) as terminal:
        terminal.until("8/8 GPUs busy", "1 pending")
        lines = terminal.still().split("\n")
        looks_right(lines, jobs)
        assert len(terminal.lines) == 24
        terminal.type("q")
        assert terminal.end() == 0
        assert left_as_it_was(terminal)
        assert b"Traceback" not in terminal.written


def looks_right(lines: list[str], jobs: list[str]) -> None:
    """Whatever kind of terminal drew it."""
    assert lines[0].startswith(" stoker top  2/2 nodes  8/8 GPUs busy")
    assert [line.split()[1] for line in lines if line.startswith(" ■■■■ ")] == ["node-1", "node-2"]
    assert [line.split()[0] for line in lines if line.startswith("─")] == ["─", "─"]
    rows = [line for line in lines if line.split()[:1] and line.split()[0] in jobs]
    assert [row.split()[0] for row in rows] == jobs
    assert "node-1,node-2" in rows[0]
    assert "…" in rows[1]
    assert lines[23].split()[-2:] == ["q", "quit"]
    blank = lines[lines.index(rows[1]) + 1 : 23]
    assert set(blank) <= {""}, "a folded row would stand here"


def test_keys_open_a_job_with_what_it_writes_and_cancel_it_after_a_yes(
    up: UpProcess, jobs: list[str], tmp_path: Path
) -> None:
    with top(up, tmp_path) as terminal:
        terminal.until("1 pending")
        terminal.type("\r")
        terminal.until(f"─ job {jobs[0]} ─", "a line of output")
        terminal.type("\x1b")
        terminal.until("─ jobs (2) ─")
        terminal.type("\x1b[Bw")
        terminal.until(f"why {jobs[1]}", "hint: ")
        terminal.type(" ")
        terminal.until("─ jobs (2) ─", gone=["hint: "])
        terminal.type("c")
        terminal.until(f"Cancel job {jobs[1]}")
        terminal.type("y")
        terminal.until("─ jobs (1) ─")
        terminal.type("\x03")
        assert terminal.end() == 0
        assert left_as_it_was(terminal)
    with Client(up.url) as client:
        assert client.job(jobs[1]).state == "cancelled"


def test_it_follows_the_window(up: UpProcess, jobs: list[str], tmp_path: Path) -> None:
    with top(up, tmp_path) as terminal:
        terminal.until("1 pending")
        wide = ("TENANT", "MODEL")

        def widened() -> bool:
            # A busy machine may lose one of two signals that come together, so the window is dragged more than once.
            terminal.resize(160, 50)
            return all(word in "\n".join(terminal.lines) for word in wide)

        until(widened, what="the wider window to be filled")
        assert terminal.lines[49].split()[-2:] == ["q", "quit"]
        terminal.resize(60, 15)
        until(lambda: terminal.lines[14].startswith(" enter open"), what="the smaller window to be filled")


def test_no_color_is_heeded(up: UpProcess, jobs: list[str], tmp_path: Path) -> None:
    with top(up, tmp_path, NO_COLOR="1") as terminal:
        terminal.until("1 pending")
        terminal.still()
        assert b"\x1b[36" not in terminal.written
        assert b";36;" not in terminal.written
        assert b"38;" not in terminal.written
        terminal.kill(signal.SIGTERM)
        assert terminal.end() == 143
        assert left_as_it_was(terminal)


def test_without_a_server_it_says_so_and_goes_on_when_one_comes(tmp_path: Path) -> None:
    control = ControlProcess(tmp_path / "data")
    command = stoker("top", "--server", control.url)
    with Terminal(command, environment(tmp_path, **control.environ)) as terminal:
        terminal.until("waiting: no control plane answers")
        with control:
            terminal.until("no node has joined", "nothing runs or waits", gone=["waiting"])
            os.kill(control.pid, signal.SIGSTOP)
            terminal.until("gives no answer")
            began_s = time.monotonic()
            terminal.type("q")
            assert terminal.end() == 0
            assert time.monotonic() - began_s < 4, "no answer is waited for: that would take five seconds"
            os.kill(control.pid, signal.SIGCONT)


def test_where_it_cannot_draw_it_names_what_can(tmp_path: Path) -> None:
    env = environment(tmp_path)
    done = subprocess.run(stoker("top"), env=env, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "stoker list --watch" in done.stderr


@pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux")
def test_tmux_shows_the_same_picture(up: UpProcess, jobs: list[str], tmp_path: Path) -> None:
    def tmux(*words: str) -> str:
        command = ["tmux", "-S", str(tmp_path / "socket"), "-f", "/dev/null", *words]
        env = environment(tmp_path, STOKER_SERVER=up.url, LANG="C.UTF-8")
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=30, check=True)
        return done.stdout

    command = f"{shlex.join(stoker('top'))}; echo ended with $?; exec sleep 60"
    tmux("new-session", "-d", "-x", "80", "-y", "24", command)
    try:
        until(lambda: "1 pending" in tmux("capture-pane", "-p"), what="the picture")
        looks_right([line.rstrip() for line in tmux("capture-pane", "-p").split("\n")], jobs)
        tmux("send-keys", "?")
        until(lambda: "choose a row" in tmux("capture-pane", "-p"), what="the keys")
        tmux("send-keys", "x")
        until(lambda: "choose a row" not in tmux("capture-pane", "-p"), what="them to be closed")
        tmux("send-keys", "q")
        until(lambda: "ended with 0" in tmux("capture-pane", "-p"), what="the end")
    finally:
        tmux("kill-server")
