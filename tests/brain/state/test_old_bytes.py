"""Logs and snapshots of every version before this one still open, and mean what they meant."""

from pathlib import Path

import msgspec
import pytest

from stoker.brain.domain.demand import JobClass
from stoker.brain.domain.gpu import WHOLE_GPU
from stoker.brain.domain.ids import DEFAULT_TENANT, JobId, Position
from stoker.brain.domain.quota import NOTHING, Amount, Pools
from stoker.brain.domain.tenant import THE_DEFAULT
from stoker.brain.state.apply.dispatch import apply
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.codec import decode_fact, load_snapshot, snapshot_chunks
from stoker.brain.state.invariants import violations
from tests.brain.state.story import Story, spec

OLD = Path(__file__).parents[2] / "old"
VERSIONS = sorted(folder.name for folder in OLD.iterdir() if folder.is_dir())
BEFORE_LEASES = ("arrays", "sharing", "spine")


def lines(version: str, name: str) -> list[bytes]:
    return (OLD / version / f"{name}.jsonl").read_bytes().splitlines()


def replayed(version: str, state: ClusterState) -> ClusterState:
    """What the log adds to `state`."""
    for position, record in enumerate(lines(version, "log"), start=1):
        if position > state.position:
            apply(state, decode_fact(record), Position(position))
            assert violations(state) == []
    return state


def test_there_are_bytes_of_every_earlier_step() -> None:
    assert {*BEFORE_LEASES, "failover"} <= set(VERSIONS)


def test_leases_and_quarantine_of_the_step_that_brought_them_are_read() -> None:
    state = load_snapshot(lines("failover", "snapshot"))
    assert any(attempt.lease_ms for job in state.jobs.values() for attempt in job.attempts)
    assert any(orphan.unproved for node in state.nodes.values() for orphan in node.strays)
    assert all(node.inventory.keeps_leases for node in state.nodes.values())


@pytest.mark.parametrize("version", BEFORE_LEASES)
def test_attempts_and_orphans_of_before_leases_have_none_and_are_in_no_quarantine(version: str) -> None:
    """What began without a lease is never settled for silence."""
    state = load_snapshot(lines(version, "snapshot"))
    assert not any(attempt.lease_ms for job in state.jobs.values() for attempt in job.attempts)
    assert not any(stray.unproved for node in state.nodes.values() for stray in node.strays)
    assert not any(node.inventory.keeps_leases for node in state.nodes.values())


@pytest.mark.parametrize("version", VERSIONS)
def test_an_old_log_is_replayed_without_breaking_a_truth_and_adds_up_to_the_old_snapshots(version: str) -> None:
    whole = list(snapshot_chunks(replayed(version, ClusterState())))
    for name in ("snapshot", "snapshot_middle"):
        loaded = load_snapshot(lines(version, name))
        assert violations(loaded) == []
        assert list(snapshot_chunks(replayed(version, loaded))) == whole


@pytest.mark.parametrize("version", VERSIONS)
def test_nothing_that_an_old_snapshot_says_is_lost_or_said_otherwise(version: str) -> None:
    """Beside what is new, each chunk holds every field of the old one with its value."""
    old = [msgspec.json.decode(chunk) for chunk in lines(version, "snapshot")]
    new = [msgspec.json.decode(chunk) for chunk in snapshot_chunks(load_snapshot(lines(version, "snapshot")))]
    assert len(new) == len(old)
    for before, after in zip(old, new, strict=True):
        assert missing(before, after) == []


def missing(old: object, new: object, path: str = "") -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        return [fault for key in old for fault in missing(old[key], new.get(key), f"{path}.{key}")]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [fault for at, each in enumerate(old) for fault in missing(each, new[at], f"{path}[{at}]")]
    return [] if old == new or path == ".v" else [f"{path}: {old} became {new}"]


@pytest.mark.parametrize("version", ["spine", "arrays"])
def test_a_cluster_from_before_there_were_tenants_has_the_default_one_charged_with_all_that_is_held(
    version: str,
) -> None:
    state = load_snapshot(lines(version, "snapshot"))
    assert state.tenants == {DEFAULT_TENANT: THE_DEFAULT}
    assert (state.pools, state.pools_configured, state.tokens) == (Pools(), None, {})
    usage_ledger, held = state.indexes.usage_ledger, state.indexes.held
    placements = [placement for tasks in held.values() for placement in tasks.values()]
    gpus, cpus = sum(len(each.gpus) for each in placements), sum(each.cpus for each in placements)
    live = {task[0] for tasks in held.values() for task in tasks}
    assert len(live) > 1
    assert usage_ledger.used_by(DEFAULT_TENANT) == Amount(gpu_milli=gpus * WHOLE_GPU, cpus=cpus, jobs=len(live))
    assert usage_ledger.used_by_class(JobClass.BATCH) == usage_ledger.used_by(DEFAULT_TENANT)
    assert usage_ledger.used_by_class(JobClass.ONLINE) == NOTHING
    assert usage_ledger.pending_of(DEFAULT_TENANT) == state.indexes.pending_count > 0


@pytest.mark.parametrize("version", VERSIONS)
def test_an_old_cluster_goes_on_working(version: str) -> None:
    story = Story()
    story.state = replayed(version, ClusterState())
    story.now = story.state.last_at
    story.node("new", 16)
    job = story.submit(spec(8))
    story.all_due()
    story.decide()
    assert story.job(job).live_attempt is not None
    before = story.state.indexes.usage_ledger.used_by(DEFAULT_TENANT)
    story.started(job)
    story.end(JobId(job))
    assert story.state.indexes.usage_ledger.used_by(DEFAULT_TENANT) == before.minus(
        Amount(gpu_milli=8_000, cpus=1, jobs=1)
    )
