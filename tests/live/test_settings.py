"""The settings of a control plane: defaults of the seeds, relations between fields, and what isn't there yet."""

from pathlib import Path
from typing import get_args

import msgspec
import pytest

from stoker.adapters.settings.loader import load
from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.policy import Policy
from stoker.live.settings.control import ControlSettings
from stoker.live.settings.policy import KEYS, PolicySettings


def refused(tmp_path: Path, text: str) -> str:
    path = tmp_path / "control.yaml"
    path.write_text(text)
    with pytest.raises(StokerError) as fault:
        load(ControlSettings, path, {}, {})
    assert fault.value.refusal.code == "bad_settings"
    return fault.value.refusal.message


def test_the_defaults_are_those_of_the_seeds() -> None:
    settings = load(ControlSettings, None, {}, {}).value
    assert (settings.http.port, settings.grpc.port) == (8080, 9090)
    assert (settings.agents.heartbeat_s, settings.agents.unreachable_after_s) == (5, 15)
    assert (settings.loop.period_s, settings.snapshot.interval_s) == (5, 30)


def test_default_settings_give_the_default_policy() -> None:
    assert PolicySettings().as_policy() == Policy()


def test_a_silence_shorter_than_two_heartbeats_is_refused_naming_both(tmp_path: Path) -> None:
    message = refused(tmp_path, "agents: {heartbeat_s: 10, unreachable_after_s: 15}\n")
    assert "unreachable_after_s" in message
    assert "heartbeat_s" in message


@pytest.mark.parametrize("host", ["0.0.0.0", "10.1.2.3", "::", "example.org"])
@pytest.mark.parametrize("section", ["http", "grpc"])
def test_a_listener_may_be_anywhere(tmp_path: Path, section: str, host: str) -> None:
    path = tmp_path / "control.yaml"
    path.write_text(f'{section}: {{host: "{host}"}}\n')
    assert getattr(load(ControlSettings, path, {}, {}).value, section).host == host


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_one_of_several_must_say_where_people_reach_it(tmp_path: Path, host: str) -> None:
    """A standby names the active one's address to whoever must go there, and the other half hands it on."""
    one = 'failover: {enabled: true, peers: ["b:9090"], marker: /m%s}\nhttp: {host: "%s"}\n'
    assert "failover.http: it is empty" in refused(tmp_path, one % ("", host))
    there = f', http: "http://{f"[{host}]" if ":" in host else host}:8080"'
    assert "is every address of a machine" in refused(tmp_path, one % (there, host))
    assert "failover.http: it is empty" in refused(
        tmp_path, f'failover: {{enabled: true}}\nstore: {{url: "postgresql://db/s"}}\nhttp: {{host: "{host}"}}\n'
    )
    path = tmp_path / "control.yaml"
    path.write_text(one % (', http: "http://host-a:8080"', host))
    assert load(ControlSettings, path, {}, {}).value.http_url == "http://host-a:8080"


@pytest.mark.parametrize("peer", [":9090", "::1:9090", "http://h:9090", "a:1,b:2", "[h]:9090"])
def test_an_address_that_nobody_could_reach_is_refused_at_reading(tmp_path: Path, peer: str) -> None:
    message = refused(tmp_path, f"failover: {{enabled: true, peers: ['{peer}'], marker: /m}}\n")
    assert f"failover: peers: {peer!r} isn't HOST:PORT" in message


def test_an_empty_host_which_would_be_every_address_is_refused(tmp_path: Path) -> None:
    assert "0.0.0.0" in refused(tmp_path, 'http: {host: ""}\n')


@pytest.mark.parametrize("origin", ["https://portal.example.org", "http://10.1.2.3:3000", "http://[::1]:3000"])
def test_an_origin_is_taken_as_browsers_send_it(tmp_path: Path, origin: str) -> None:
    path = tmp_path / "control.yaml"
    path.write_text(f'http: {{cors_origins: ["{origin}"]}}\n')
    assert load(ControlSettings, path, {}, {}).value.http.cors_origins == (origin,)


@pytest.mark.parametrize(
    "origin",
    [
        *("*", "null", "portal.example.org", "https://portal.example.org/", "https://Portal.example.org"),
        *(
            "https://a:443",
            "https://*.example.org",
            "https://*",
            "ftp://a",
            "http://a:0x1",
            "https://user@a",
            "http://a b",
            "",
        ),
    ],
)
def test_what_is_no_exact_origin_is_refused(tmp_path: Path, origin: str) -> None:
    assert "isn't an origin" in refused(tmp_path, f'http: {{cors_origins: ["{origin}"]}}\n')


@pytest.mark.parametrize("rate", ["-1", ".nan", ".inf", "2000000"])
def test_a_rate_out_of_range_is_refused(tmp_path: Path, rate: str) -> None:
    assert "rate_per_principal" in refused(tmp_path, f"http: {{rate_per_principal: {rate}}}\n")


def test_a_store_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    assert "mysql" in refused(tmp_path, 'store: {url: "mysql://db/stoker"}\n')


def test_one_port_for_both_listeners_is_refused(tmp_path: Path) -> None:
    assert "8080" in refused(tmp_path, "grpc: {port: 8080}\n")


def test_the_folder_of_the_authority_is_an_absolute_path_or_the_default(tmp_path: Path) -> None:
    assert "isn't an absolute path" in refused(tmp_path, "tls: {dir: certificates}\n")
    path = tmp_path / "control.yaml"
    path.write_text("tls: {dir: /etc/stoker/ca}\n")
    assert load(ControlSettings, path, {}, {}).value.tls.dir == "/etc/stoker/ca"


def test_every_fault_is_told_at_once(tmp_path: Path) -> None:
    message = refused(
        tmp_path,
        "http: {port: 99999}\nloop: {period_s: 0}\nsnapshot: {interval_s: -1}\n"
        "policy: {port_min: 30, ended_jobs_max: 0}\n",
    )
    for name in ("port", "period_s", "interval_s", "port_min", "ended_jobs_max"):
        assert name in message


def test_a_default_limit_beyond_the_longest_is_refused(tmp_path: Path) -> None:
    assert "time_limit_max_s" in refused(tmp_path, "policy: {time_limit_default_s: 100, time_limit_max_s: 10}\n")


def test_each_tunable_of_the_policy_has_its_key_and_durations_are_in_seconds(tmp_path: Path) -> None:
    path = tmp_path / "control.yaml"
    ranges = {field.name: get_args(field.type)[1] for field in msgspec.structs.fields(Policy) if get_args(field.type)}
    assert len(ranges) == 46
    least = {name: limits.least for name, limits in ranges.items() if name != "port_max"}
    lines = [f"  {KEYS[name]}: {value // (1_000 if name.endswith('_ms') else 1)}" for name, value in least.items()]
    path.write_text("policy:\n" + "\n".join(lines))
    policy = load(ControlSettings, path, {}, {}).value.policy.as_policy()
    assert {name: getattr(policy, name) for name in least} == least


def test_a_tunable_beyond_its_range_is_refused_with_the_range_and_where_it_was_set(tmp_path: Path) -> None:
    assert refused(tmp_path, "policy:\n  aging_per_hour: -1\n").endswith(
        f"policy: aging_per_hour: -1 isn't between 0 and 1000000 [policy.aging_per_hour: {tmp_path}/control.yaml:2]"
    )
    message = refused(tmp_path, "policy: {stop_grace_s: 100000}\n")
    assert "stop_grace_s: 100000 isn't between 0 and 86400 seconds" in message


@pytest.mark.parametrize(
    "line",
    [
        "time_limit_default_s: 100, time_limit_max_s: 10",
        "tenant_pending_jobs_max: 100, pending_jobs_max: 10",
        "backoff_first_s: 100, backoff_max_s: 10",
        "port_min: 2000, port_max: 1999",
    ],
)
def test_a_lower_bound_above_its_upper_one_is_refused_naming_both(tmp_path: Path, line: str) -> None:
    message = refused(tmp_path, f"policy: {{{line}}}\n")
    low, high = (part.split(":")[0] for part in line.split(", "))
    assert f"{low} (" in message
    assert f"must not exceed {high} (" in message


def test_waiting_and_fair_share_together_stay_below_the_next_word_of_priority(tmp_path: Path) -> None:
    message = refused(tmp_path, "policy: {fair_share_points: 200}\n")
    assert "fair_share_points (200) and aging_max (400) must stay below 500 together" in message
    assert "fair_share_points: 0" in message
    for fine in ("aging_max: 200, fair_share_points: 299", "aging_max: 1000, fair_share_points: 0"):
        path = tmp_path / "control.yaml"
        path.write_text(f"policy: {{{fine}}}\n")
        load(ControlSettings, path, {}, {})


def test_a_history_without_bounds_is_refused(tmp_path: Path) -> None:
    message = refused(tmp_path, "history: {keep_days: 0, rows_max: 0}\n")
    assert "keep_days: 0 isn't between 1 and 3650 days" in message
    assert "rows_max" in message


def test_the_password_of_a_stores_address_is_never_shown(tmp_path: Path) -> None:
    assert "hunter2" not in refused(tmp_path, "store: {url: 'mysql://anna:hunter2@db/stoker'}\n")


@pytest.mark.parametrize(
    "line",
    [
        "http: {tls: {}}",
        "jobs: {ended_max: 5}",
    ],
)
def test_a_setting_of_a_later_version_is_refused_and_says_what_there_is_instead(tmp_path: Path, line: str) -> None:
    message = refused(tmp_path, f"{line}\n")
    assert "can't be set: " in message
    assert "nearest" not in message
