"""Backups of every released version are restored by the newest code, and mean what they meant."""

import asyncio
import gzip
from pathlib import Path

import msgspec
import pytest

from stoker.brain.domain.array import parse_job_ref
from stoker.brain.state.admit.leadership import EPOCHS_SKIPPED, IDS_SKIPPED
from stoker.brain.state.invariants import violations
from stoker.cli.wiring.restore import restore_backup
from stoker.wire.endpoints import PRODUCT
from stoker.wire.token import bearer
from tests.api.http.plane import Plane, plane_in
from tests.compat.make_backup import HERE, JOBS, Expected, make, states

VERSIONS = sorted(path.name.removeprefix("backup-").removesuffix(".json") for path in HERE.glob("backup-*.json"))


def expected_of(version: str) -> Expected:
    return msgspec.json.decode((HERE / f"backup-{version}.json").read_bytes(), type=Expected)


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def folder(tmp_path: Path, version: str) -> Path:
    file = tmp_path / "old.tar"
    file.write_bytes(gzip.decompress((HERE / f"backup-{version}.tar.gz").read_bytes()))
    restore_backup(file, tmp_path / "data", force=False)
    return tmp_path / "data"


def test_this_version_is_among_them() -> None:
    assert PRODUCT in VERSIONS


def test_a_control_plane_of_today_goes_on_from_it(version: str, folder: Path) -> None:
    expected = expected_of(version)

    async def look() -> None:
        async with plane_in(folder, open_to_owner=False) as plane:
            state = plane.control.committer.state
            assert violations(state) == []
            assert (state.cluster_id, list(state.tenants)) == (expected.cluster_id, expected.tenants)
            assert await states(plane) == expected.states
            assert state.epoch > expected.epoch + EPOCHS_SKIPPED
            assert state.next_job_id > expected.next_job_id + IDS_SKIPPED
            await shown(plane, expected)

    asyncio.run(look())


async def shown(plane: Plane, expected: Expected) -> None:
    """The token of that time still holds, and what ended is in the history too."""
    headers = {"authorization": bearer(expected.viewer)}
    for label, state in expected.states.items():
        reply = await plane.ask("GET", f"{JOBS}/{label}", headers=headers)
        assert (reply.status, reply.json["state"]) == (200, state)
    kept = await plane.control.history.store.jobs([parse_job_ref(label).job for label in expected.states])
    assert {job.label for job in kept} == {
        label for label, state in expected.states.items() if state in ("succeeded", "failed", "cancelled")
    }


def test_every_state_that_lasts_is_in_it(version: str) -> None:
    found = set(expected_of(version).states.values())
    assert found >= {"pending", "held", "starting", "running", "stopping", "succeeded", "failed", "cancelled"}
    assert any("_" in label for label in expected_of(version).states)


async def test_the_next_version_can_be_written_down_in_the_same_way(tmp_path: Path) -> None:
    content, expected = await make(tmp_path / "data")
    assert len(gzip.compress(content)) < 50 * 1024
    assert sorted(expected.states.values()) == sorted(expected_of(PRODUCT).states.values())
