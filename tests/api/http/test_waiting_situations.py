"""Every wait that people meet, with the text that `stoker why` gives, as the page for people shows it.

The page has the texts; `--rewrite` writes them, for a person to review.
"""

import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stoker.brain.domain.job import EndCause
from stoker.brain.domain.reason import ReasonCode
from stoker.cli.display.job_details import why_lines
from stoker.wire.rest.why import WhyView
from tests.api.http.plane import Plane

PAGE = Path(__file__).resolve().parents[3] / "docs" / "howto" / "why-is-my-job-waiting.md"
JOBS = "/api/v1/jobs"
LOOKS_MAX = 1_000
Situation = Callable[[Plane], Awaitable[str]]


async def submit(plane: Plane, **body: Any) -> str:  # noqa: ANN401  # whatever a person may send
    reply = await plane.ask("POST", JOBS, {"command": "true", "name": "train", **body})
    assert reply.status == 201, reply.body
    return str(reply.json["id"])


async def gpus_busy(plane: Plane) -> str:
    node = await plane.join("gpu-1", gpus=4)
    await submit(plane, gpu_count=3, max_runtime_minutes=120)
    await node.run()
    await submit(plane, gpu_count=1, max_runtime_minutes=30, name="eval")
    await node.run()
    return await submit(plane, gpu_count=2, name="mine")


async def too_large(plane: Plane) -> str:
    job = await submit(plane, gpu_count=8)
    await plane.join("gpu-1", gpus=4)
    return job


async def no_such_model(plane: Plane) -> str:
    job = await submit(plane, gpu_count=1, gpu_model="H100")
    await plane.join("gpu-1", gpus=4)
    return job


async def drained(plane: Plane) -> str:
    await plane.join("gpu-1", gpus=4)
    await plane.ask("POST", "/api/v1/nodes/gpu-1/drain", {"reason": "replace fan"})
    return await submit(plane, gpu_count=2)


async def tenant_limit(plane: Plane) -> str:
    node = await plane.join("gpu-1", gpus=4)
    await plane.ask("POST", "/api/v1/tenants", {"name": "vision", "max_gpus": 2})
    await submit(plane, gpu_count=2, tenant="vision", max_runtime_minutes=60)
    await node.run()
    await submit(plane, gpu_count=2, max_runtime_minutes=60)
    await node.run()
    return await submit(plane, gpu_count=1, tenant="vision", name="mine")


async def kept_for_others(plane: Plane) -> str:
    node = await plane.join("gpu-1", gpus=4)
    await plane.ask("POST", "/api/v1/tenants", {"name": "vision", "guaranteed_gpus": 2})
    await plane.ask("PUT", "/api/v1/tenants/vision", {"lend": False})
    await submit(plane, gpu_count=2)
    await node.run()
    return await submit(plane, gpu_count=1, name="mine")


async def dependency(plane: Plane) -> str:
    node = await plane.join("gpu-1", gpus=4)
    first = await submit(plane, gpu_count=1, name="prepare")
    await node.run()
    return await submit(plane, gpu_count=1, after=[f"ok:{first}"])


async def array_limit(plane: Plane) -> str:
    node = await plane.join("gpu-1", gpus=4)
    array = await submit(plane, gpu_count=1, array="0-9%1", max_runtime_minutes=60)
    await node.run()
    return array


async def begin_time(plane: Plane) -> str:
    return await submit(plane, begin="now+2h")


async def held(plane: Plane) -> str:
    job = await submit(plane)
    await plane.ask("POST", f"{JOBS}/{job}/hold")
    return job


async def failed_start(plane: Plane) -> str:
    node = await plane.join("gpu-1", gpus=4)
    job = await submit(plane, gpu_count=1, retries=3)
    await node.end(await node.next_start(), cause=EndCause.START_FAILED)
    return job


async def selected_away(plane: Plane) -> str:
    await plane.join("gpu-1", gpus=4)
    await plane.ask("POST", "/api/v1/nodes/gpu-1/labels", {"labels": {"zone": "a"}})
    job = await submit(plane, where="zone=a", hold=True)
    await plane.ask("POST", "/api/v1/nodes/gpu-1/labels", {"remove": ["zone"]})
    await plane.ask("POST", f"{JOBS}/{job}/release")
    return job


async def others_give_way(plane: Plane) -> str:
    node = await plane.join("gpu-1", gpus=4)
    await submit(plane, gpu_count=4, preemptible=True, signal="USR1@60", priority="low")
    await node.run()
    return await submit(plane, gpu_count=2, priority="high", name="urgent")


async def gives_way(plane: Plane) -> str:
    urgent = await others_give_way(plane)
    job = str(int(urgent) - 1)
    for _ in range(LOOKS_MAX):
        if (await plane.get(f"{JOBS}/{job}")).json["state"] == "stopping":
            break
        await plane.control.clock.sleep(0.01)
    return job


SITUATIONS: dict[str, Situation] = {
    "GPUs are busy": gpus_busy,
    "No node is large enough": too_large,
    "No GPU is of that model": no_such_model,
    "A person drains the nodes": drained,
    "The tenant is at its limit": tenant_limit,
    "Free GPUs are kept for others": kept_for_others,
    "It waits for another job": dependency,
    "The array has a limit of its own": array_limit,
    "It was told to begin later": begin_time,
    "Somebody holds it": held,
    "A start has failed": failed_start,
    "No node is selected any more": selected_away,
    "Others give way to it": others_give_way,
    "It gives way itself": gives_way,
}


async def text_of(plane: Plane, situation: Situation) -> str:
    """What `stoker why` prints, with instants that stand for any."""
    job = await situation(plane)
    for _ in range(LOOKS_MAX):
        answer = msgspec.json.decode((await plane.get(f"{JOBS}/{job}/why")).body, type=WhyView)
        if answer.code is not ReasonCode.AWAITING_PASS:
            break
        await plane.control.clock.sleep(0.01)
    lines = why_lines(answer)
    return re.sub(r"20[2-8]\d-\d\d-\d\d \d\d:\d\d:\d\d \w+", "2026-11-30 16:20:00 CET", "\n".join(lines))


def shown() -> dict[str, str]:
    """The text of each situation on the page."""
    found = re.findall(r"^### ([^\n]+)\n\n```\n(.*?)\n```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return dict(found)


def test_the_page_shows_each_situation() -> None:
    assert list(shown()) == list(SITUATIONS)


@pytest.mark.parametrize("title", SITUATIONS)
async def test_why_says_what_the_page_shows(plane: Plane, title: str, request: pytest.FixtureRequest) -> None:
    said = await text_of(plane, SITUATIONS[title])
    if request.config.getoption("--rewrite"):
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(page.replace(f"### {title}\n\n```\n{shown()[title]}\n```", f"### {title}\n\n```\n{said}\n```"))
    assert shown()[title] == said
