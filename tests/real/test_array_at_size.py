"""An array of ten thousand on a small cluster, throttled, half of it cancelled while other jobs come and go."""

from pathlib import Path

import msgspec
import pytest

from stoker.wire.client import Client, JobBody, JobListQuery
from tests.real.up_process import UpProcess, until

pytestmark = pytest.mark.timeout(300)

MEMBERS = 10_000
KEPT = [200, pytest.param(1_500, marks=pytest.mark.heavy)]
"""Members that are left to run: real processes, so a few hundred a second."""


@pytest.mark.parametrize("kept", KEPT)
def test_cancel_of_a_part_is_exact_and_the_rest_runs_to_the_end_beside_other_jobs(tmp_path: Path, kept: int) -> None:
    with UpProcess(tmp_path) as up, Client(up.url) as client:
        until(lambda: client.status().online_nodes == 2, what="two nodes")
        array = client.submit(JobBody(command=["true"], array=f"0-{MEMBERS - 1}%20", name="sweep")).id
        until(lambda: _members(client, array).get("succeeded", 0) > 50, what="the first members")
        others = [client.submit(JobBody(command=["true"], gpu_count=1)).id for _ in range(20)]
        told = client.cancel(f"{array}_[{kept}-{MEMBERS - 1}]")
        assert told.total == MEMBERS - kept
        now = _members(client, array)
        cancelled = now["cancelled"] + now.get("stopping", 0)
        early = MEMBERS - kept - cancelled  # of those, on a quick machine, so many had run before they were cancelled
        assert 0 <= early <= now.get("succeeded", 0), "and no others are spared"
        until(lambda: client.job(array).state.value in ("succeeded", "cancelled"), 120, "the array to end")
        ended = _members(client, array)
        assert ended == {"total": MEMBERS, "succeeded": kept + early, "cancelled": cancelled}
        assert client.job(array).state.value == "cancelled", "none failed, and not all did well"
        assert {client.job(job).state.value for job in others} == {"succeeded"}
        assert client.job(f"{array}_{kept - 1}").state.value == "succeeded"
        assert client.job(f"{array}_{MEMBERS - 1}").state.value == "cancelled"
        assert client.jobs(JobListQuery(state="pending,running")).total == 0


def _members(client: Client, array: str) -> dict[str, int]:
    """How many are in which state, without those in which none is."""
    counts = client.job(array).members
    assert counts is not None
    return {state: count for state, count in msgspec.structs.asdict(counts).items() if count}
