"""`make images`: refused in words where it can't work; where STOKER_IMAGE_BASE names a base that is here, for real."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BASE = os.environ.get("STOKER_IMAGE_BASE", "")


def build(**variables: str) -> "subprocess.CompletedProcess[str]":
    script = str(ROOT / "deploy" / "images" / "build.sh")
    return subprocess.run(
        [script], env={**os.environ, **variables}, capture_output=True, text=True, timeout=280, check=False
    )


def test_without_docker_it_says_what_to_install() -> None:
    done = build(DOCKER="no-such-docker")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("images: there is no 'no-such-docker' on PATH\nhint: install Docker")


@pytest.mark.skipif(shutil.which("docker") is None, reason="no docker on PATH")
def test_without_a_daemon_it_says_where_it_looked_for_one(tmp_path: Path) -> None:
    done = build(DOCKER_HOST=f"unix://{tmp_path}/nobody.sock")
    assert done.returncode == 1
    assert "can't reach its daemon" in done.stderr
    assert "hint: " in done.stderr


@pytest.mark.skipif(not BASE, reason="STOKER_IMAGE_BASE names no image with Python 3.11 to build on")
@pytest.mark.timeout(300)
def test_the_image_runs_the_demo_unprivileged_and_without_network() -> None:
    image = f"stoker-test:{os.getpid()}"
    docker = os.environ.get("DOCKER", "docker")
    built = build(BASE=BASE, IMAGE=image)
    assert built.returncode == 0, built.stderr
    try:
        run = [docker, "run", "--rm", "--network=none"]
        who = subprocess.run(
            [*run, "--entrypoint", "id", image, "-u"], capture_output=True, text=True, check=True, timeout=60
        )
        assert who.stdout.strip() == "10001"
        demo = subprocess.run(
            [*run, image, "demo", "--out", "/tmp"], capture_output=True, text=True, check=False, timeout=120
        )
        assert demo.returncode == 0, demo.stdout + demo.stderr
        assert "checks held." in demo.stdout
    finally:
        subprocess.run([docker, "rmi", "--force", image], capture_output=True, check=False, timeout=60)
