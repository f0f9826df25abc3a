"""Write the backup of this version that later ones are held to: a few jobs of each state, with all that surrounds them.

A release runs it once, `python -m tests.compat.make_backup`, and its two files are committed.
"""

import asyncio
import gzip
import tempfile
from pathlib import Path
from typing import Final

import msgspec

from stoker.brain.domain.access import Role, Token
from stoker.brain.domain.ids import Principal, TenantName
from stoker.brain.domain.tenant import Tenant
from stoker.brain.state.commands import CreateToken, PutTenant
from stoker.control.backup import Backups
from stoker.wire.endpoints import API_PREFIX, PRODUCT
from stoker.wire.token import digest_of, fresh_token, id_of
from tests.api.http.plane import Agent, Plane, plane_in

HERE: Final = Path(__file__).parent
JOBS: Final = f"{API_PREFIX}/jobs"
ROOT: Final = Principal("user:root")


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """What a backup is known to hold."""

    version: str
    cluster_id: str
    epoch: int
    next_job_id: int
    viewer: str
    """The text of a token."""
    tenants: list[str]
    states: dict[str, str]
    """By job."""


async def submit(plane: Plane, **body: object) -> str:
    reply = await plane.ask("POST", JOBS, {"command": "true", "gpu_count": 1, "tenant_id": "vision", **body})
    assert reply.status == 201, reply.json
    return str(reply.json["id"])


async def fill(plane: Plane) -> str:
    """A job in each state that lasts, arrays, tenants, tokens. The text of the viewer's token."""
    for name, parent in (("lab", ""), ("vision", "lab")):
        tenant = Tenant(name=TenantName(name), parent=TenantName(parent))
        await plane.control.committer.ask(PutTenant(by=ROOT, tenant=tenant, create=True))
    texts = [await _token(plane, role) for role in (Role.VIEWER, Role.ADMIN)]
    agent = await plane.join("n1", 6)
    await _ended(plane, agent)
    for _ in range(2):
        await submit(plane)
        await agent.run()  # running
    stopping = await submit(plane)
    await agent.run()
    assert (await plane.ask("DELETE", f"{JOBS}/{stopping}")).status < 300
    await submit(plane)
    await agent.next_start()  # starting
    await submit(plane, array="0-4%1", env={"A": "1"}, retries=2)
    await agent.run()  # one member
    cancelled, waits = await submit(plane, gpu_count=6), await submit(plane, gpu_count=6)
    assert (await plane.ask("DELETE", f"{JOBS}/{cancelled}")).status < 300
    await submit(plane, gpu_count=0, after=[f"ok:{waits}"])
    held = await submit(plane, gpu_count=6, name="later", priority="high")
    assert (await plane.ask("POST", f"{JOBS}/{held}/hold")).status < 300
    return texts[0]


async def _ended(plane: Plane, agent: Agent) -> None:
    for exit_code in (0, 3):
        await submit(plane)
        await agent.end(await agent.run(), exit_code)


async def _token(plane: Plane, role: Role) -> str:
    text = fresh_token(plane.control.entropy)
    token = Token(id=id_of(text), digest=digest_of(text), role=role)
    await plane.control.committer.ask(CreateToken(by=ROOT, token=token))
    return text


async def states(plane: Plane) -> dict[str, str]:
    """Of every job and every member that is a record."""
    state = plane.control.committer.state
    return {job.label: state.shown_state(job).value for job in state.jobs.values()}


async def make(folder: Path) -> tuple[bytes, Expected]:
    async with plane_in(folder) as plane:
        viewer = await fill(plane)
        backup = await Backups(plane.control).take()
        state = plane.control.committer.state
        expected = Expected(
            version=PRODUCT,
            cluster_id=state.cluster_id,
            epoch=state.epoch,
            next_job_id=state.next_job_id,
            viewer=viewer,
            tenants=list(state.tenants),
            states=await states(plane),
        )
        content = b"".join([piece async for piece in backup.pieces()])
        await backup.close()
        assert backup.head.position == state.position, "something happened meanwhile: run it again"
    return content, expected


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        content, expected = asyncio.run(make(Path(folder) / "data"))
    packed = gzip.compress(content, mtime=0)
    (HERE / f"backup-{PRODUCT}.tar.gz").write_bytes(packed)
    (HERE / f"backup-{PRODUCT}.json").write_bytes(msgspec.json.format(msgspec.json.encode(expected), indent=2) + b"\n")


if __name__ == "__main__":
    main()
