"""Programs that are run within a time, and of which one may be held by the kernel although it was killed."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from stoker.adapters.bounded_run import BoundedRunner, ProgramTimeout
from tests.real.agent_process import alive, until

FREEZER = Path("/sys/fs/cgroup/freezer")


@pytest.fixture
def freezer() -> Iterator[Path]:
    """A cgroup: what is frozen in it isn't ended by a kill, as if it waited in a driver that is stuck."""
    group = FREEZER / f"stoker-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as fault:
        pytest.skip(f"no cgroup of the freezer can be made here: {fault}")
    try:
        yield group
    finally:
        (group / "freezer.state").write_text("THAWED")
        until(lambda: not (group / "cgroup.procs").read_text(), "what was frozen has ended")
        group.rmdir()


def test_what_was_said_before_the_time_was_up_is_kept() -> None:
    with pytest.raises(ProgramTimeout, match=r"^it didn't answer within 1 s$") as raised:
        BoundedRunner().run(["sh", "-c", "echo half; sleep 600"], 1, "it")
    assert raised.value.out == "half\n"


def test_a_program_that_has_ended_is_answered_although_a_child_of_it_has_its_output_open(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    said = BoundedRunner().run(["sh", "-c", f"sleep 600 & echo $! > {told}; echo done; exit 3"], 20)
    assert (said.out, said.status) == ("done\n", 3)
    until(lambda: not alive(int(told.read_text())), "its child is ended too")


def test_nothing_more_is_started_while_a_program_that_was_killed_does_not_end(freezer: Path, tmp_path: Path) -> None:
    runner, told = BoundedRunner(), tmp_path / "pid"
    freezes = f"echo $$ | tee {told} > {freezer}/cgroup.procs; echo FROZEN > {freezer}/freezer.state; sleep 600"
    with pytest.raises(ProgramTimeout, match="driver didn't answer"):
        runner.run(["sh", "-c", freezes], 1, "driver")
    for _ in range(2):
        with pytest.raises(
            ProgramTimeout, match=f"isn't asked: process {told.read_text().strip()}, which asked before"
        ):
            runner.run(["touch", str(tmp_path / "started")], 5, "driver")
    assert not (tmp_path / "started").exists()
    (freezer / "freezer.state").write_text("THAWED")

    def is_asked_again() -> bool:
        with suppress(ProgramTimeout):
            return runner.run(["true"], 5).status == 0
        return False

    until(is_asked_again, "it has ended")
