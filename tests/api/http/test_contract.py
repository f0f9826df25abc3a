"""Does the application keep its own OpenAPI document, whatever is sent?

Schemathesis is imported by the tests that use it: it takes a second, and every worker of the suite imports this file.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
import requests
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable

from stoker.api.http import logs
from stoker.brain.domain.access import Role
from tests.api.http.people import People, Person
from tests.api.http.plane import Plane

if TYPE_CHECKING:
    from schemathesis import Case

BASE = "http://127.0.0.1:8080"
MODES = [pytest.param(mode, 60, marks=pytest.mark.heavy, id=mode) for mode in ("positive", "negative")]
"""How requests are made, and how many per path and method. Only to learn the document takes twenty seconds."""
ROLE_EXAMPLES = [2, pytest.param(10, marks=pytest.mark.heavy)]
"""Of those who may do less: most is refused by the role or the tenant alone."""
ROLES = ("admin", "lead", "anna", "bert", "viewer", "guest", "prometheus", "agent", "joiner", "nobody")
OURS = ("host", "origin", "authorization")
ENDLESS = "/api/v1/events"


@cache
def checks() -> list[Callable[..., bool | None]]:
    from schemathesis import checks
    from schemathesis.specs.openapi import checks as documented

    return [
        *(checks.not_a_server_error, documented.status_code_conformance, documented.content_type_conformance),
        *(documented.response_schema_conformance, documented.allow_header_conformance),
    ]


def keep(checked: Plane | Person, case: "Case[Any]", loop: asyncio.AbstractEventLoop) -> None:
    """Send one generated request over the loop that the application lives on, and hold the answer to the document."""
    from schemathesis.core.transport import Response

    prepared = requests.Request(**_kwargs(case)).prepare()
    target = (prepared.url or "").removeprefix(BASE) or "/"
    body = prepared.body.encode() if isinstance(prepared.body, str) else bytes(prepared.body or b"")  # type: ignore[arg-type]  # requests prepares text or bytes here
    headers = {
        name: value
        for name, value in prepared.headers.items()
        if name.lower() not in ("host", "origin", "authorization")
    }
    # Who follows events, or the output of a job that runs, is answered for as long as he listens.
    endless = target.startswith(ENDLESS) or "follow=" in target
    asked = (checked.peek if endless else checked.ask)(prepared.method or "GET", target, body, headers)
    reply = asyncio.run_coroutine_threadsafe(asked, loop).result(timeout=30)
    answered = Response(
        status_code=reply.status,
        headers={name: [value] for name, value in reply.headers.items()},
        content=reply.body,
        request=prepared,
        elapsed=timedelta(0).total_seconds(),
        verify=False,
    )
    case.validate_response(answered, checks=checks())


def _kwargs(case: "Case[Any]") -> dict[str, Any]:
    kwargs = case.as_transport_kwargs(base_url=BASE)
    return {
        name: kwargs[name]
        for name in ("method", "url", "headers", "params", "data", "json", "cookies")
        if name in kwargs
    }


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("mode", "examples"), MODES)
async def test_no_request_gets_a_5xx_or_what_the_document_does_not_say(plane: Plane, mode: str, examples: int) -> None:
    assert await kept(plane, [plane], mode, examples) > 7 * examples


@pytest.mark.timeout(900)
@pytest.mark.parametrize("examples", ROLE_EXAMPLES)
async def test_nor_does_anybody_with_a_token_or_without(
    people: People, monkeypatch: pytest.MonkeyPatch, examples: int
) -> None:
    """Each sends the same. Anna's are the jobs that most requests name; Bert is of another tenant."""
    monkeypatch.setattr(logs, "LOG_WAIT_MAX_S", 0.01)
    monkeypatch.setattr(people.plane.control.rate_limit, "take", lambda principal: None)
    roles = {people.plane.control.access.caller(person.headers["authorization"]).role for person in _tokens(people)}
    assert roles == set(Role), "every role asks"
    everybody = [getattr(people, who) for who in ROLES]
    sent = await kept(people.plane, everybody, "positive", examples, people.anna)
    assert sent > 7 * examples * len(ROLES)


def _tokens(people: People) -> list[Person]:
    return [getattr(people, who) for who in ROLES if who != "nobody"]


async def kept(
    plane: Plane,
    asking: Sequence[Plane | Person],
    mode: str,
    examples: int,
    submitting: Plane | Person | None = None,
) -> int:
    """How many requests got what the document says."""
    import schemathesis

    agent = await plane.join("n")
    await (submitting or plane).ask("POST", "/api/v1/jobs", {"jobs": [{"command": "x"}] * 3})
    serving = asyncio.create_task(agent.serve_log(b"written\n"))
    schema = schemathesis.openapi.from_dict(await plane.document())
    loop, paths = asyncio.get_running_loop(), list[str]()
    operations = [result.ok() for result in schema.get_all_operations()]  # type: ignore[union-attr]  # the document is valid: another test says so
    assert len(operations) > 20
    for operation in operations:

        @given(case=operation.as_strategy(schemathesis.GenerationMode(mode)))
        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def fuzz(case: "Case[Any]") -> None:
            for each in asking:
                keep(each, case, loop)
                paths.append(case.path)

        # A path whose parts are free text has no wrong value to try.
        with contextlib.suppress(Unsatisfiable):
            await asyncio.to_thread(fuzz)
    serving.cancel()
    assert mode == "negative" or ENDLESS in paths
    return len(paths)
