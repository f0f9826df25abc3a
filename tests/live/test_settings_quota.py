"""The section `quota`: the shares of the seeds, what is left out, and what can be none."""

from pathlib import Path

import pytest

from stoker.adapters.settings.loader import examine, load
from stoker.brain.domain.quota import Pools
from stoker.live.settings.control import ControlSettings


def pools(tmp_path: Path, text: str = "{}") -> Pools:
    path = tmp_path / "control.yaml"
    path.write_text(f"quota: {text}\n" if text else "")
    return load(ControlSettings, path, {}, {}).value.quota.as_pools()


def faults(tmp_path: Path, text: str) -> str:
    path = tmp_path / "control.yaml"
    path.write_text(f"quota: {text}\n")
    seen = examine(ControlSettings, path, {}, {})
    assert seen.value is None
    return "\n".join(seen.faults)


def test_the_shares_are_those_of_the_seeds_and_the_brains_own() -> None:
    assert ControlSettings().quota.as_pools() == Pools() == Pools(online=700_000, batch=300_000, strict=False)


@pytest.mark.parametrize(
    ("text", "online", "batch"),
    [
        ("{online_percent: 0.6}", 600_000, 400_000),
        ("{online_percent: 1}", 1_000_000, 0),
        ("{online_percent: 0.6, batch_percent: 0.1}", 600_000, 100_000),
        ("{batch_percent: 0.1}", 700_000, 100_000),
        ("{online_percent: 0.5, batch_percent: }", 500_000, 500_000),
        ("{online_percent: 0.333333, batch_percent: 0.666667}", 333_333, 666_667),
    ],
)
def test_batch_gets_what_online_leaves_unless_it_is_given(tmp_path: Path, text: str, online: int, batch: int) -> None:
    assert pools(tmp_path, text) == Pools(online=online, batch=batch)


def test_the_dgpus_own_two_lines_are_read_and_shares_without_borrowing_are_asked_for_by_name(tmp_path: Path) -> None:
    assert pools(tmp_path, "\n  online_percent: 0.7\n  batch_percent: 0.3\n  strict: true") == Pools(strict=True)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{online_percent: 70}", "online_percent: 70.0 isn't between 0 and 1"),
        ("{online_percent: -0.1}", "online_percent: -0.1 isn't between 0 and 1"),
        ("{batch_percent: 1.5}", "batch_percent: 1.5 isn't between 0 and 1"),
        ("{online_percent: 0.8, batch_percent: 0.3}", "are more than 1 together"),
        ("{batch_percent: 0.4}", "online_percent (0.7) and batch_percent (0.4) are more than 1 together"),
        ("{online_percent: most}", "'most' isn't a number"),
        ("{online_percent: nan}", "'nan' isn't a number"),
        ("{online_percent: true}", "'true' isn't a number"),
        ("{online: 0.7}", "nearest: quota.online_percent"),
        ("0.7", "quota is a section of keys"),
    ],
)
def test_a_share_that_is_none_is_refused_at_the_start_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    message = faults(tmp_path, text)
    assert said in message
    assert "control.yaml:1" in message


def test_doctor_knows_where_each_share_came_from(tmp_path: Path) -> None:
    path = tmp_path / "control.yaml"
    path.write_text("quota:\n  online_percent: 0.6\n")
    loaded = load(ControlSettings, path, {"STOKER__QUOTA__STRICT": "yes"}, {})
    assert loaded.origin["quota.online_percent"] == f"{path}:2"
    assert loaded.origin["quota.strict"] == "STOKER__QUOTA__STRICT"
    assert loaded.origin["quota.batch_percent"] == "default"
    assert loaded.value.quota.as_pools() == Pools(online=600_000, batch=400_000, strict=True)


def test_what_batch_gets_is_written_out_among_the_settings_that_hold(tmp_path: Path) -> None:
    assert ControlSettings().quota.batch_percent == 0.3
    path = tmp_path / "control.yaml"
    path.write_text("quota: {online_percent: 0.9}\n")
    assert load(ControlSettings, path, {}, {}).value.quota.batch_percent == 0.1
