"""Rules T1 to T3 of `agent/addresses.py`, on virtual time."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from stoker.agent.addresses import AGAIN_S, STAGGER_S, Addresses, first_of
from stoker.agent.ports import LinkDown, LinkRefused, LinkStandby
from tests.rig.virtual_loop import run_virtual


class Entered:
    def __init__(self, address: str) -> None:
        self.address = address
        self.closed = False

    async def close(self) -> None:
        self.closed = True


class ControlPlanes:
    """What each address does, and when it was tried."""

    def __init__(self, **does: Callable[[], Awaitable[None]]) -> None:
        self.does = does
        self.tried: list[tuple[str, float]] = []
        self.entered: list[Entered] = []

    async def enter(self, address: str) -> Entered:
        self.tried.append((address, round(asyncio.get_running_loop().time(), 2)))
        await self.does[address]()
        self.entered.append(Entered(address))
        return self.entered[-1]


async def well() -> None:
    await asyncio.sleep(0.01)


async def down() -> None:
    raise LinkDown("down")


async def standby() -> None:
    raise LinkStandby("a standby")


async def refuses() -> None:
    raise LinkRefused("no")


def after(seconds: float, then: Callable[[], Awaitable[None]] = well) -> Callable[[], Awaitable[None]]:
    """Silent for so long."""

    async def do() -> None:
        await asyncio.sleep(seconds)
        await then()

    return do


def from_then_on(at_s: float, before: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
    """Well from that time on."""

    async def do() -> None:
        await (well if asyncio.get_running_loop().time() >= at_s else before)()

    return do


def entered(world: ControlPlanes, addresses: Addresses | None = None) -> tuple[str, float]:
    """Who took us in one round, and after how long."""

    async def story() -> tuple[str, float]:
        address, _ = await first_of(addresses or Addresses(tuple(world.does)), world.enter)
        return address, asyncio.get_running_loop().time()

    return run_virtual(story)


@pytest.mark.parametrize("first", [down, standby, refuses])
def test_the_next_is_tried_at_once_when_one_does_not_take_us(first: Callable[[], Awaitable[None]]) -> None:
    world = ControlPlanes(a=first, b=well)
    assert entered(world)[0] == "b"
    assert world.tried == [("a", 0.0), ("b", 0.0)]


def test_the_next_is_tried_beside_one_that_is_silent_and_the_loser_is_left() -> None:
    world = ControlPlanes(a=after(0.305), b=after(0.1))
    assert entered(world)[0] == "a"
    assert world.tried == [("a", 0.0), ("b", STAGGER_S)]
    assert [each.closed for each in world.entered] == [False]


def test_one_that_only_let_us_in_is_tried_last_and_one_that_was_good_first() -> None:
    addresses = Addresses(("a", "b", "c"))
    entered(ControlPlanes(a=well, b=well, c=well), addresses)
    assert addresses.in_order == ("b", "c", "a")
    addresses.good("a")
    assert addresses.in_order == ("a", "b", "c")


def test_a_standby_beside_a_dead_one_is_asked_again_and_takes_us_once_it_is_active() -> None:
    """The machine of the active is off: nothing refuses a connection there, and its standby takes over in 1.5 s."""
    world = ControlPlanes(a=after(10, down), b=from_then_on(1.5, standby))
    address, after_s = entered(world)
    assert address == "b"
    assert after_s <= 1.5 + AGAIN_S
    assert [who for who, _ in world.tried] == ["a", "b", "b", "b"]


def test_a_busy_active_is_waited_for_and_asked_once_however_often_its_standby_answers() -> None:
    """Two thousand nodes come back at once: whoever asked again would only stand in line anew."""
    world = ControlPlanes(a=after(6), b=standby)
    address, after_s = entered(world)
    assert (address, round(after_s)) == ("a", 6)
    assert [who for who, _ in world.tried].count("a") == 1


def test_who_refused_is_not_asked_again_in_a_round() -> None:
    world = ControlPlanes(a=after(5, down), b=refuses)
    with pytest.raises(LinkRefused, match="no; down"):
        entered(world)
    assert [who for who, _ in world.tried] == ["a", "b"]


def test_where_nobody_takes_us_a_refusal_is_told_first_then_a_standby() -> None:
    for does, told in (
        ({"a": down, "b": standby, "c": refuses}, LinkRefused),
        ({"a": down, "b": standby}, LinkStandby),
        ({"a": down}, LinkDown),
    ):
        with pytest.raises(told) as caught:
            entered(ControlPlanes(**does))
        assert caught.type is told
