"""A browser as far as cookies and headers go, without one."""

import re
from typing import Any

from stoker.api.http.session_cookie import csrf_of
from tests.api.http.people import Person
from tests.api.http.plane import Plane, Reply

OWN = {"host": "127.0.0.1:8080", "sec-fetch-site": "same-origin", "origin": "http://127.0.0.1:8080"}


class Browser:
    """It keeps the cookie that it was given."""

    def __init__(self, plane: Plane) -> None:
        self.plane = plane
        self.cookie = ""

    @property
    def csrf(self) -> str:
        """What the page that it has loaded knows."""
        return csrf_of(self.cookie.partition("=")[2])

    async def ask(self, method: str, target: str, body: object = None, **headers: str) -> Reply:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        sent = {**({"cookie": self.cookie} if self.cookie else {}), **named}
        return await self.plane.ask(method, target, body, sent)

    async def page(self, target: str, **headers: str) -> str:
        reply = await self.ask("GET", target, accept="text/html", **headers)
        assert reply.status == 200, (reply.status, reply.body)
        return reply.body.decode()

    async def change(self, method: str, target: str, body: object = None, **headers: str) -> Reply:
        """As the script of a page does."""
        given = {"sec_fetch_site": "same-origin", "origin": "http://127.0.0.1:8080", "stoker_csrf": self.csrf}
        return await self.ask(method, target, body, **{**given, **headers})

    async def sign_in(self, person: Person) -> Reply:
        reply = await self.ask("POST", "/login", {"token": person.text}, sec_fetch_site="same-origin")
        if "set-cookie" in reply.headers:
            self.cookie = reply.headers["set-cookie"].partition(";")[0]
        return reply


async def signed_in(person: Person) -> Browser:
    browser = Browser(person.plane)
    reply = await browser.sign_in(person)
    assert reply.status == 200, reply.body
    return browser


def code_of(reply: Reply) -> Any:  # noqa: ANN401  # whatever came
    return reply.json["code"]


def text_of(page: str) -> str:
    """The words of a page, without its marks."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))
