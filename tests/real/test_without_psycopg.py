"""Stoker on a machine where psycopg, which only a `postgresql://` URL needs, isn't installed."""

import subprocess
import sys
from pathlib import Path

import pytest

from stoker.wire.status import status_of

WITHOUT = "import sys; sys.modules['psycopg'] = None; "
URL = "postgresql://stoker@127.0.0.1:1/stoker"
HINT = "pip install 'stoker[postgres]'"


def stoker_without_psycopg(*argv: str) -> "subprocess.CompletedProcess[str]":
    program = f"{WITHOUT}from stoker.cli.main import main; sys.argv[0] = 'stoker'; main()"
    return subprocess.run(
        [sys.executable, "-c", program, *argv], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("several", ["false", "true"])
def test_a_start_on_a_database_is_refused_with_the_extra_to_install(tmp_path: Path, several: str) -> None:
    settings = (f"data_dir={tmp_path / 'data'}", f"store.url={URL}", f"failover.enabled={several}", "failover.name=a")
    flags = [
        word for setting in (*settings, "http.port=0", "grpc.port=0", "tls.mode=off") for word in ("--set", setting)
    ]
    done = stoker_without_psycopg("control", *flags)
    assert done.returncode == status_of("extra_missing").exit == status_of("store_unreachable").exit
    assert "store.url names a PostgreSQL database, and psycopg can't be imported" in done.stderr
    assert HINT in done.stderr
    assert "Traceback" not in done.stderr + done.stdout


def test_the_doctor_finds_it_before_a_start_does(tmp_path: Path) -> None:
    path = tmp_path / "control.yaml"
    path.write_text(f"data_dir: {tmp_path / 'data'}\nstore:\n  url: {URL}\n")
    done = stoker_without_psycopg("doctor", "-c", str(path))
    assert done.returncode == 1
    assert "psycopg can't be imported" in done.stdout
    assert HINT in done.stdout


def test_a_control_plane_with_its_log_in_a_file_and_an_agent_do_without() -> None:
    modules = ("live.main", "live.main_pair", "agent.main", "cli.demo", "cli.wiring.up")
    program = WITHOUT + "; ".join(f"import stoker.{module}" for module in modules)
    subprocess.run([sys.executable, "-c", program], timeout=60, check=True)
