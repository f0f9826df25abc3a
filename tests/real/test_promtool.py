"""What is given to Prometheus passes its own checks: alerts, the scrape file, and every metric of a control plane.

Only names that dashboards of earlier systems expect may break its rules of naming; they are listed, and each says so.
"""

import re
import subprocess
import urllib.request
from pathlib import Path

import pytest
import yaml

from tests.programs import skip_without
from tests.real.up_process import UpProcess

pytestmark = pytest.mark.timeout(120)

PROMETHEUS = Path(__file__).resolve().parents[2] / "deploy" / "prometheus"
EXPECTED = {
    "stoker_agent_count",
    *(f"stoker_gpu_{what}total" for what in ("", "busy_", "idle_", "offline_", "quarantined_")),
    "stoker_quota_total",
    *(f"stoker_task_{what}_total" for what in ("pending", "running")),
}
"""Gauges whose names sound like counters, as dashboards of earlier systems have them."""


def promtool(*words: str, told: str = "") -> tuple[int, str]:
    skip_without("promtool")
    done = subprocess.run(["promtool", *words], input=told, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr


def test_prometheus_takes_the_alerts() -> None:
    status, said = promtool("check", "rules", str(PROMETHEUS / "alerts.yaml"))
    assert status == 0, said


def test_prometheus_takes_the_scrape_file_with_the_alerts_beside_it(tmp_path: Path) -> None:
    token = tmp_path / "stoker.token"
    token.write_text("t", encoding="utf-8")
    (tmp_path / "alerts.yaml").write_text((PROMETHEUS / "alerts.yaml").read_text())
    scrape = (PROMETHEUS / "scrape.yaml").read_text().replace("/etc/prometheus/stoker.token", str(token))
    (tmp_path / "prometheus.yml").write_text(scrape)
    status, said = promtool("check", "config", str(tmp_path / "prometheus.yml"))
    assert status == 0, said


def test_the_job_that_the_alerts_speak_of_is_that_of_the_scrape_file() -> None:
    jobs = {each["job_name"] for each in yaml.safe_load((PROMETHEUS / "scrape.yaml").read_text())["scrape_configs"]}
    assert set(re.findall(r'job="([^"]+)"', (PROMETHEUS / "alerts.yaml").read_text())) == jobs


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The metrics of a control plane that has just started."""
    skip_without("promtool")
    with UpProcess(tmp_path_factory.mktemp("up")) as up, urllib.request.urlopen(f"{up.url}/metrics") as answer:
        return str(answer.read().decode())


@pytest.mark.parametrize(
    ("alert", "series", "counts"),
    [
        ("StokerPassesBreak", "stoker_pass_faults_total", 1),
        ("StokerNodeKeyReplaced", "stoker_node_key_replaced_total", 1),
        ("StokerNodesLoseJobs", 'stoker_task_finished_total{status="node_failed"}', 4),
    ],
)
def test_the_first_count_raises_the_alert_that_speaks_of_it(
    alert: str, series: str, counts: int, page: str, tmp_path: Path
) -> None:
    """One fault of a pass told nobody: in a series that begins with its first count nothing has increased."""
    assert f"{series} 0.0" in page.splitlines()

    def firing(minutes: int, samples: list[object]) -> dict[str, object]:
        fires = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})'
        return {"expr": fires, "eval_time": f"{minutes}m", "exp_samples": samples}

    story = {
        "rule_files": [str(PROMETHEUS / "alerts.yaml")],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": series, "values": f"0x5 {counts}x5"}],
                "promql_expr_test": [firing(5, []), firing(8, [{"labels": "{}", "value": 1}])],
            }
        ],
    }
    (tmp_path / "story.yaml").write_text(yaml.safe_dump(story))
    status, said = promtool("test", "rules", str(tmp_path / "story.yaml"))
    assert status == 0, said


def test_every_counter_of_whose_growth_an_alert_speaks_stands_at_zero_from_the_start(page: str) -> None:
    spoken = re.findall(r"increase\((stoker_\w+)(\{.*?\})?\[", (PROMETHEUS / "alerts.yaml").read_text())
    assert len(spoken) == 4
    for name, labels in spoken:
        words = re.findall(r'status=~?"([^"]*)"', labels)
        series = [f'{name}{{status="{word}"}}' for word in words[0].split("|")] if words else [name]
        assert {f"{each} 0.0" for each in series} <= set(page.splitlines())


def test_prometheus_takes_every_metric_but_names_that_dashboards_expect(page: str) -> None:
    _, said = promtool("check", "metrics", told=page)
    faults = [line for line in said.splitlines() if line.strip()]
    assert {line.split()[0] for line in faults} <= EXPECTED, said
    for name in EXPECTED - {"stoker_agent_count"}:
        assert "in spite of the name" in next(line for line in page.splitlines() if line.startswith(f"# HELP {name} "))
