"""What does a command do when it can't say what it has to say? No server is needed."""

import os
import signal
import subprocess
import sys

import pytest

STOKER = f"{sys.executable} -m stoker"
NO_SERVER = f"{STOKER} list --server http://127.0.0.1:1"


def shell(line: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["bash", "-c", line], capture_output=True, timeout=60, check=False)


def test_a_full_disk_under_the_output_is_one_clear_error() -> None:
    done = shell(f"{STOKER} --help > /dev/full")
    assert done.returncode == 1
    assert done.stderr.splitlines()[0] == b"error: the output can't be written: No space left on device"
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ("list --server http://127.0.0.1:1", 5),
        ("list --bad", 2),
        ("lisst", 2),
        ("signal 1", 2),
        ("submit --begin never -- true", 2),
    ],
)
def test_a_stderr_that_takes_nothing_does_not_change_the_exit_status(words: str, status: int) -> None:
    gone, broken = os.pipe()
    os.close(gone)
    with open("/dev/full", "wb") as full, open(broken, "wb") as pipe:
        for stderr, unbuffered in ((full, "1"), (full, ""), (pipe, "")):
            done = subprocess.run(
                [*STOKER.split(), *words.split()],
                stderr=stderr,
                stdout=subprocess.DEVNULL,
                env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
                timeout=60,
                check=False,
            )
            assert done.returncode == status, f"{stderr.name}, {unbuffered=}"


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_does_not_change_the_exit_status(closed: str) -> None:
    assert shell(f"{STOKER} --version {closed}").returncode == 0
    assert shell(f"{NO_SERVER} {closed}").returncode == 5


@pytest.mark.parametrize("words", ["list --name", "status", "submit --name x --env A=b --tenant", "node show"])
def test_bytes_that_are_not_utf_8_are_a_usage_error_wherever_they_stand(words: str) -> None:
    command = "-- true" if "submit" in words else ""
    done = shell(f"STOKER_SERVER=http://127.0.0.1:1 {STOKER} {words} $'\\xff\\xfe' {command}")
    assert (done.returncode, b"UTF-8" in done.stderr, b"Traceback" in done.stderr) == (2, True, False)


@pytest.mark.parametrize(
    ("module", "status"), [("stoker.cli.display.messages", -signal.SIGINT), ("stoker.cli.commands.listing", 130)]
)
def test_ctrl_c_while_the_program_is_still_importing_is_no_traceback(module: str, status: int) -> None:
    """The signal is sent by the import itself, so that it always comes in the middle."""
    program = (
        "import os, runpy, signal, sys\n"
        "class Late:\n"
        "    def find_spec(self, name, path, target=None):\n"
        f"        if name == {module!r}: os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Late())\n"
        "runpy.run_module('stoker', run_name='__main__')\n"
    )
    done = subprocess.run([sys.executable, "-c", program, "list"], capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (status, b"")
