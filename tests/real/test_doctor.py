"""`stoker doctor` with real processes: what hangs is bounded, and what serves is looked at."""

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any, Final

import pytest

from tests.real.control_process import ControlProcess, free_port
from tests.real.up_process import UpProcess, run, stoker, until

pytestmark = pytest.mark.real

_HANGS: Final = """
import sys, time
from stoker.cli.doctor.bounded_check import run_check
from stoker.cli.doctor.finding import Check, fine

def hangs():
    yield fine("never told")
    time.sleep(600)

def breaks():
    raise ZeroDivisionError("one by none")
    yield

def dies():
    import os, signal
    os.kill(os.getpid(), signal.SIGKILL)
    yield

def talks():
    print("noise on stdout")
    print("noise on stderr", file=sys.stderr)
    yield fine("x" * 200_000)

for name, look in (("hangs", hangs), ("breaks", breaks), ("dies", dies), ("talks", talks)):
    for found in run_check(Check(name, look, seconds=0.5)):
        print(found.check, found.level.value, found.what[:60], len(found.what))
"""


def doctor(folder: Path, *words: str, env: dict[str, str] | None = None) -> tuple[int, dict[str, Any]]:
    done = run(folder, "doctor", *words, "-o", "json", env=env)
    assert done.stderr == ""
    answer: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, answer


def of(answer: dict[str, Any], check: str) -> list[tuple[str, str]]:
    return [(each["level"], each["what"]) for each in answer["findings"] if each["check"] == check]


def test_h1_h2_h3_a_check_that_hangs_breaks_dies_or_talks_is_bounded_and_told() -> None:
    began = time.monotonic()
    done = subprocess.run([stoker()[0], "-c", _HANGS], capture_output=True, text=True, timeout=30, check=True)
    assert time.monotonic() - began < 15
    assert done.stderr == ""
    hung, broke, died, talked = done.stdout.splitlines()
    assert hung.startswith("hangs error no answer within 0.5 s")
    assert broke.startswith("breaks error the check itself broke: ZeroDivisionError('one by none')")
    assert died.startswith("dies error the check itself broke: it was killed")
    assert talked == f"talks ok {'x' * 60} 200000"


def test_a_good_file_on_a_good_folder_ends_with_nothing_in_error_and_leaves_no_trace(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    path = tmp_path / "control.yaml"
    path.write_text(f"data_dir: {data}\nhttp: {{port: {free_port()}}}\ngrpc: {{port: 0}}\n")
    status, answer = doctor(tmp_path, "-c", str(path))
    assert (status, answer["error"]) == (0, 0)
    assert "median of" in of(answer, "disk_sync")[0][1]
    assert list(data.iterdir()) == []


def test_every_fault_of_the_settings_is_told_beside_what_else_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "control.yaml"
    path.write_text("http: {port: eighty}\nlevle: x\nfailover: {profile: quick}\n")
    status, answer = doctor(tmp_path, "-c", str(path))
    assert status == 1
    assert len(of(answer, "settings")) == 3
    assert of(answer, "python") != []


def test_a_taken_port_is_told_with_who_has_it(tmp_path: Path) -> None:
    with ControlProcess(tmp_path / "d") as other:
        path = tmp_path / "control.yaml"
        path.write_text(f"data_dir: {tmp_path / 'mine'}\nhttp: {{port: {other.http_port}}}\n")
        status, answer = doctor(tmp_path, "-c", str(path))
        assert status == 1
        ((level, what),) = of(answer, "http_port")
        assert level == "error"
        assert f"process {other.pid} " in what
        # Of the one that runs from this very folder the ports are its own.
        path.write_text(f"data_dir: {other.folder}\nhttp: {{port: {other.http_port}}}\ngrpc: {{port: 0}}\n")
        status, answer = doctor(tmp_path, "-c", str(path), "--server", other.url, env=other.environ)
        assert (of(answer, "http_port")[0][0], of(answer, "server")[0][0]) == ("ok", "ok")
        assert any(f"in use by process {other.pid}" in what for _, what in of(answer, "data_dir"))
        # A cluster without nodes is no error, and nobody may think it fine.
        assert of(answer, "nodes") == [("warning", "no node has joined: every job waits")]
        assert status == 0


def test_nobody_at_the_address_is_one_error_and_the_rest_is_not_asked(tmp_path: Path) -> None:
    status, answer = doctor(tmp_path, "--server", f"http://127.0.0.1:{free_port()}")
    assert status == 1
    assert [each["check"] for each in answer["findings"]] == ["server"]


def test_a_cluster_that_runs_is_healthy_and_said_to_be_line_by_line(tmp_path: Path) -> None:
    with UpProcess(tmp_path, "--nodes", "1", "--gpus-per-node", "1") as up:
        env = {"STOKER_SERVER": up.url}
        joined = ("ok", "1 node: 1 ready")
        # What else is said of nodes is of this machine, such as one on which no cgroup can be made.
        until(lambda: of(doctor(tmp_path, env=env)[1], "nodes")[:1] == [joined], what="a node that is ready")
        status, answer = doctor(tmp_path, env=env)
        assert (status, answer["error"]) == (0, 0)
        lines = run(tmp_path, "doctor", env=env).stdout.splitlines()
        assert lines[0].startswith("ok       server ")
        assert lines[-1].endswith(" 0 errors")
        assert run(tmp_path, "doctor", "-c", "/nowhere.yaml", "--kind", "agent", env=env).returncode == 1


def test_the_settings_that_hold_are_printed_with_where_each_came_from(tmp_path: Path) -> None:
    path = tmp_path / "control.yaml"
    path.write_text("http: {port: 1}\n")
    words = ("doctor", "--settings", "-c", str(path), "--set", "grpc.port=2")
    done = run(tmp_path, *words, env={"STOKER__LOG__LEVEL": "debug"})
    told = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()}
    assert told["http.port"] == ["1", f"{path}:1"]
    assert told["grpc.port"] == ["2", "flag", "grpc.port"]
    assert told["log.level"] == ["debug", "STOKER__LOG__LEVEL"]
    assert told["history.keep_days"] == ["365", "default"]
    rows = json.loads(run(tmp_path, *words, "-o", "json").stdout)
    assert {"key": "grpc.port", "value": 2, "origin": "flag grpc.port"} in rows


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("doctor", "--settings", "--set", "http.prot=1"), "http.prot isn't a setting (nearest: http.port)"),
        (("control", "--set", "http.port"), "is not KEY=VALUE"),
        (("agent", "--set", "node.name=a", "--set", "node.name=b"), "'node.name' is given twice"),
        (("control", "--set", "failover.enabled=true"), "failover.marker: it is empty"),
        (("control", "--set", "gpu.script=x"), "gpu.script is a setting of `stoker agent`"),
    ],
)
def test_a_setting_on_the_command_line_that_cannot_be_is_refused(
    tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    done = run(tmp_path, *words)
    assert done.returncode == 2
    assert said in done.stderr


def test_another_accounts_folder_is_told_with_both_names(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    data = tmp_path / "data"
    data.mkdir()
    os.chown(data, 65_534, 65_534)
    path = tmp_path / "control.yaml"
    path.write_text(f"data_dir: {data}\nhttp: {{port: 0}}\ngrpc: {{port: 0}}\n")
    _, answer = doctor(tmp_path, "-c", str(path))
    assert any(level == "warning" and "belongs to nobody" in what for level, what in of(answer, "data_dir"))
