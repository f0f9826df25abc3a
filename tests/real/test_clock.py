"""A control plane whose machine sleeps, or whose wall clock is corrected while it runs."""

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stoker.wire.client import JobBody
from tests.real.control_process import ControlProcess
from tests.real.moved_clocks import MovedClocks
from tests.real.say import Say

pytestmark = pytest.mark.skipif(not shutil.which("gcc"), reason="needs a C compiler")

HOUR_S = 3_600


@pytest.fixture
def clocks(tmp_path: Path) -> MovedClocks:
    return MovedClocks(tmp_path / "clocks")


@pytest.fixture
def control(tmp_path: Path, clocks: MovedClocks, monkeypatch: pytest.MonkeyPatch) -> Iterator[ControlProcess]:
    control = ControlProcess(tmp_path / "control")
    assert control.tokens
    with monkeypatch.context() as patched:
        for name, value in clocks.environ.items():
            patched.setenv(name, value)
        control.start()
    yield control
    control.kill()


def until(holds: Callable[[], bool], control: ControlProcess, within_s: float = 15) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, control.output()
        time.sleep(0.05)


@pytest.mark.parametrize("how", ["suspend", "correct"])
def test_a_job_begins_when_its_time_has_come_by_the_clock_as_it_is_now(
    how: str, control: ControlProcess, clocks: MovedClocks
) -> None:
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + HOUR_S - 60))
    with control.client() as client:
        job = client.submit(JobBody(command="true", begin=at)).id
        assert client.why(job).code == "begin_time"
        getattr(clocks, how)(HOUR_S)
        until(lambda: client.why(job).code == "no_nodes", control)
    assert "clock_moved" in control.output()


def test_a_clock_that_was_set_back_is_found_by_the_doctor(control: ControlProcess, clocks: MovedClocks) -> None:
    with control.client() as client:
        assert client.health().clock_ahead_ms < 1_000
        clocks.correct(-HOUR_S)
        until(lambda: client.health().clock_ahead_ms > 0.9 * HOUR_S * 1_000, control)
    told = Say(control.url, control.tokens.admin)("doctor").output
    assert " s behind this machine's" in told
    assert "ahead of its clock; it was set back" in told
