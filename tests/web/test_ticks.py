"""The stream that keeps pages alive: T1 to T3."""

import json
from typing import Any

from tests.api.http.people import Listening, People, Person
from tests.api.http.plane import Plane
from tests.web.browsers import signed_in


def ticks(listening: Listening) -> list[Any]:
    lines = listening.body.decode().splitlines()
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]


async def test_a_tick_names_what_kinds_of_things_changed_and_no_fact(people: People) -> None:
    listening = people.bert.open("/live")
    await people.plane.until(lambda: bool(listening.sent))
    await people.anna.submit(name="nobody-elses", hold=True)
    await people.plane.until(lambda: any(tick["topics"] for tick in ticks(listening)))
    told = [tick for tick in ticks(listening) if tick["topics"]]
    assert told[0]["topics"] == ["job"]
    assert "nobody-elses" not in listening.body.decode()
    listening.close()


async def test_many_facts_at_once_are_few_ticks(people: People) -> None:
    listening = people.anna.open("/live")
    await people.plane.until(lambda: bool(listening.sent))
    for _ in range(30):
        await people.anna.submit(hold=True)
    await people.plane.join("n1", 1)
    await people.plane.until(lambda: any("node" in tick["topics"] for tick in ticks(listening)))
    assert len([tick for tick in ticks(listening) if tick["topics"]]) < 15
    listening.close()


async def test_a_revoked_token_ends_the_stream_with_a_word(people: People) -> None:
    browser = await signed_in(people.anna)
    listening = Listening(_WithCookie(people.plane, browser.cookie), "/live")
    await people.plane.until(lambda: bool(listening.sent))
    await people.anna.revoke()
    await people.plane.until(listening.reading.done)
    assert ticks(listening)[-1]["ended"] is True


async def test_the_stream_ends_when_the_control_plane_stops(plane: Plane) -> None:
    listening = Person(plane, "").open("/live")
    await plane.until(lambda: bool(listening.sent))
    plane.control.close_streams()
    await plane.until(listening.reading.done)


class _WithCookie(Person):
    """Somebody whose browser sends a cookie."""

    def __init__(self, plane: Plane, cookie: str) -> None:
        super().__init__(plane, "")
        self._cookie = cookie

    @property
    def headers(self) -> dict[str, str]:
        return {"cookie": self._cookie, "sec-fetch-site": "same-origin"}
