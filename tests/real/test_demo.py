"""`stoker demo` shows what it says, in a pipe and on a terminal, and leaves nothing behind."""

import os
import pty
import re
import select
import signal
import subprocess
import time
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

import pytest

from stoker.cli.display.safe_text import width
from tests.real.forks import started
from tests.real.up_process import environment, left_behind, stoker, until

pytestmark = pytest.mark.timeout(180)

DEMO_S_MAX: Final = 90.0
"""The demo itself promises 30 s on two idle cores; tests share theirs."""
MARK: Final = "Who held which GPU when"


def test_it_runs_ten_real_jobs_checks_them_and_draws_what_happened(tmp_path: Path) -> None:
    out = tmp_path / "out"
    began_s = time.monotonic()
    done = subprocess.run(
        stoker("demo", "--out", str(out)),
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=DEMO_S_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert time.monotonic() - began_s < DEMO_S_MAX
    assert done.stderr == ""
    assert "\x1b" not in done.stdout, "no colour into a pipe"
    _progress_and_report(*done.stdout.split(MARK))
    _picture(out / "stoker-demo.svg")
    assert left_behind(tmp_path) == []
    assert [each.name for each in tmp_path.iterdir()] == ["out"], "its temporary folder is removed"


def _progress_and_report(progress: str, report: str) -> None:
    for name in ("train-small", "breaks", "flaky", "too-long", "mistake", "gang", "night-sweep", "hotfix"):
        assert re.search(rf"job \d+ {name}: ", progress), name
    assert re.search(r"why \d+\? it needs 8 GPU", progress)
    timeline = [line for line in report.splitlines() if re.match(r"(demo-\d)? +GPU\d", line)]
    assert len(timeline) == 8
    assert all(width(line) <= 80 for line in timeline)
    gang = re.search(r"(\d+)  gang", report)
    assert gang is not None
    assert all(f" {gang[1]} " in line for line in timeline), "the gang held every GPU at once"
    assert re.search(r"breaks +failed +1 .* 3 ", report)
    assert "FAILED" not in report
    assert "16 of 16 checks held" in report


def _picture(path: Path) -> None:
    root = ElementTree.fromstring(path.read_text(encoding="utf-8"))
    texts = [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert sum(bool(re.fullmatch(r"\d+ gang", text)) for text in texts) == 8
    assert any(re.fullmatch(r"\d+ mistake: cancelled", text) for text in texts)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_the_middle_leaves_nothing_running(tmp_path: Path, number: int) -> None:
    reads, writes = os.pipe()
    words = stoker("demo", "--out", str(tmp_path / "out"))
    with os.fdopen(reads) as said:
        with os.fdopen(writes) as out:
            demo = started(words, out=out, env=environment(tmp_path), new_session=True, forks=True)
        for line in said:
            if "mistake: running" in line:
                break
        demo.send_signal(number)
        rest = said.read()
    assert demo.wait(40) == 130
    assert "Traceback" not in rest
    assert left_behind(tmp_path) == []


def test_killing_it_leaves_nothing_running_either(tmp_path: Path) -> None:
    demo = subprocess.Popen(
        stoker("demo", "--out", str(tmp_path / "out")), env=environment(tmp_path), stdout=subprocess.DEVNULL
    )
    until(lambda: any("sleep 600" in line for line in left_behind(tmp_path)), 60, "its jobs to run")
    demo.kill()
    demo.wait()
    until(lambda: not left_behind(tmp_path), 40, "everything to end")


def test_a_folder_that_cannot_be_written_is_refused_before_anything_starts(tmp_path: Path) -> None:
    done = subprocess.run(
        stoker("demo", "--out", "/proc/nowhere"),
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1
    assert "--out" in done.stderr
    assert done.stdout == ""


def test_on_a_terminal_it_draws_in_colour_and_ctrl_c_ends_it(tmp_path: Path) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        env = environment(tmp_path, TERM="xterm-256color", COLUMNS="80", LINES="40")
        os.execvpe(stoker()[0], stoker("demo", "--out", str(tmp_path / "out")), env)
    seen = ""
    try:
        seen = _read_until(terminal, "cancel ", seen)
        assert "■" in seen, "GPUs that are held"
        assert "\x1b[" in seen
        os.write(terminal, b"\x03")
        seen = _read_until(terminal, None, seen)
    finally:
        os.close(terminal)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 130, seen[-2_000:]
    assert seen.rstrip().endswith("\x1b[?25h") or "\x1b[?25h" in seen, "the cursor is back"
    until(lambda: not left_behind(tmp_path), what="everything to end")


def _read_until(terminal: int, mark: str | None, seen: str) -> str:
    """Everything written until `mark`, or until the other side closes."""
    give_up_s = time.monotonic() + 60
    while time.monotonic() < give_up_s:
        if select.select([terminal], [], [], 0.5)[0]:
            try:
                more = os.read(terminal, 65_536).decode(errors="replace")
            except OSError:  # how a terminal says that the other side is gone
                return seen
            seen += more
            if mark is not None and mark in seen:
                return seen
    raise AssertionError(f"waited in vain for {mark!r}: {seen[-2_000:]}")
