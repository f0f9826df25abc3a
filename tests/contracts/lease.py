"""What must every Lease do? Inherit this, give a `place`, and the rules run on it.

A place outlives the leases on it, as shared storage outlives processes: `place.lease()` is another control plane. Tests
cite the rules of the port (Z1 to Z5); what only a real file system or server can do is tested beside the adapter.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Protocol

import pytest

from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.ids import Epoch, Position
from stoker.brain.domain.lease_record import LeaseRecord, Member
from stoker.ports import Lease, LeaseUnreachable


class Place(Protocol):
    """Where the marker is."""

    def lease(self) -> Lease:
        """As another control plane reaches it."""
        ...

    def damage(self) -> None:
        """Change the newest version behind everybody's back."""
        ...


def lease_record(version: int, mark: str = "", *, by: str = "a", epoch: int = 1) -> LeaseRecord:
    me = Member(by, f"uid-of-{by}")
    return LeaseRecord(
        version=version,
        epoch=Epoch(epoch),
        holder=me,
        in_sync=(me,),
        position=Position(version * 10),
        mark=mark or f"{by}.{version}",
    )


@asynccontextmanager
async def on(place: Place, count: int = 2) -> AsyncIterator[list[Lease]]:
    """So many control planes."""
    async with AsyncExitStack() as leaving:
        leases = [place.lease() for _ in range(count)]
        for lease in leases:
            leaving.push_async_callback(lease.close)
        yield leases


class LeaseContract:
    @pytest.fixture
    def place(self) -> Place:
        raise NotImplementedError("the implementation under test")

    async def test_a_place_where_nobody_was_has_no_marker(self, place: Place) -> None:
        async with on(place) as (one, other):
            assert await one.read() is None
            assert await other.read() is None

    async def test_z1_what_one_puts_the_others_read(self, place: Place) -> None:
        async with on(place) as (one, other):
            for version in range(1, 6):
                writer, reader = (one, other) if version % 2 else (other, one)
                assert await writer.put(lease_record(version)) is True
                assert await reader.read() == lease_record(version)
                assert await writer.read() == lease_record(version)

    async def test_z2_what_was_put_outlives_whoever_put_it(self, place: Place) -> None:
        async with on(place, 1) as (one,):
            assert await one.put(lease_record(1))
            assert await one.put(lease_record(2))
        async with on(place, 1) as (next_one,):
            assert await next_one.read() == lease_record(2)

    async def test_every_field_comes_back_as_it_was(self, place: Place) -> None:
        members = (Member("a", "0199"), Member('ü"\\\n', "\N{SNOWMAN}"))
        wide = LeaseRecord(
            version=1,
            epoch=Epoch(2**40),
            holder=None,
            in_sync=members,
            position=Position(2**53 - 1),
            http="http://[::1]:8080",
            mark="m" * 200,
        )
        async with on(place) as (one, other):
            assert await one.put(wide)
            assert await other.read() == wide

    async def test_z2_a_version_that_another_has_is_lost(self, place: Place) -> None:
        async with on(place) as (one, other):
            assert await one.put(lease_record(1, by="a")) is True
            assert await other.put(lease_record(1, by="b")) is False
            assert await one.read() == await other.read() == lease_record(1, by="a")

    async def test_z2_a_version_below_the_newest_is_lost_even_if_nobody_has_it_any_more(self, place: Place) -> None:
        async with on(place) as (one, other):
            for version in range(1, 130):
                assert await one.put(lease_record(version))
            for version in (1, 2, 60, 128):
                assert await other.put(lease_record(version, "late", by="b")) is False
            assert await one.read() == await other.read() == lease_record(129)
            assert await one.put(lease_record(130)) is True

    async def test_z2_of_many_that_put_the_same_version_at_once_exactly_one_has_it(self, place: Place) -> None:
        async with on(place, 8) as leases:
            for version in range(1, 11):
                names = [f"cp{number}" for number in range(len(leases))]
                puts = (lease.put(lease_record(version, by=name)) for lease, name in zip(leases, names, strict=True))
                won = [name for name, done in zip(names, await asyncio.gather(*puts), strict=True) if done]
                assert len(won) == 1
                for lease in leases:
                    assert await lease.read() == lease_record(version, by=won[0])

    async def test_z4_to_put_again_what_is_there_already_succeeds_and_changes_nothing(self, place: Place) -> None:
        async with on(place) as (one, other):
            assert await one.put(lease_record(1)) is True
            assert await one.put(lease_record(1)) is True
            assert await other.put(lease_record(1)) is True, "the same write, by whoever goes on in its name"
            assert await other.read() == lease_record(1)
            assert await one.put(lease_record(2)) is True

    async def test_z4_to_put_again_what_has_been_replaced_fails(self, place: Place) -> None:
        async with on(place) as (one, other):
            assert await one.put(lease_record(1)) is True
            assert await other.put(lease_record(2, by="b")) is True
            assert await one.put(lease_record(1)) is False
            assert await one.read() == lease_record(2, by="b")

    async def test_the_same_content_under_another_mark_is_another_write(self, place: Place) -> None:
        async with on(place) as (one, other):
            assert await one.put(lease_record(1, "first")) is True
            assert await other.put(lease_record(1, "second")) is False

    async def test_a_version_that_is_not_the_next_one_is_not_put(self, place: Place) -> None:
        """Whoever wants that has read something that isn't there."""
        async with on(place) as (one, other):
            assert await one.put(lease_record(1))
            with pytest.raises(LeaseUnreachable):
                await other.put(lease_record(3))
            assert await one.read() == lease_record(1)

    async def test_a_damaged_version_is_refused_with_a_way_out_and_a_newer_one_heals_it(self, place: Place) -> None:
        async with on(place) as (one, other):
            for version in range(1, 4):
                assert await one.put(lease_record(version))
            place.damage()
            for lease in (one, other):
                with pytest.raises(StokerError) as caught:
                    await lease.read()
                assert caught.value.refusal.code == "marker_damaged"
                assert "stop every control plane" in caught.value.refusal.hint
            assert await one.put(lease_record(4)) is True
            assert await other.read() == lease_record(4)

    async def test_what_was_closed_answers_nothing_and_may_be_closed_again(self, place: Place) -> None:
        lease = place.lease()
        assert await lease.put(lease_record(1))
        await lease.close()
        await lease.close()
        with pytest.raises(LeaseUnreachable):
            await lease.read()
        with pytest.raises(LeaseUnreachable):
            await lease.put(lease_record(2))
