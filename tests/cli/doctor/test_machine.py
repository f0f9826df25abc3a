"""What the doctor makes of Python, clock and limits."""

import resource

from stoker.cli.doctor.finding import Level
from stoker.cli.doctor.machine import WRITTEN_MS, clock, clock_state, open_files, python


def test_this_python_is_new_enough_and_checks_itself() -> None:
    (said,) = python()
    assert said.level is Level.OK
    assert "assertions on" in said.what


def test_a_clock_before_stoker_was_written_is_wrong() -> None:
    (said,) = clock(0, WRITTEN_MS - 3 * 86_400_000)
    assert (said.level, said.what) == (Level.ERROR, "the clock stands 3 days before Stoker was written")
    assert said.fix


def test_a_clock_that_nothing_keeps_right_is_doubtful() -> None:
    (said,) = clock(5, WRITTEN_MS + 1)
    assert said.level is Level.WARNING


def test_a_synchronised_clock_and_one_that_cannot_be_asked_are_fine() -> None:
    assert [said.level for state in (0, None) for said in clock(state, WRITTEN_MS + 1)] == [Level.OK, Level.OK]


def test_asking_the_kernel_for_the_state_of_the_clock_changes_nothing_and_answers() -> None:
    assert clock_state() in (None, 0, 1, 2, 3, 4, 5)


def test_too_few_open_files_are_told_by_what_each_daemon_needs() -> None:
    def level(kind: str, soft: int) -> Level:
        (said,) = open_files(kind, (soft, 1 << 20))
        return said.level

    assert (level("control", 1_024), level("agent", 1_024)) == (Level.WARNING, Level.OK)
    assert level("control", 4_096) is level("control", resource.RLIM_INFINITY) is Level.OK
    assert level("agent", 64) is Level.ERROR
