"""What users of the systems that Stoker follows type, letter by letter, against a cluster of real processes.

Where their line had another program's name (`gpu-cli`), `stoker` stands in its place and nothing else changed. The rows
of the dgpu dialect are typed by `examples/local/run.sh`, which has a test of its own.
"""

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stoker.wire.client import Client
from tests.programs import skip_without
from tests.real.forks import on_path, requests_to
from tests.real.up_process import UpProcess, environment, until

pytestmark = pytest.mark.timeout(120)

ROOT = Path(__file__).resolve().parents[2]
MVP_BODY = (
    '{"tenant_id":"default","name":"api-job","priority":500,"gpu_count":1,"gpu_memory_mb":16000,"cpu_cores":4,'
    '"memory_mb":32000,"image":"nvidia/cuda:12.0-base"}'
)
MVP_TENANT = (
    '{"name":"research","email":"lab@example.org","organization":"Lab","max_gpus":4,"max_gpu_memory_mb":64000,'
    '"max_cpu_cores":32,"max_memory_mb":128000,"max_concurrent_jobs":2,"priority_tier":"medium"}'
)
CLUSTER_NAMES = "total_gpus, available_gpus, total_nodes, online_nodes, total_jobs, pending_jobs, running_jobs"
TARGETS = "demo test check fmt lint proto coverage bench soak docs images"

Typed = Callable[[str], "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Typed]:
    """`typed(line)` gives the line to bash, with `stoker` and a fake `nvidia-smi` on PATH and a cluster to ask."""
    folder = tmp_path_factory.mktemp("typed")
    programs = folder / "bin"
    programs.mkdir()
    (programs / "nvidia-smi").symlink_to(ROOT / "examples" / "local" / "fake-nvidia-smi")
    asks = on_path(programs / "stoker")
    path = os.pathsep.join((str(programs), os.environ["PATH"]))
    with UpProcess(folder, "--nodes", "2", "--stop-grace", "1") as up, Client(up.url) as client:
        until(lambda: client.status().online_nodes == 2, what="two nodes")
        env = environment(folder, STOKER_SERVER=up.url, PATH=path, API=f"{up.url}/api/v1", COLUMNS="200", **asks)

        def typed(line: str) -> "subprocess.CompletedProcess[str]":
            return subprocess.run(
                ["bash", "-c", line],
                env=env,
                pass_fds=[requests_to()],
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )

        yield typed


def said(typed: Typed, line: str) -> str:
    done = typed(line)
    assert done.returncode == 0, (line, done.stdout, done.stderr)
    return done.stdout


def asked(typed: Typed, words: str) -> tuple[int, dict[str, object]]:
    """A `curl` line: its status and its JSON."""
    skip_without("curl")
    *body, status = said(typed, f"curl -s -w '\\n%{{http_code}}' {words}").splitlines()
    found = json.loads("\n".join(body))
    assert isinstance(found, dict)
    return int(status), found


@pytest.mark.parametrize(
    ("line", "name", "gpus", "priority"),
    [
        ("stoker submit --name test-job --gpus 1 --priority 100 -- nvidia-smi", "test-job", 1, 100),
        ("stoker submit --name test-job --gpus 1 --priority 100", "test-job", 1, 100),
        ("stoker submit --name urgent-training --gpus 2 --priority 1000", "urgent-training", 2, 1000),
    ],
)
def test_a_submit_of_the_mvp_runs_nvidia_smi(typed: Typed, line: str, name: str, gpus: int, priority: int) -> None:
    job_id = said(typed, line).strip()
    said(typed, f"stoker wait {job_id}")
    job = json.loads(said(typed, f"stoker status {job_id} --json"))
    assert (job["name"], job["gpu_count"], job["priority"]) == (name, gpus, priority)
    assert "Tesla V100" in said(typed, f"stoker logs {job_id}")


def test_ten_jobs_are_submitted_by_the_mvps_own_loop_and_listed(typed: Typed) -> None:
    ids = said(typed, "for i in {1..10}; do stoker submit --name job-$i --gpus 1 --priority $((i*100)); done").split()
    assert len(ids) == 10
    said(typed, f"stoker wait {' '.join(ids)}")
    listed = said(typed, "stoker list").splitlines()
    for number, job_id in enumerate(ids, start=1):
        (row,) = [row.split() for row in listed if row.split()[0] == job_id]
        assert row[:5] == [job_id, f"job-{number}", "succeeded", "1", str(number * 100)]


def test_list_by_state_shows_that_state_in_the_words_of_every_dialect(typed: Typed) -> None:
    """The seed ignored it."""
    job_id = said(typed, "stoker submit --name held-back --hold --gpus 1").strip()
    for words, shown in (("held", True), ("PD", True), ("running", False), ("completed", False)):
        rows = said(typed, f"stoker list --state {words} --all").splitlines()[1:]
        assert any(row.split()[0] == job_id for row in rows) is shown, words
    said(typed, f"stoker cancel {job_id}")


def test_get_cancel_and_status_of_the_mvp(typed: Typed) -> None:
    job_id = said(typed, "stoker submit --name long --gpus 1 -- sleep 600").strip()
    until(lambda: "running" in said(typed, f"stoker status {job_id}"), what="it to run")
    assert re.search(r"gpus +8 .*: 1 busy, 7 free", said(typed, "stoker status"))
    assert f"job {job_id} is" in said(typed, f"stoker cancel {job_id}")
    assert typed(f"stoker wait {job_id}").returncode == 143
    assert "cancelled" in said(typed, f"stoker status {job_id}")


def test_the_mvps_body_is_refused_for_its_image_and_accepted_with_a_command(typed: Typed) -> None:
    status, problem = asked(typed, f"-X POST $API/jobs -d '{MVP_BODY}'")
    assert (status, problem["code"]) == (422, "no_container_runtime")
    assert problem["error"] == problem["message"]
    without = MVP_BODY.replace('"image":"nvidia/cuda:12.0-base"', '"command": ["sleep","1"]')
    status, job = asked(typed, f"-X POST $API/jobs -H 'Content-Type: application/json' -d '{without}'")
    assert (status, job["job_id"]) == (201, job["id"])
    said(typed, f"stoker wait {job['id']}")
    assert asked(typed, f"$API/jobs/{job['id']}")[1]["state"] == "succeeded"


def test_the_mvps_list_and_delete_work_by_their_own_paths(typed: Typed) -> None:
    job_id = said(typed, "stoker submit --name to-delete -- sleep 600").strip()
    status, found = asked(typed, '"$API/jobs?tenant_id=default&state=&limit=50&offset=0"')
    assert status == 200
    assert job_id in [job["id"] for job in found["jobs"]]  # type: ignore[attr-defined]  # a list
    assert asked(typed, f"-X DELETE $API/jobs/{job_id}")[0] == 200
    assert typed(f"stoker wait {job_id}").returncode == 143
    status, found = asked(typed, '"$API/jobs?state=completed&limit=50&offset=0"')
    assert {job["state"] for job in found["jobs"]} <= {"succeeded"}  # type: ignore[attr-defined]  # a list
    status, found = asked(typed, '"$API/jobs?state=failed&tenant_id=default"')
    assert job_id not in [job["id"] for job in found["jobs"]]  # type: ignore[attr-defined]  # a list


def test_the_cluster_status_and_both_health_paths_answer_by_the_mvps_names(typed: Typed) -> None:
    status, found = asked(typed, "$API/cluster/status")
    assert status == 200
    assert all(isinstance(found[name], int) for name in CLUSTER_NAMES.split(", "))
    assert (found["total_gpus"], found["total_nodes"], found["online_nodes"]) == (8, 2, 2)
    for path in ("$STOKER_SERVER/health", "$API/health"):
        assert asked(typed, path)[1]["status"] == "ok"


def test_dgpus_gpus_and_quota_answer_and_its_put_changes_both_shares(typed: Typed) -> None:
    """Its own was 0 and 0 until somebody put it."""
    status, gpus = asked(typed, "$API/gpus")
    assert (status, gpus["total"]) == (200, 8)
    status, quota = asked(typed, "$API/quota")
    assert (status, quota["total_gpus"]) == (200, 8)
    for pool, guaranteed in (("online", 6), ("batch", 2)):
        found = quota[pool]
        assert isinstance(found, dict)
        assert found["quota"] == found["guaranteed"] == guaranteed
        assert {"used", "available", "borrowed", "free"} <= found.keys()
    status, quota = asked(typed, """-X PUT $API/quota -d '{"online_percent":0.6}'""")
    assert (status, quota["online_percent"], quota["batch_percent"]) == (200, 0.6, 0.4)
    assert asked(typed, "$API/quota")[1] == quota
    status, problem = asked(typed, """-X PUT $API/quota -d '{"online_percent":60}'""")
    assert (status, problem["code"], problem["error"]) == (400, "bad_share", problem["message"])
    said(typed, "stoker quota set --online-percent 0.7")
    assert "70 %" in said(typed, "stoker quota show")


def test_the_mvps_tenant_is_made_by_its_own_bytes_and_its_jobs_are_held_to_it(typed: Typed) -> None:
    """Its command line left out GPU memory and jobs, its server took zero, and refused every job."""
    status, tenant = asked(typed, f"-X POST $API/tenants -H 'Content-Type: application/json' -d '{MVP_TENANT}'")
    assert (status, tenant["id"], tenant["tenant_id"]) == (201, "research", "research")
    sent = json.loads(MVP_TENANT)
    assert {name: tenant[name] for name in sent} == sent
    assert asked(typed, "$API/tenants/research") == (200, tenant)
    status, found = asked(typed, "$API/tenants")
    assert "default" in [each["name"] for each in found["tenants"]]  # type: ignore[attr-defined]  # a list
    body = MVP_BODY.replace('"image":"nvidia/cuda:12.0-base"', '"command": ["true"]').replace("default", "research")
    status, job = asked(typed, f"-X POST $API/jobs -d '{body}'")
    assert (status, job["tenant"]) == (201, "research")
    said(typed, f"stoker wait {job['id']}")
    status, problem = asked(typed, f"-X POST $API/jobs -d '{body.replace('research', 'nobody')}'")
    assert (status, problem["code"]) == (422, "unknown_tenant")


def test_the_mvps_create_tenant_makes_one_whose_jobs_run_at_its_priority(typed: Typed) -> None:
    """Its own made one without GPU memory, that could never run a job."""
    assert said(typed, "stoker tenant create ml-team --max-gpus 10 --priority high").startswith("tenant ml-team")
    tenant = json.loads(said(typed, "stoker tenant show ml-team --json"))
    assert (tenant["max_gpus"], tenant["priority_tier"], tenant["max_gpu_memory_mb"]) == (10, "high", None)
    job_id = said(typed, "stoker submit --tenant ml-team --name test-job --gpus 1").strip()
    said(typed, f"stoker wait {job_id}")
    job = json.loads(said(typed, f"stoker status {job_id} --json"))
    assert (job["state"], job["tenant"], job["priority"]) == ("succeeded", "ml-team", 1000)
    refused = typed("stoker submit --tenant ml-team --gpus 6 --tasks 2 -- true")
    assert (refused.returncode, refused.stdout, "over_tenant_limit" in refused.stderr) == (4, "", True)


@pytest.mark.parametrize("target", TARGETS.split())
def test_every_make_target_is_there_and_help_names_it(target: str) -> None:
    """A dry run: what each does has tests of its own, or takes minutes."""
    make = ["make", "--silent", "--no-print-directory"]
    dry = subprocess.run([*make, "-n", target], cwd=ROOT, capture_output=True, text=True, check=False)
    assert dry.returncode == 0, dry.stderr
    assert dry.stdout.strip(), f"make {target} would do nothing"
    helped = subprocess.run([*make, "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert re.search(rf"^make {target} ", helped, re.MULTILINE)
