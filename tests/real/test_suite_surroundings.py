"""Tests pass whatever signals, umask, locale and terminal the caller has, as in the background of a script."""

import locale
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.real.forks import on_path, requests_to
from tests.real.runner_node import is_alive
from tests.real.up_process import environment

pytestmark = pytest.mark.timeout(120)

ROOT = Path(__file__).resolve().parents[2]
ODD = {
    "LC_ALL": "POSIX",
    "PYTHONUTF8": "0",
    "PYTHONCOERCECLOCALE": "0",
    "TERM": "dumb",
    "COLUMNS": "20",
    "NO_COLOR": "1",
}
"""In such a locale what isn't ASCII can be neither read nor written, unless somebody says how."""
ODDLY = """
import os, signal, sys
for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD):
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
os.umask(0o077)
os.execv(sys.executable, [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", *sys.argv[1:]])
"""


def test_programs_are_started_with_default_signals_and_the_usual_umask_locale_and_terminal() -> None:
    line = "grep -E 'Sig(Blk|Ign)' /proc/self/status | cut -f 2; umask; echo $LC_ALL $LANG $TERM $NO_COLOR"
    said = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True)
    blocked, ignored, *others = said.stdout.split()
    assert _own_signals(blocked) == _own_signals(ignored) == 0
    assert others == ["0022", "C.UTF-8", "xterm"]
    assert locale.getpreferredencoding(do_setlocale=False).lower() == "utf-8"


def _own_signals(mask: str) -> int:
    """Of a mask in hexadecimal digits the signals that a program can set: 32 and 33 are the C library's own."""
    return int(mask, 16) & sum(1 << number - 1 for number in signal.valid_signals())


def test_the_suite_passes_with_signals_ignored_and_blocked_an_odd_umask_and_an_ascii_locale() -> None:
    files = ("tests/real/test_suite_surroundings.py", "tests/real/test_cli_streams.py")
    done = subprocess.run(
        [sys.executable, "-c", ODDLY, *files, "-k", "programs_are_started or ctrl_c"],
        cwd=ROOT,
        env={**os.environ, **ODD},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout


def test_a_command_of_a_shell_script_has_its_streams_and_ends_as_the_command_does(tmp_path: Path) -> None:
    """Though it is a fork of a process that has imported all."""
    line = """
        stoker --version | tr a-z A-Z
        stoker nonsense 2>&1 >/dev/null | grep -c nonsense
        stoker nonsense 2>/dev/null || echo ended with $?
        env -u STOKER_FORKS stoker --version"""
    asks = on_path(tmp_path / "bin" / "stoker")
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", line],
        env=environment(tmp_path, PATH=path, **asks),
        pass_fds=[requests_to()],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    loud, refused, ended, scratch = done.stdout.splitlines()
    assert loud == scratch.upper()
    assert (refused, ended) == ("1", "ended with 2")
    assert done.stderr == ""


LEAVES = """
import gc, subprocess, sys
from tests.real.forks import ran, started

SLEEP = [sys.executable, "-c", "import time; time.sleep(300)"]

def test_a_test_that_fails_while_its_programs_run():
    unread = subprocess.Popen(SLEEP, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    print("started", unread.pid)
    print("started", started(SLEEP, out=sys.__stderr__).pid)
    raise AssertionError

def test_the_next_one_is_not_warned_of_what_the_failed_one_left():
    sys.last_value = sys.last_traceback = sys.last_exc = None
    gc.collect()

def test_the_next_one_has_programs_forked_all_the_same():
    assert ran([sys.executable, "-c", "print(7)"]).stdout == b"7\\n"
"""


def test_what_a_failed_test_has_started_ends_with_it(tmp_path: Path) -> None:
    (tmp_path / "test_leaves.py").write_text(LEAVES)
    words = ("-m", "pytest", "-q", "-n0", "-c", "pyproject.toml", "-p", "no:cacheprovider", "-p", "tests.real.conftest")
    done = subprocess.run(
        [sys.executable, *words, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False
    )
    assert "1 failed, 2 passed" in done.stdout, done.stdout + done.stderr
    pids = {int(pid) for pid in re.findall(r"^started ([0-9]+)", done.stdout, re.MULTILINE)}
    assert len(pids) == 2
    assert not any(is_alive(pid) for pid in pids)
