"""`stoker list --watch`: a picture that stays fresh, and a control plane that goes away meanwhile."""

import json
import os
import re
import signal
from pathlib import Path

import pytest

from stoker.wire.client import JobBody
from tests.real.control_process import ControlProcess
from tests.real.forks import ran, started
from tests.real.screen import Terminal
from tests.real.up_process import environment, stoker, until

pytestmark = pytest.mark.timeout(120)


def watching(control: ControlProcess, *flags: str) -> list[str]:
    return stoker("list", "--server", control.url, "--watch", "0.2", *flags)


def shown(control: ControlProcess, folder: Path, **size: int) -> Terminal:
    return Terminal(watching(control), environment(folder, **control.environ), **size)


def submitted(control: ControlProcess, *names: str) -> None:
    with control.client() as client:
        client.submit_many([JobBody(command="true", name=name) for name in names])


def test_a_watched_list_is_redrawn_in_place_and_leaves_the_terminal_as_it_was(tmp_path: Path) -> None:
    with ControlProcess(tmp_path / "data") as control, shown(control, tmp_path) as terminal:
        terminal.until("STATE", "Ctrl-C ends it")
        submitted(control, "fresh")
        terminal.until("fresh", "pending")
        assert terminal.lines[1].split()[:2] == ["ID", "NAME"], "it stands where it stood"
        assert not terminal.cursor_shown
        assert b"\x1b[2J" not in terminal.written, "what is cleared first flickers"
        terminal.type("\x03")
        assert terminal.end() == 130
        assert terminal.cursor_shown
        assert "fresh" in terminal.text, "the last picture stays"
        assert b"Traceback" not in terminal.written


def test_a_watched_list_is_cut_to_the_window_and_never_folded(tmp_path: Path) -> None:
    with ControlProcess(tmp_path / "data") as control:
        submitted(control, *("x" * 200 for _ in range(30)))
        with shown(control, tmp_path, columns=60, lines=10) as terminal:
            until(lambda: sum("pending" in line for line in terminal.lines) == 7, what="a picture of seven rows")
            assert len(terminal.until("more").splitlines()) == 10
            terminal.resize(60, 20)
            until(lambda: sum("pending" in line for line in terminal.lines) == 17, what="the window to be filled")
            terminal.kill(signal.SIGTERM)
            assert terminal.end() == 143
            assert terminal.cursor_shown


def test_a_watch_outlives_its_control_plane_and_says_that_it_waits(tmp_path: Path) -> None:
    with ControlProcess(tmp_path / "data") as control:
        submitted(control, "kept")
        with shown(control, tmp_path, columns=120) as terminal:
            terminal.until("kept")
            control.kill()
            seen = terminal.until("waiting: no control plane answers", "[no_server]")
            assert "kept" in seen, "the last picture stays"
            control.start()
            terminal.until("kept", gone=["waiting"])
            terminal.type("\x03")
            assert terminal.end() == 130


def test_into_a_pipe_a_watch_prints_snapshots_with_a_blank_line_between(tmp_path: Path) -> None:
    with ControlProcess(tmp_path / "data") as control:
        submitted(control, "one")
        with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
            env = environment(tmp_path, **control.environ)
            watch = started(watching(control, "--json"), env=env, out=out, err=err)
        until(lambda: (tmp_path / "out").read_text().count("\n\n") >= 2, what="three snapshots")
        control.kill()
        until(lambda: "waiting:" in (tmp_path / "err").read_text(), what="it to say that it waits")
        control.start()
        submitted(control, "two")
        until(lambda: '"two"' in (tmp_path / "out").read_text(), what="a fresh snapshot")
        watch.send_signal(signal.SIGINT)
        assert watch.wait(20) == 130
        assert (tmp_path / "err").read_text().count("waiting:") == 1
        first, *_ = (tmp_path / "out").read_text().split("\n\n")
        assert json.loads(first)["jobs"][0]["name"] == "one"


@pytest.mark.parametrize(("flags", "status"), [((), 5), (("--state", "dreaming"), 2)])
def test_a_watch_that_can_never_succeed_ends_at_once(tmp_path: Path, flags: tuple[str, ...], status: int) -> None:
    with ControlProcess(tmp_path / "data") as control:
        server = f"http://127.0.0.1:{control.http_port if flags else 1}"
        words = ("list", "--server", server, "--watch", *flags)
        env = environment(tmp_path, **control.environ)
        done = ran(stoker(*words), env=env, timeout_s=30)
        assert (done.returncode, done.stdout) == (status, b"")


def test_a_dumb_terminal_gets_snapshots_too(tmp_path: Path) -> None:
    with ControlProcess(tmp_path / "data") as control:
        env = environment(tmp_path, TERM="dumb", **control.environ)
        with Terminal(watching(control), env) as terminal:
            until(lambda: terminal.text.count("STATE") >= 2, what="two snapshots")
            assert not re.search(rb"\x1b", terminal.written)
            os.kill(terminal.pid, signal.SIGINT)
            assert terminal.end() == 130
