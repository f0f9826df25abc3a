"""Alerts and dashboard ask for metrics, labels and words that there are, and units let daemons do what pages say."""

import json
import re
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from stoker.brain.domain.lifecycle import JobState, NodeState
from stoker.brain.domain.reason import ReasonCode
from stoker.live.settings.control import ControlSettings
from tests.real.pair_process import Pair, until
from tools.reference.telemetry import metric_names, unexplained

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
WORDS = {
    "reason": {code.value for code in ReasonCode},
    "status": {state.value for state in (*NodeState, *JobState)} | {"idle", "busy", "offline", "quarantined"},
    "state": {state.value for state in (*NodeState, *JobState)},
}
"""Label -> the values that it can have."""


@cache
def names() -> frozenset[str]:
    """Every metric, looked for when a test wants it: each worker collects this file."""
    return frozenset(metric_names())


def rules() -> list[dict[str, Any]]:
    told = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yaml").read_text())
    return [rule for group in told["groups"] for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    told: dict[str, Any] = json.loads((DEPLOY / "grafana" / "stoker.json").read_text())
    return told


def expressions() -> list[str]:
    panels = [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]]
    variables = [each["query"]["query"] for each in dashboard()["templating"]["list"] if each["type"] == "query"]
    return [*(rule["expr"] for rule in rules()), *panels, *variables]


@pytest.mark.parametrize("expression", expressions())
def test_every_metric_that_is_asked_for_exists(expression: str) -> None:
    asked = set(re.findall(r"\bstoker_[a-z_]+", expression))
    assert asked <= names()


@pytest.mark.parametrize("expression", expressions())
def test_every_word_that_is_asked_for_is_one_that_the_label_can_have(expression: str) -> None:
    for label, words in re.findall(r'(reason|status|state)\s*!?=~?"([^"]*)"', expression):
        assert set(words.split("|")) <= WORDS[label]


def test_every_alert_says_what_happened_and_what_to_do() -> None:
    for rule in rules():
        assert rule["labels"]["severity"] in ("warning", "critical"), rule["alert"]
        assert {"summary", "description"} <= rule["annotations"].keys(), rule["alert"]
    names = [rule["alert"] for rule in rules()]
    assert len(names) == len(set(names))


def test_the_alerts_that_the_seeds_promise_and_can_be_told_now_are_there() -> None:
    expressions = {rule["alert"]: (rule["expr"], rule.get("for")) for rule in rules()}
    assert expressions["StokerAgentsOffline"] == ('stoker_agent_count{status="unreachable"} > 5', "2m")
    over = "stoker_quota_online_used > 0.9 * stoker_quota_online_limit and stoker_quota_online_limit > 0"
    assert expressions["StokerOnlineQuota"] == (over, "5m")
    assert expressions["StokerJobsFail"][0].endswith("[5m])) > 10")


def test_the_panels_of_the_dashboard_neither_overlap_nor_share_an_id() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24, panel["title"]
        assert panel["description"], panel["title"]
        taken |= cells


SHIPPED = ("README.md", "docs", "deploy", "examples", "proto", "src", "tools")
TOKEN = r"stoker_[a-z0-9]{8}_[A-Za-z0-9_-]{43}"
PASSWORD = r"""\b(?:password|passwd|secret)\b["']?\s*[:=]\s*["']?[^\s"'{$<]"""


def secrets_in(text: str, *, program: bool = False) -> list[str]:
    """Tokens; and passwords, but in a program, which may have a variable of that name."""
    return re.findall(TOKEN if program else f"{TOKEN}|{PASSWORD}", text)


def test_nothing_that_is_shipped_has_a_password_or_a_token_in_it() -> None:
    above = [DEPLOY.parent / name for name in SHIPPED]
    files = [path for each in above for path in ([each] if each.is_file() else each.rglob("*"))]
    kept = [path for path in files if path.is_file() and path.suffix != ".pyc"]
    assert len(kept) > 100
    found = {path.name: secrets_in(path.read_text(errors="replace"), program=path.suffix == ".py") for path in kept}
    assert {name: secrets for name, secrets in found.items() if secrets} == {}


@pytest.mark.parametrize("text", [f"stoker_abcd2345_{'x' * 43}", "password: hunter2", "secret='x'"])
def test_a_secret_would_be_seen(text: str) -> None:
    assert secrets_in(f"- {text}\n")


def test_every_metric_has_a_sentence() -> None:
    assert unexplained() == []


PAIR_PAGE = (DEPLOY.parent / "docs" / "howto" / "set-up-a-pair.md").read_text(encoding="utf-8")


def unit(*names: str) -> dict[str, list[str]]:
    """Every setting of a unit and its drop-ins, with its words in order. Source: systemd.syntax(7)."""
    found: dict[str, list[str]] = {}
    for name in names:
        for key, words in re.findall(r"^(\w+)=(.*)$", (DEPLOY / "systemd" / name).read_text(), re.MULTILINE):
            found[key] = found.get(key, []) + words.split()
    return found


def writable(found: dict[str, list[str]]) -> list[str]:
    """Where a unit with ProtectSystem=strict may write. Source: systemd.exec(5)."""
    assert found["ProtectSystem"] == ["strict"]
    return [*(f"/var/lib/{name}" for name in found["StateDirectory"]), *found.get("ReadWritePaths", [])]


def documented() -> dict[str, Any]:
    """The first settings that the page of a pair shows."""
    (first, *_) = re.findall(r"```yaml\n(.*?)```", PAIR_PAGE, re.DOTALL)
    told: dict[str, Any] = yaml.safe_load(first)
    return told


KEYS = str(ControlSettings(data_dir=Path(documented()["data_dir"])).secret_key_file.parent)


def test_the_unit_of_a_pair_may_write_where_its_page_has_marker_and_data_and_waits_for_the_storage() -> None:
    found = unit("stoker-control.service", "marker.conf")
    assert writable(found) == [documented()["data_dir"], KEYS, documented()["failover"]["marker"]]
    assert found["RequiresMountsFor"] == [documented()["failover"]["marker"]]
    assert "deploy/systemd/marker.conf /etc/systemd/system/stoker-control.service.d/marker.conf" in PAIR_PAGE


STRICT = """
set -e
for kept in "$@"; do
    shift
    [ "$kept" != -- ] || break
    mount --bind "$kept" "$kept"
done
while read -r _ _ _ _ point _; do
    case " $WRITABLE /dev /proc /sys " in *" $point "*) continue ;; esac
    case $point in /dev/* | /proc/* | /sys/*) continue ;; esac
    mount -o remount,bind,ro "$point" 2>/dev/null || true
done </proc/self/mountinfo
exec "$@"
"""


def confined(paths: Sequence[Path]) -> tuple[str, ...]:
    """Words before a command for which all but these folders is read-only, as for a unit with ProtectSystem=strict."""
    kept = [str(path) for path in paths]
    words = ("env", f"WRITABLE={' '.join(kept)}", "unshare", "--mount", "--propagation", "private")
    return (*words, "sh", "-c", STRICT, "sh", *kept, "--")


@pytest.mark.real
@pytest.mark.timeout(120)
@pytest.mark.parametrize("names", [("stoker-control.service", "marker.conf"), ("stoker-control.service",)])
def test_a_pair_confined_as_its_unit_says_becomes_active_and_without_the_drop_in_says_what_it_lacks(
    names: tuple[str, ...], tmp_path: Path
) -> None:
    if subprocess.run([*confined([]), "true"], capture_output=True, check=False).returncode:
        pytest.skip("nothing can be mounted here")
    with Pair(tmp_path / "pair") as pair:
        for half in pair.halves:
            keys = ControlSettings(data_dir=half.folder).secret_key_file.parent
            for made in (half.folder, keys):
                made.mkdir(0o700)
            ours = {documented()["data_dir"]: half.folder, KEYS: keys, documented()["failover"]["marker"]: pair.marker}
            half.prefix = confined([ours[path] for path in writable(unit(*names))])
        if len(names) > 1:
            pair.start()
            return
        half = pair.a
        half.write(pair.settings_of(half))
        half.start()
        until(lambda: "ReadWritePaths=" in half.output(), pair.story)
