"""The section `agents` of control.yaml, and what of it becomes part of the policy."""

from pathlib import Path

import pytest

from stoker.adapters.settings.loader import load
from stoker.brain.domain.errors import StokerError
from stoker.live.settings.control import AgentsSettings, ControlSettings, FailoverSettings


def loaded(folder: Path, text: str) -> ControlSettings:
    path = folder / "control.yaml"
    path.write_text(text)
    return load(ControlSettings, path, {}, {}).value


def refused(folder: Path, text: str) -> str:
    with pytest.raises(StokerError) as fault:
        loaded(folder, text)
    return fault.value.refusal.message


def test_work_never_outlives_its_lease_where_nobody_else_could_take_over() -> None:
    """An outage of the only control plane would end all work."""
    assert ControlSettings().as_policy().attempt_lease_ms == 0


def test_with_a_standby_the_lease_is_ten_minutes() -> None:
    settings = ControlSettings(failover=FailoverSettings(enabled=True))
    assert settings.as_policy().attempt_lease_ms == 600_000


@pytest.mark.parametrize("failover", [False, True])
@pytest.mark.parametrize(("said", "lease_ms"), [(0, 0), (45, 45_000), (30.5, 30_500)])
def test_a_lease_that_was_named_holds_with_and_without_a_standby(failover: bool, said: float, lease_ms: int) -> None:
    settings = ControlSettings(agents=AgentsSettings(attempt_lease_s=said), failover=FailoverSettings(enabled=failover))
    assert settings.as_policy().attempt_lease_ms == lease_ms


@pytest.mark.parametrize("said", ["29", "-1", "0.5", "2592001"])
def test_a_lease_out_of_range_is_refused_naming_the_silence_that_it_is_measured_by(tmp_path: Path, said: str) -> None:
    message = refused(tmp_path, f"agents: {{attempt_lease_s: {said}}}\n")
    assert f"attempt_lease_s ({float(said):g}) must be 0, or from 30 to 2592000" in message
    assert "unreachable_after_s (which is 15)" in message


@pytest.mark.parametrize("said", ["soon", "10m", ".nan", ".inf"])
def test_what_is_no_lease_is_refused(tmp_path: Path, said: str) -> None:
    assert "agents.attempt_lease_s" in refused(tmp_path, f"agents: {{attempt_lease_s: {said}}}\n")


def test_the_shortest_lease_follows_from_how_soon_a_node_is_unreachable(tmp_path: Path) -> None:
    quick = "agents: {heartbeat_s: 0.1, unreachable_after_s: 0.3, attempt_lease_s: 1}\n"
    policy = loaded(tmp_path, quick).as_policy()
    assert (policy.attempt_lease_ms, policy.attempt_lease_min_ms) == (1_000, 1_000)
    slow = "agents: {heartbeat_s: 300, unreachable_after_s: 900}\nfailover: {enabled: true, marker: /m, peers: ['a:1']}"
    policy = loaded(tmp_path, slow).as_policy()
    assert (policy.attempt_lease_ms, policy.attempt_lease_min_ms) == (1_800_000, 1_800_000)
