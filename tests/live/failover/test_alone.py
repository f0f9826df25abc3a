"""One that was one of several goes on alone only if no other one goes on, now or later."""

import pytest
from msgspec.structs import replace

from stoker.brain.domain.ids import Epoch, Position
from stoker.brain.domain.lease_record import LeaseRecord, Member
from stoker.live.main_pair import take_for_good
from tests.rig.sim_lease import SharedPlace, SimLease
from tests.rig.sim_ports import SimClock, SimEntropy
from tests.rig.virtual_loop import run_virtual

A, B = Member("a", "uid-a"), Member("b", "uid-b")
LAST = LeaseRecord(version=1, epoch=Epoch(3), holder=A, in_sync=(A, B), position=Position(9), mark="a.7")


def left_by(uid: str, end: int, last: LeaseRecord | None = LAST, *, down: bool = False) -> tuple[str, SharedPlace]:
    place = SharedPlace()
    if last is not None:
        place.link(last)
    place.down = down

    async def leave() -> str:
        return await take_for_good(SimLease(place, SimClock(), SimEntropy(1), who="a"), uid, Position(end), "mine")

    return run_virtual(leave), place


def test_the_one_that_was_active_takes_the_marker_so_that_no_other_one_ever_takes_over() -> None:
    why, place = left_by("uid-a", 9)
    assert why == ""
    assert place.newest == replace(LAST, version=2, in_sync=(A,), mark="mine")


def test_after_the_lease_was_given_back_so_does_whoever_was_in_sync() -> None:
    why, place = left_by("uid-b", 9, replace(LAST, holder=None))
    assert why == ""
    assert place.newest is not None
    assert (place.newest.holder, place.newest.in_sync) == (B, (B,))


@pytest.mark.parametrize(
    ("uid", "end", "last", "why"),
    [
        ("uid-b", 9, LAST, "a was active last"),
        ("uid-of-a-copy", 9, LAST, "a was active last, while this one isn't in sync"),
        (
            "uid-b",
            9,
            replace(LAST, holder=None, in_sync=(A,)),
            "given back, while this one isn't in sync",
        ),
        ("uid-a", 8, LAST, "its log ends at 8, before the marker's 9"),
        ("uid-a", 9, replace(LAST, lossy=True), "not yet left out the job ids that were lost"),
        ("uid-a", 9, None, "the marker says nothing"),
    ],
)
def test_nobody_else_does_and_is_told_why(uid: str, end: int, last: LeaseRecord | None, why: str) -> None:
    said, place = left_by(uid, end, last)
    assert why in said
    assert place.newest == last


def test_nobody_does_whom_the_marker_cannot_tell() -> None:
    why, _ = left_by("uid-a", 9, down=True)
    assert "the marker can't be reached" in why
