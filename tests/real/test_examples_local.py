"""The examples that the documents point at run, by the very script that people start."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs import needs

ROOT = Path(__file__).resolve().parents[2]
LOCAL = ROOT / "examples" / "local"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@needs("curl", "pgrep")
@pytest.mark.timeout(180)
def test_the_local_example_starts_both_daemons_and_ends_with_nothing_left(tmp_path: Path) -> None:
    stoker = Path(sys.executable).with_name("stoker")
    environment = {
        **os.environ,
        "STOKER": str(stoker),
        "HTTP_PORT": str(free_port()),
        "GRPC_PORT": str(free_port()),
        "NODE_PORT": str(free_port()),
        "DATA": str(tmp_path),
    }
    script = str(LOCAL / "run.sh")
    done = subprocess.run(
        ["sh", script], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=170, check=False
    )
    said = f"{done.stdout}\n{done.stderr}"
    assert done.returncode == 0, said
    assert "Tesla V100-SXM2-32GB" in said
    assert "trains on 2 GPUs: GPU-00000000" in said
    assert '"error"' in said
    left = subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, text=True, check=False).stdout.split()
    assert left == [], "the example left processes running"


def test_the_fake_nvidia_smi_lists_four_v100() -> None:
    said = subprocess.run(
        [str(LOCAL / "fake-nvidia-smi"), "--query-gpu=index,name,memory.total", "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.splitlines() == [f"{index}, Tesla V100-SXM2-32GB, 32768" for index in range(4)]
