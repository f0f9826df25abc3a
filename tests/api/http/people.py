"""People with tokens, two teams of them, and what each may ask: for tests of who may do what."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from stoker.brain.domain.access import Role, Token, TokenId
from stoker.brain.domain.ids import CONTROL, Position, Principal, TenantName
from stoker.brain.domain.tenant import Tenant
from stoker.brain.domain.units import NEVER, Instant
from stoker.brain.state.codec import Fact
from stoker.brain.state.commands import CreateToken, PutTenant, RevokeToken
from stoker.brain.state.events.union import Event
from stoker.control.feed import Entry
from stoker.control.queries.event_visibility import VisibleEvents
from stoker.live.settings.control import ControlSettings
from stoker.wire.token import bearer, digest_of, fresh_token, id_of
from tests.api.http.plane import Plane, Reply, plane_in, scope_of

ROOT = Principal("user:root")


class Person:
    """Somebody with a token, who asks as browsers and programs do."""

    def __init__(self, plane: Plane, text: str) -> None:
        self.plane, self.text = plane, text

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": bearer(self.text)} if self.text else {}

    async def ask(self, method: str, target: str, body: object = None, headers: dict[str, str] | None = None) -> Reply:
        return await self.plane.ask(method, target, body, {**self.headers, **(headers or {})})

    async def peek(self, method: str, target: str, body: bytes, headers: dict[str, str]) -> Reply:
        return await self.plane.peek(method, target, body, {**self.headers, **headers})

    async def get(self, target: str) -> Reply:
        return await self.ask("GET", target)

    async def submit(self, **body: object) -> str:
        reply = await self.ask("POST", "/api/v1/jobs", {"command": "true", **body})
        assert reply.status == 201, reply.json
        return str(reply.json["id"])

    async def revoke(self) -> None:
        await self.plane.control.committer.ask(RevokeToken(by=ROOT, id=id_of(self.text)))

    def open(self, target: str) -> "Listening":
        """A GET whose answer is read as it comes."""
        return Listening(self, target)


class Listening:
    """An answer that may have no end."""

    def __init__(self, person: Person, target: str) -> None:
        self.sent: list[Any] = []
        self.broken = asyncio.Event()
        self.reading = asyncio.ensure_future(self._read(person, target))

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)

    async def _read(self, person: Person, target: str) -> None:
        async def send(message: Any) -> None:  # noqa: ANN401  # an ASGI message
            self.sent.append(message)

        incoming = iter([{"type": "http.request", "body": b"", "more_body": False}])

        async def receive() -> dict[str, Any]:
            for message in incoming:
                return message
            return await asyncio.get_running_loop().create_future()  # nobody hangs up

        scope = scope_of("GET", target, b"", {"host": "127.0.0.1:8080", **person.headers})
        # As the server has it: the older version lets an answer go on while nobody asks whether the client is there.
        scope["asgi"] = {"version": "3.0", "spec_version": "2.3"}
        scope["extensions"] = {"stoker.break": self.broken.set}
        await person.plane.app(scope, receive, send)

    def close(self) -> None:
        self.reading.cancel()


class People:
    """Tenants `red` with `red-lab` beneath it, and `blue`; and who is in them."""

    def __init__(self, plane: Plane) -> None:
        self.plane = plane
        self.nobody = Person(plane, "")

    async def settle(self) -> None:
        for name, parent in (("red", ""), ("red-lab", "red"), ("blue", "")):
            tenant = Tenant(name=TenantName(name), parent=TenantName(parent))
            await self.plane.control.committer.ask(PutTenant(by=ROOT, tenant=tenant, create=True))
        self.admin = await self.person(Role.ADMIN)
        self.anna = await self.person(Role.USER, "red", "anna")
        self.arno = await self.person(Role.USER, "red", "arno")
        self.lead = await self.person(Role.LEAD, "red", "lena")
        self.bert = await self.person(Role.USER, "blue", "bert")
        self.viewer = await self.person(Role.VIEWER)
        self.guest = await self.person(Role.VIEWER, "red")
        self.prometheus = await self.person(Role.METRICS)
        self.agent = await self.person(Role.AGENT)
        self.joiner = await self.person(Role.JOIN, node="n*")

    async def shared(self, tenant: str) -> None:
        """Let the people of a tenant see each other's jobs from now on."""
        reply = await self.admin.ask("PUT", f"/api/v1/tenants/{tenant}", {"visibility": "tenant"})
        assert reply.json["visibility"] == "tenant"

    async def person(
        self, role: Role, tenant: str = "", user: str = "", *, lives_ms: int = 0, node: str = ""
    ) -> Person:
        text = fresh_token(self.plane.control.entropy)
        committer = self.plane.control.committer
        token = Token(
            id=TokenId(id_of(text)),
            digest=digest_of(text),
            role=role,
            tenant=TenantName(tenant),
            user=user,
            node=node,
            expires_at=Instant(committer.now() + lives_ms) if lives_ms else NEVER,
        )
        await committer.ask(CreateToken(by=ROOT, token=token))
        return Person(self.plane, text)


async def heard_by(people: People, person: Person, events: Sequence[Event] | None = None) -> list[Event]:
    """These, or else all that happened so far, as this person hears it."""
    control = people.plane.control
    feed = control.committer.feed

    async def entries() -> AsyncIterator[Entry]:
        for position in range(feed.oldest, feed.newest + 1) if events is None else ():
            yield feed._at(Position(position))
        for event in events or ():
            yield Position(1), Fact(at=Instant(1), by=CONTROL, event=event)

    heard = VisibleEvents(control, control.access.caller(person.headers["authorization"]), entries())
    found = []
    while (entry := await heard.next()) is not None:
        found.append(entry[1].event)
    return found


@asynccontextmanager
async def people_in(folder: Path, settings: ControlSettings | None = None) -> AsyncIterator[People]:
    async with plane_in(folder, settings, open_to_owner=False) as plane:
        people = People(plane)
        await people.settle()
        yield people
