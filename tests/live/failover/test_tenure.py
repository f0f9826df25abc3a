"""What the lives of two control planes are, one after the other, on virtual time."""

import asyncio

import pytest

from stoker.brain.domain.errors import StokerError
from stoker.brain.failover.inputs import ControlRole
from stoker.brain.failover.timing import DEFAULT
from stoker.brain.state.commands import Submit
from stoker.control.failover_control import not_active
from stoker.ports import LogDamaged
from tests.control.stage import ANNA, spec
from tests.live.failover.two import Two, lived


def test_a_new_pair_agrees_on_one_and_the_other_one_is_soon_in_sync() -> None:
    async def story(two: Two) -> None:
        await two.begin()
        assert two.active is two.a, "both logs are empty, so it is the one whose name comes first"

    lived(story)


def test_a_new_control_plane_waits_for_the_other_one_it_is_told_of() -> None:
    async def story(two: Two) -> None:
        two.b.start()
        await asyncio.sleep(60)
        assert two.place.newest is None
        assert not two.b.is_active

    lived(story)


def test_what_was_acknowledged_is_there_after_the_active_one_died_and_a_take_over_takes_six_seconds_at_most() -> None:
    async def story(two: Two) -> None:
        await two.begin()
        jobs = [await two.a.submit() for _ in range(20)]
        await two.a.kill()
        assert await two.until(lambda: two.b.is_active) <= 6.0
        assert two.b.jobs == jobs
        assert await two.b.submit() == jobs[-1] + 1

    lived(story)


def test_one_that_died_comes_back_as_the_standby_and_is_in_sync_again() -> None:
    async def story(two: Two) -> None:
        await two.begin()
        await two.a.submit()
        await two.a.kill()
        await two.until(lambda: two.b.is_active)
        two.a.start()
        await two.until_whole()
        assert two.active is two.b
        await two.b.submit()
        await two.until(lambda: two.a.jobs == two.b.jobs)

    lived(story)


def test_one_that_was_killed_and_is_back_at_once_goes_on_being_active() -> None:
    async def story(two: Two) -> None:
        await two.begin()
        await two.a.kill()
        two.a.start()
        assert await two.until(lambda: two.a.is_active or two.b.is_active) < 2.0
        assert two.a.is_active

    lived(story)


def test_one_that_is_stopped_on_purpose_hands_over_at_once() -> None:
    async def story(two: Two) -> None:
        await two.begin()
        await two.a.submit()
        two.a.stop.set()
        assert await two.until(lambda: two.b.is_active) < 2.0
        assert two.b.jobs == [1]

    lived(story)


def test_a_stopped_process_that_goes_on_after_a_take_over_acknowledges_nothing() -> None:
    async def story(two: Two) -> None:
        await two.begin()
        await two.a.submit()
        old = two.a.control
        assert old is not None
        two.a.process.stop()
        asked = two.a.process.visit(old.committer.ask(Submit(by=ANNA, specs=(spec(),))))
        await two.until(lambda: two.b.is_active)
        await two.b.submit()
        two.a.process.go_on()
        with pytest.raises(StokerError) as refused:
            await asked
        assert refused.value.refusal.code in ("lease_lost", "not_active")
        await two.until_whole()
        assert two.a.jobs == [1, 2]
        assert two.active is two.b

    lived(story)


def test_an_active_one_that_cannot_reach_the_marker_steps_down_and_serves_reads_and_the_other_takes_over() -> None:
    async def story(two: Two) -> None:
        await two.begin()
        await two.a.submit()
        two.place.cut.add("a")
        await two.until(lambda: two.b.is_active)
        await two.until(lambda: two.a.jobs == [1])
        assert not two.a.is_active
        two.place.cut.clear()
        await two.until_whole()
        assert two.active is two.b

    lived(story)


def test_while_nobody_reaches_the_marker_nobody_is_active_and_then_one_is_again() -> None:
    async def story(two: Two) -> None:
        await two.begin()
        await two.a.submit()
        two.place.down = True
        await two.until(lambda: not two.a.is_active)
        await asyncio.sleep(60)
        assert not two.a.is_active
        assert not two.b.is_active
        assert two.b.driver is not None
        view = two.b.driver.view()
        assert (view.record_reached, view.epoch) == (False, 1), "what was last known, and that it is no more than that"
        assert 50 < view.unchanged_s < 70
        refusal = not_active(view)
        assert "was active by the newest version of the marker that it knows, first seen" in refusal.hint
        assert "s ago; here it is: the marker can't be reached" in refusal.hint
        assert refusal.facts["active"] == "", "whoever only asks this one is to go on asking: it may become active"
        two.place.down = False
        await two.until_whole()
        assert two.a.jobs == [1]

    lived(story)


def test_answers_wait_for_the_standby_and_go_on_without_it_once_the_marker_says_so() -> None:
    async def story(two: Two) -> None:
        await two.begin()
        await two.b.kill()
        began = asyncio.get_running_loop().time()
        await two.a.submit()
        assert DEFAULT.standby_timeout_s / 2 < asyncio.get_running_loop().time() - began < 6.0
        assert two.place.newest is not None
        assert [member.name for member in two.place.newest.in_sync] == ["a"]

    lived(story)


def test_a_standby_out_of_sync_never_takes_over_unless_somebody_says_so() -> None:
    async def story(two: Two) -> None:
        await two.begin()
        await two.b.kill()
        await two.a.submit()
        await two.a.kill()
        two.b.start()
        await asyncio.sleep(120)
        assert not two.b.is_active
        assert two.b.driver is not None
        view = two.b.driver.view()
        assert view.role is ControlRole.STANDBY
        assert view.why == "not in the in-sync set"
        assert (view.active, view.silent, view.record_reached) == ("a", True, True)
        refusal = not_active(view)
        assert refusal.facts["active"] == "", "nobody is sent to one that is dead"
        assert "a was active, and hasn't renewed its lease for at least 1" in refusal.hint
        assert refusal.hint.endswith("here it is: not in the in-sync set")
        await two.b.process.visit(two.b.driver.promote(ANNA))
        assert two.b.is_active
        assert await two.b.submit() > 1_000_000

    lived(story)


def test_a_full_disk_makes_the_active_one_hand_over_and_serve_reads_until_there_is_room() -> None:
    async def story(two: Two) -> None:
        await two.begin()
        await two.a.submit()
        two.a.disk.full = True
        with pytest.raises(StokerError):
            await two.a.submit()
        assert await two.until(lambda: two.b.is_active) < 6.0
        await two.until(lambda: two.a.jobs == [1])
        await two.b.submit()
        two.a.disk.full = False
        await two.until_whole()
        assert two.a.jobs == two.b.jobs

    lived(story)


def test_a_standby_that_breaks_over_what_it_was_sent_begins_anew_and_follows() -> None:
    async def story(two: Two) -> None:
        await two.begin()
        assert two.b.driver is not None

        def breaks(rows: object) -> None:
            raise LogDamaged("this can't be replayed")

        two.b.driver._backend._follower._replay = breaks  # type: ignore[attr-defined]  # an own log has one
        await two.a.submit()
        await two.until_whole()
        assert two.b.jobs == [1]

    lived(story)


def test_one_that_was_stopped_past_its_lease_calls_nothing_that_it_shows_fresh() -> None:
    async def story(two: Two) -> None:
        await two.begin()
        old = two.a.driver
        assert old is not None
        assert not old.follows
        two.a.process.stop()
        await two.until(lambda: two.b.is_active)
        assert old.machine.role is ControlRole.ACTIVE, "it hasn't had the time to notice"
        assert old.follows

    lived(story)


def test_a_disk_that_hangs_makes_the_active_one_hand_over_to_one_that_is_in_sync() -> None:
    async def story(two: Two) -> None:
        await two.begin()
        two.a.disk.stall_s = 100_000.0
        asked = asyncio.ensure_future(two.a.submit())
        assert await two.until(lambda: two.b.is_active) < 6 * DEFAULT.lease_s
        with pytest.raises(StokerError):
            await asked
        assert await two.b.submit() == 2, "the first was on its disk, though nobody was told so"

    lived(story)


def test_a_disk_that_hangs_for_a_while_or_while_nobody_else_is_in_sync_is_waited_for() -> None:
    async def story(two: Two) -> None:
        await two.begin()
        two.a.disk.stall_s = 2 * DEFAULT.lease_s
        await two.a.submit()
        await two.b.kill()
        two.a.disk.stall_s = 0.0
        await two.a.submit()
        two.a.disk.stall_s = 10 * DEFAULT.lease_s
        await two.a.submit()
        assert two.active is two.a

    lived(story)


def test_what_was_acknowledged_in_mode_async_is_there_after_a_clean_stop() -> None:
    async def story(two: Two) -> None:
        for one in two.both:
            one.mode = "async"
        await two.begin()
        two.network.slow_s = 0.3
        await two.a.submit()
        two.a.stop.set()
        await two.until(lambda: two.b.is_active)
        assert two.b.jobs == [1]

    lived(story)


def test_a_lease_that_is_given_back_says_how_far_everything_reached() -> None:
    """In mode async whoever takes over knows by that whether it may lack something."""

    async def story(two: Two) -> None:
        await two.begin()
        given_back: list[int] = []
        two.place.on_put = lambda marker: given_back.append(marker.position) if marker.holder is None else None
        for _ in range(5):
            await two.a.submit()
        assert two.a.control is not None
        committer = two.a.control.committer
        two.a.stop.set()
        await two.until(lambda: two.b.is_active)
        assert given_back == [committer.durable]

    lived(story)
