"""Many followers of one output: T1 to T5 of `control.output_reader`, on virtual time."""

import asyncio

import pytest

from stoker.brain.domain.errors import StokerError
from stoker.control import output_reader
from tests.control.followed_output import KIB, LINE, Follower, followed, place, write_for
from tests.control.stage import virtual
from tests.rig.sim_ports import SimClock


@virtual
async def test_twenty_followers_get_every_byte_once_and_the_node_is_read_once() -> None:
    async with followed() as (node, tails):
        followers = [Follower(tails) for _ in range(20)]
        await write_for(node, 10, 1_000_000)
        node.end()
        await asyncio.wait([each.reading for each in followers], timeout=5)
        assert all(each.got == node.written for each in followers)
        alone = [offset for offset, wait_ms in node.asked if not wait_ms]
        assert len(alone) <= 40, "each comes to the end by itself"
        assert len(node.asked) < 40 + 10 / output_reader.GATHER_S + 5
        assert tails.held_bytes <= output_reader.TAIL_BYTES_MAX


@virtual
async def test_a_burst_is_brought_without_pause() -> None:
    async with followed() as (node, tails):
        follower = Follower(tails)
        await asyncio.sleep(1)
        began = SimClock().mono()
        node.write(LINE % 1 * 100_000)
        node.end()
        await follower.reading
        assert follower.got == node.written
        assert SimClock().mono() - began < 1


@virtual
async def test_nothing_is_asked_of_the_node_while_nobody_waits_for_it() -> None:
    async with followed() as (node, tails):
        node.write(b"one\n")
        assert (await tails.read(place(), 0, KIB, 20)).data == b"one\n"
        waiting = asyncio.ensure_future(tails.read(place(), 4, KIB, 20))
        await asyncio.sleep(1)
        node.write(b"two\n")
        assert (await waiting).data == b"two\n"
        asked = len(node.asked)
        await write_for(node, 60, 10_000)
        assert len(node.asked) == asked
        assert node.waiting == 0


@virtual
async def test_a_follower_who_hangs_up_is_forgotten_and_so_is_its_wait() -> None:
    async with followed() as (node, tails):
        waiting = asyncio.ensure_future(tails.read(place(), 0, KIB, 20))
        await asyncio.sleep(1)
        assert node.waiting == 1
        waiting.cancel()
        node.write(b"late\n")
        await asyncio.sleep(1)
        assert tails.held_bytes == 5, "for a follower who is only busy"
        await asyncio.sleep(output_reader.LINGER_S)
        assert (node.waiting, tails.held_bytes) == (0, 0)
        asked = len(node.asked)
        await asyncio.sleep(100)
        assert len(node.asked) == asked


@virtual
async def test_a_slow_follower_reads_by_itself_and_holds_nobody() -> None:
    """It takes 100 KB a second of the million that are written."""
    async with followed() as (node, tails):
        quick = Follower(tails)
        slow = Follower(tails, pause_s=0.5, limit=50 * KIB)
        behind_s = []
        for number in range(100):
            node.write((LINE % number) * 500)
            await asyncio.sleep(0.05)
            behind_s.append((len(node.written) - len(quick.got)) / 1_000_000)
        assert sorted(behind_s)[95] <= output_reader.GATHER_S + 0.06
        assert len(slow.got) < len(node.written) - output_reader.TAIL_BYTES_MAX
        assert slow.got == node.written[: len(slow.got)]
        node.end()
        await slow.reading
        assert slow.got == quick.got == node.written


@virtual
async def test_a_follower_who_stalls_for_long_goes_on_where_it_was() -> None:
    async with followed() as (node, tails):
        other = Follower(tails)
        stalls = Follower(tails, pause_s=30)
        await write_for(node, 20, 1_000_000)
        node.end()
        await stalls.reading
        assert stalls.got == other.got == node.written


@virtual
async def test_what_the_node_dropped_is_skipped_and_shows_in_the_offset() -> None:
    async with followed() as (node, tails):
        follower = Follower(tails)
        node.write(b"a" * 1_000)
        await asyncio.sleep(1)
        node.write(b"b" * 100_000)
        node.drop(90_000)
        await asyncio.sleep(1)
        node.write(b"c" * 10)
        node.end()
        await follower.reading
        assert follower.gaps == [(1_000, 90_000)]
        assert follower.got == b"a" * 1_000 + b"b" * 11_000 + b"c" * 10


@virtual
async def test_a_read_from_the_end_waits_for_what_comes_after_it() -> None:
    async with followed() as (node, tails):
        waiting = asyncio.ensure_future(tails.read(place(), -100, KIB, 20))
        await asyncio.sleep(3)
        node.write(b"first\n")
        chunk = await waiting
        assert (chunk.offset, chunk.data) == (0, b"first\n")
        assert (await tails.read(place(), -3, KIB, 20)).data == b"st\n"


@virtual
async def test_a_wait_ends_in_time_with_an_empty_answer_at_its_offset() -> None:
    async with followed() as (node, tails):
        node.write(b"one\n")
        began = SimClock().mono()
        chunk = await tails.read(place(), 4, KIB, 20)
        assert (chunk.offset, chunk.data, chunk.size, chunk.ended) == (4, b"", 4, False)
        assert 20 <= SimClock().mono() - began < 20.5


@virtual
async def test_an_end_reaches_all_who_wait_at_once() -> None:
    async with followed() as (node, tails):
        waiting = [asyncio.ensure_future(tails.read(place(), 0, KIB, 20)) for _ in range(20)]
        await asyncio.sleep(5)
        node.end()
        await asyncio.wait(waiting, timeout=1)
        assert all(each.result().ended and not each.result().data for each in waiting)


@virtual
async def test_an_offset_beyond_all_that_was_written_is_given_nothing_that_lies_before_it() -> None:
    async with followed() as (node, tails):
        node.write(b"one\n")
        waiting = asyncio.ensure_future(tails.read(place(), 1_000, KIB, 20))
        await asyncio.sleep(1)
        node.write(b"two\n")
        assert (await waiting).data == b""


# --- a node that can't answer ------------------------------------------------------------------------------------


@virtual
async def test_a_follower_waits_through_a_restart_and_gets_what_was_written_meanwhile() -> None:
    async with followed() as (node, tails):
        followers = [Follower(tails) for _ in range(5)]
        node.write(b"before\n")
        await asyncio.sleep(1)
        node.refuse("node_unreachable")
        await asyncio.sleep(5)
        node.write(b"meanwhile\n")
        node.refuse("")
        await asyncio.sleep(1)
        node.write(b"after\n")
        node.end()
        await asyncio.wait([each.reading for each in followers], timeout=5)
        assert all(each.got == b"before\nmeanwhile\nafter\n" for each in followers)


@virtual
async def test_one_wait_outlasts_a_restart_of_the_node() -> None:
    async with followed() as (node, tails):
        waiting = asyncio.ensure_future(tails.read(place(), 0, KIB, 20))
        await asyncio.sleep(3)
        node.refuse("node_unreachable")
        await asyncio.sleep(3)
        node.refuse("")
        await asyncio.sleep(3)
        assert not waiting.done()
        node.write(b"one\n")
        assert (await waiting).data == b"one\n"


@pytest.mark.parametrize("code", ["node_unreachable", "too_many_streams", "log_unavailable"])
def test_a_node_that_stays_away_is_told_when_the_wait_is_over(code: str) -> None:
    @virtual
    async def story() -> None:
        async with followed() as (node, tails):
            node.refuse(code)
            began = SimClock().mono()
            with pytest.raises(StokerError) as refused:
                await tails.read(place(), 0, KIB, 20)
            assert refused.value.refusal.code == code
            assert 20 <= SimClock().mono() - began < 20.5
            assert len(node.asked) <= 1 + 20 / output_reader.RETRY_S

    story()


@virtual
async def test_output_that_an_ended_attempt_does_not_have_is_refused_at_once() -> None:
    async with followed() as (node, tails):
        node.refuse("log_unavailable")
        node.is_over = True
        began = SimClock().mono()
        with pytest.raises(StokerError):
            await tails.read(place(), 0, KIB, 20)
        assert SimClock().mono() - began < 0.1


@virtual
async def test_a_read_that_does_not_wait_is_refused_at_once() -> None:
    async with followed() as (node, tails):
        node.refuse("node_unreachable")
        began = SimClock().mono()
        with pytest.raises(StokerError):
            await tails.read(place(), 0, KIB, 0)
        assert SimClock().mono() - began < 0.1


# --- bounds ------------------------------------------------------------------------------------------------------


@virtual
async def test_followers_beyond_the_bound_are_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_reader, "FOLLOWERS_MAX", 3)
    async with followed() as (node, tails):
        waiting = [asyncio.ensure_future(tails.read(place(), 0, KIB, 20)) for _ in range(3)]
        await asyncio.sleep(1)
        with pytest.raises(StokerError) as refused:
            await tails.read(place(), 0, KIB, 20)
        assert refused.value.refusal.code == "too_many_streams"
        node.end()
        await asyncio.wait(waiting, timeout=1)
        assert (await tails.read(place(), 0, KIB, 20)).ended, "there is room again"


@virtual
async def test_outputs_beyond_the_bound_are_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_reader, "TAILS_MAX", 2)
    async with followed() as (node, tails):
        waiting = [asyncio.ensure_future(tails.read(place(job), 0, KIB, 20)) for job in (1, 2, 1, 2)]
        await asyncio.sleep(1)
        with pytest.raises(StokerError) as refused:
            await tails.read(place(3), 0, KIB, 2)
        assert refused.value.refusal.code == "too_many_streams"
        node.write(b"one\n")
        await asyncio.wait(waiting, timeout=1)
        assert (await tails.read(place(3), 0, KIB, 2)).data == b"one\n", "what is there can be read"


@virtual
async def test_an_output_without_news_for_longest_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_reader, "TAILS_BYTES_MAX", 4_000)
    async with followed() as (node, tails):
        first = asyncio.ensure_future(tails.read(place(1), 0, KIB, 60))
        await asyncio.sleep(1)
        node.write(b"a" * 1_000)
        await first
        first = asyncio.ensure_future(tails.read(place(1), 1_000, KIB, 60))
        await asyncio.sleep(1)
        second = asyncio.ensure_future(tails.read(place(2), 1_000, KIB, 60))
        await asyncio.sleep(1)
        node.write(b"b" * 1_000)
        await asyncio.wait({first, second})
        first = asyncio.ensure_future(tails.read(place(1), 2_000, KIB, 60))
        await asyncio.sleep(1)
        node.write(b"c" * 2_000)
        await first
        asked = len(node.asked)
        assert (await tails.read(place(1), 2_000, KIB, 1)).data
        assert len(node.asked) == asked, "it had news just now"
        assert (await tails.read(place(2), 1_000, KIB, 1)).data
        assert len(node.asked) == asked + 1


@virtual
async def test_what_is_held_of_all_outputs_together_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve outputs are followed, two MiB may be held: nobody loses anything by it."""
    monkeypatch.setattr(output_reader, "TAILS_BYTES_MAX", 2 << 20)
    async with followed() as (node, tails):
        followers = [Follower(tails, job=job) for job in range(12)]
        held = []
        for number in range(80):
            node.write((LINE % number) * 500)
            await asyncio.sleep(0.05)
            held.append(tails.held_bytes)
        node.end()
        await asyncio.wait([each.reading for each in followers], timeout=30)
        assert 1 << 20 < max(held) <= (2 << 20) + output_reader.CREDIT_BYTES
        assert all(each.got == node.written for each in followers)


@virtual
async def test_after_the_close_everybody_is_answered_with_what_there_is() -> None:
    async with followed() as (node, tails):
        node.write(b"one\n")
        waiting = [asyncio.ensure_future(tails.read(place(), 4, KIB, 20)) for _ in range(5)]
        other = asyncio.ensure_future(tails.read(place(2), 4, KIB, 20))
        await asyncio.sleep(1)
        tails.close()
        await asyncio.wait([*waiting, other], timeout=0.1)
        assert all(each.result().data == b"" and not each.result().ended for each in [*waiting, other])
        began = SimClock().mono()
        assert (await tails.read(place(), 4, KIB, 20)).data == b""
        assert SimClock().mono() - began < 0.1


@virtual
async def test_a_close_while_a_follower_looks_for_the_end_leaves_nobody_waiting() -> None:
    async with followed() as (node, tails):
        node.write(b"one\n")
        looking = asyncio.ensure_future(tails.read(place(), 4, KIB, 20))
        await asyncio.sleep(0.001)
        assert node.asked
        tails.close()
        await asyncio.wait({looking}, timeout=0.1)
        assert looking.result().data == b""
