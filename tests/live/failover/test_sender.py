"""What the active sends: rules F1 to F5 of `live.failover.sender`."""

import asyncio
from contextlib import aclosing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.brain.domain.errors import StokerError, refuse
from stoker.brain.domain.ids import Epoch, Position
from stoker.live.failover.links import BackupPiece, Frame, Offer, Records, Welcome
from stoker.live.failover.sender import FRAME_BYTES, FRAME_RECORDS, PIECE_BYTES, Sender, common_log_end
from stoker.ports import HistoryFailed
from tests.control.stage import virtual
from tests.live.failover.pair import CLUSTER, A, Active, B, FakeBackups, disk_of, records


def ends(*pairs: tuple[int, int]) -> tuple[tuple[Epoch, Position], ...]:
    return tuple((Epoch(epoch), Position(end)) for epoch, end in pairs)


def offer(
    *pairs: tuple[int, int], position: int | None = None, cluster_id: str = CLUSTER, wants_backup: bool = False
) -> Offer:
    end = position if position is not None else (pairs[0][1] if pairs else 0)
    return Offer(
        member=B,
        cluster_id=cluster_id if end else "",
        position=Position(end),
        ends=ends(*pairs),
        wants_backup=wants_backup,
    )


async def first(sender: Sender, count: int) -> list[Frame]:
    """The next frames; then the stream is left."""
    found: list[Frame] = []
    async with aclosing(sender.frames()) as frames:
        async for frame in frames:
            found.append(frame)
            if len(found) == count:
                break
    return found


# --- where two logs part (F1) --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mine", "theirs", "common"),
    [
        pytest.param(ends((2, 20), (1, 10)), ends((2, 15), (1, 10)), 15, id="the follower lags"),
        pytest.param(ends((2, 20), (1, 10)), ends((2, 20), (1, 10)), 20, id="both have all"),
        pytest.param(ends((3, 30), (2, 20)), ends((2, 25), (1, 10)), 20, id="the follower was active and had more"),
        pytest.param(ends((3, 30), (1, 10)), ends((2, 25), (1, 12)), 10, id="epoch 2 never came over"),
        pytest.param(ends((3, 30), (2, 20)), ends((2, 18), (1, 10)), 18, id="it lacks the end of an epoch"),
        pytest.param(ends((5, 50)), ends((4, 40)), None, id="nothing in common"),
        pytest.param(ends(), ends((4, 40)), None, id="the active has nothing"),
    ],
)
def test_logs_are_alike_up_to_the_end_of_the_newest_epoch_of_both(
    mine: tuple[tuple[Epoch, Position], ...], theirs: tuple[tuple[Epoch, Position], ...], common: int | None
) -> None:
    assert common_log_end(mine, theirs) == common


@given(
    shared=st.lists(st.integers(1, 5), max_size=6),
    mine=st.lists(st.sampled_from((7, 9, 11)), max_size=12).map(sorted),
    theirs=st.lists(st.sampled_from((6, 8, 10)), max_size=12).map(sorted),
    lost=st.integers(0, 30),
)
def test_what_is_alike_is_never_more_and_where_it_matters_never_less_than_what_is_the_same(
    shared: list[int], mine: list[int], theirs: list[int], lost: int
) -> None:
    """Logs that were one up to some record and then had different actives; of the follower's the end may be lost."""
    common = [epoch for epoch, count in enumerate(shared, start=1) for _ in range(count)]
    active, follower = common + mine, (common + theirs)[: max(0, len(common + theirs) - lost)]
    same = 0
    while same < min(len(active), len(follower)) and active[same] == follower[same]:
        same += 1

    def told(log: list[int]) -> tuple[tuple[Epoch, Position], ...]:
        last = {epoch: at for at, epoch in enumerate(log, start=1)}
        return ends(*sorted(last.items(), reverse=True))

    assert (common_log_end(told(active), told(follower)) or 0) == same


# --- records (F3) ---------------------------------------------------------------------------------------------------


@virtual
async def test_records_of_several_epochs_come_in_order_each_under_its_own() -> None:
    active = Active(disk_of((1, 3), (2, 5)))
    await active.lead(4)
    welcome, *rows = await first(active.replication.accept(offer((1, 2))), 3)
    assert welcome == Welcome(leader=A, epoch=Epoch(4), position=Position(2))
    assert [
        (frame.leader_epoch, frame.epoch, frame.position, list(frame.records))
        for frame in rows
        if isinstance(frame, Records)
    ] == [
        (4, 1, 2, records(3, 3)),
        (4, 2, 3, records(4, 5)),
    ]


@virtual
async def test_an_empty_follower_is_told_all_from_the_first_record_on() -> None:
    active = Active(disk_of((1, 3)))
    await active.lead(2)
    welcome, rows = await first(active.replication.accept(offer()), 2)
    assert isinstance(welcome, Welcome)
    assert welcome.position == 0
    assert isinstance(rows, Records)
    assert list(rows.records) == records(1, 3)


@virtual
async def test_a_follower_that_must_cut_its_log_is_sent_nothing_before_it_has_done_so() -> None:
    active = Active(disk_of((1, 10), (3, 20)))
    await active.lead(3)
    assert await first(active.replication.accept(offer((2, 15), (1, 10))), 5) == [
        Welcome(leader=A, epoch=Epoch(3), position=Position(10))
    ]


@virtual
async def test_frames_are_bounded_in_records_and_in_bytes() -> None:
    active = Active(disk_of((1, 2 * FRAME_RECORDS + 1)))
    active.disk.put(Epoch(1), [b"x" * (FRAME_BYTES // 2 + 1)] * 3 + [b"y" * (2 * FRAME_BYTES)])
    await active.lead(1)
    frames = await first(active.replication.accept(offer()), 7)
    sizes = [len(frame.records) for frame in frames if isinstance(frame, Records)]
    assert sizes == [FRAME_RECORDS, FRAME_RECORDS, 2, 1, 1, 1]


@virtual
async def test_a_follower_that_reads_slowly_is_fed_from_the_log_and_the_writer_never_waits() -> None:
    active = Active(disk_of((1, 10)))
    await active.lead(1)
    sender = active.replication.accept(offer((1, 10)))
    seen: list[int] = []
    async with aclosing(sender.frames()) as frames:
        assert isinstance(await anext(frames), Welcome)
        for _ in range(30):
            await active.write(1_000)
        assert active.replication.ring.begin > 10, "the ring is too large for this test"
        async for frame in frames:
            assert isinstance(frame, Records)
            assert frame.position == 10 + len(seen)
            seen += range(len(frame.records))
            if frame.position + len(frame.records) == active.disk.end:
                break
    assert len(seen) == 30_000


@virtual
async def test_what_is_shipped_goes_out_before_the_actives_own_disk_has_it() -> None:
    active = Active(disk_of((1, 10)))
    await active.lead(1)
    async with aclosing(active.replication.accept(offer((1, 10))).frames()) as frames:
        await anext(frames)
        active.disk.stall_s = 5.0
        writing = asyncio.create_task(active.write())
        rows = await anext(frames)
        assert isinstance(rows, Records)
        assert list(rows.records) == records(11, 11)
        assert active.disk.end == 10
        writing.cancel()


@virtual
async def test_each_frame_says_how_far_others_were_told() -> None:
    active = Active(disk_of((1, 10)))
    await active.lead(1)
    async with aclosing(active.replication.accept(offer((1, 10))).frames()) as frames:
        await anext(frames)
        await active.write(2)
        rows = await anext(frames)
        assert isinstance(rows, Records)
        assert rows.acknowledged == 12


# --- backups (F2) ---------------------------------------------------------------------------------------------------


async def _is_sent_a_backup(active: Active, asked: Offer) -> None:
    welcome, piece, last = await first(active.replication.accept(asked), 3)
    assert welcome == Welcome(leader=A, epoch=active.epoch, position=Position(0), backup_follows=True)
    assert (piece, last) == (BackupPiece(b"a backup"), BackupPiece(b""))
    assert active.backups.open == 0


@virtual
async def test_a_follower_before_what_the_log_keeps_gets_a_backup() -> None:
    active = Active(disk_of((1, 30), (2, 60), first=40))
    await active.lead(2)
    await _is_sent_a_backup(active, offer((2, 35), (1, 30)))


@virtual
async def test_an_empty_follower_of_a_trimmed_log_gets_a_backup() -> None:
    active = Active(disk_of((1, 30), first=10))
    await active.lead(1)
    await _is_sent_a_backup(active, offer())


@virtual
async def test_a_follower_with_no_epoch_in_common_gets_a_backup() -> None:
    active = Active(disk_of((1, 30), (7, 60), first=40))
    await active.lead(7)
    await _is_sent_a_backup(active, offer((6, 50), (5, 40)))


@virtual
async def test_a_follower_that_asks_for_one_gets_a_backup() -> None:
    active = Active(disk_of((1, 30)))
    await active.lead(1)
    await _is_sent_a_backup(active, offer((1, 20), wants_backup=True))


@virtual
async def test_pieces_are_of_a_handy_size() -> None:
    active = Active(disk_of((1, 30)))
    whole = bytes(range(256)) * (2 * PIECE_BYTES // 256) + b"end"
    active.backups = FakeBackups(*(whole[at : at + 1_000] for at in range(0, len(whole), 1_000)))
    await active.lead(1)
    frames = await first(active.replication.accept(offer((1, 20), wants_backup=True)), 5)
    pieces = [frame.data for frame in frames if isinstance(frame, BackupPiece)]
    assert [len(piece) for piece in pieces] == [PIECE_BYTES, PIECE_BYTES, 3, 0]
    assert b"".join(pieces) == whole


@virtual
async def test_signs_of_life_come_while_a_backup_is_made_and_only_one_is_made_at_a_time() -> None:
    active = Active(disk_of((1, 30)))
    active.backups = FakeBackups(b"a backup", takes_s=3.0)
    await active.lead(1)
    senders = [active.replication.accept(offer((1, 20), wants_backup=True)) for _ in range(2)]

    async def read(sender: Sender) -> list[Frame]:
        return [frame async for frame in sender.frames()]

    for frames in await asyncio.gather(*(read(sender) for sender in senders)):
        signs = [frame for frame in frames if isinstance(frame, Records)]
        assert len(signs) >= 4
        assert not any(sign.records for sign in signs)
        assert [frame.data for frame in frames if isinstance(frame, BackupPiece)] == [b"a backup", b""]
    assert (active.backups.most_open, active.backups.open) == (1, 0)


@virtual
async def test_a_backup_that_a_person_takes_is_waited_for() -> None:
    active = Active(disk_of((1, 30)))
    await active.lead(1)
    busy = StokerError(refuse("backup_running", "another backup is being taken", "wait"))
    active.backups.faults = [busy, busy]
    frames = await first(active.replication.accept(offer((1, 20), wants_backup=True)), 6)
    assert BackupPiece(b"a backup") in frames


@virtual
async def test_a_history_that_cannot_be_copied_is_told_and_the_next_attempt_may_succeed() -> None:
    active = Active(disk_of((1, 30)))
    await active.lead(1)
    active.backups.faults = [HistoryFailed("disk full")]
    with pytest.raises(StokerError) as fault:
        await first(active.replication.accept(offer((1, 20), wants_backup=True)), 5)
    assert fault.value.refusal.code == "history_unavailable"
    await _is_sent_a_backup(active, offer((1, 20), wants_backup=True))


@virtual
async def test_a_stream_that_breaks_while_a_backup_is_made_leaves_nothing_behind() -> None:
    active = Active(disk_of((1, 30)))
    active.backups = FakeBackups(b"a backup", takes_s=3.0)
    await active.lead(1)
    await first(active.replication.accept(offer((1, 20), wants_backup=True)), 2)
    assert active.backups.open == 0
    assert not active.replication.backup_turn.locked()


# --- life and death -------------------------------------------------------------------------------------------------


@virtual
async def test_a_quiet_stream_carries_signs_of_life() -> None:
    """F4"""
    active = Active(disk_of((1, 10)))
    await active.lead(1)
    began = active.clock.mono()
    frames = await first(active.replication.accept(offer((1, 10))), 5)
    assert [len(frame.records) for frame in frames if isinstance(frame, Records)] == [0, 0, 0, 0]
    assert 4 * 0.5 - 0.1 < active.clock.mono() - began < 4 * 0.5 + 0.6


@virtual
async def test_what_is_shipped_while_a_sign_of_life_is_on_its_way_follows_it_at_once() -> None:
    active = Active(disk_of((1, 10)))
    await active.lead(1)
    async with aclosing(active.replication.accept(offer((1, 10))).frames()) as frames:
        await anext(frames)
        sign = await anext(frames)
        assert isinstance(sign, Records)
        assert not sign.records
        active.replication.ship(Epoch(1), Position(10), records(11, 11))
        began = active.clock.mono()
        rows = await anext(frames)
        assert isinstance(rows, Records)
        assert list(rows.records) == records(11, 11)
        assert active.clock.mono() == began


@virtual
async def test_a_log_that_cannot_be_read_is_told_as_such() -> None:
    active = Active(disk_of((1, 10)))
    await active.lead(1)
    active.disk.damage_record(Position(7))
    with pytest.raises(StokerError) as fault:
        await first(active.replication.accept(offer((1, 5))), 3)
    assert fault.value.refusal.code == "log_failed"
    assert "record 7" in fault.value.refusal.message


@virtual
async def test_nothing_leaves_once_the_lease_is_over() -> None:
    """F5"""
    active = Active(disk_of((1, 10)))
    await active.lead(1)
    async with aclosing(active.replication.accept(offer((1, 10))).frames()) as frames:
        await anext(frames)
        active.holds = False
        active.replication.ship(Epoch(1), Position(10), records(11, 11))
        with pytest.raises(StokerError) as fault:
            await anext(frames)
        assert fault.value.refusal.code == "not_active"


@virtual
async def test_who_confirms_what_was_never_sent_is_not_believed() -> None:
    active = Active(disk_of((1, 10)))
    await active.lead(1)
    sender = active.replication.accept(offer((1, 10)))
    async with aclosing(sender.frames()) as frames:
        await anext(frames)
        with pytest.raises(StokerError) as fault:
            sender.confirm(Position(11))
        assert fault.value.refusal.code == "malformed_message"
