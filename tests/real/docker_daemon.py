"""A Docker engine of the tests' own: a real dockerd over a temporary folder, and an image from scratch.

It is ended by the pid that was started, and leaves no mount and no cgroup behind.
"""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final

import pytest

IMAGE: Final = "stoker/busybox:1"
START_S_MAX: Final = 60.0
_BUSYBOX: Final = ("/bin/busybox", "/usr/bin/busybox")
_APPLETS: Final = (
    "cat", "echo", "env", "false", "head", "id", "ls", "mkdir", "nproc", "pwd", "seq", "sh", "sleep", "stat", "touch",
    "tr", "true", "wc", "dd", "kill", "ps", "ip", "stty", "grep", "sort", "uniq", "setsid", "nohup",
)  # fmt: skip


def why_not() -> str:
    """Why no engine can be started here; empty = one can."""
    if os.geteuid() != 0:
        return "only root can start a dockerd"
    missing = [name for name in ("dockerd", "containerd", "runc", "docker") if shutil.which(name) is None]
    if missing or not any(map(os.path.exists, _BUSYBOX)):
        return f"not installed: {', '.join(missing) or 'busybox-static'} (`tools/setup.sh programs`)"
    return ""


needs_docker: Final = pytest.mark.skipif(bool(why_not()), reason=f"NOT PROVED HERE: {why_not()}")


class Daemon:
    """A dockerd."""

    init = True
    """Whether it has an init process for containers."""
    image = IMAGE

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "docker.sock"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    def start(self) -> None:
        none = ("--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-forward=false", "--ip-masq=false")
        words = ["dockerd", *none, "--host", f"unix://{self.socket}", "--data-root", str(self.folder / "data")]
        words += ["--exec-root", str(self.folder / "exec"), "--pidfile", str(self.folder / "dockerd.pid")]
        with (self.folder / "dockerd.log").open("ab") as log:
            self._started(words, log, dict(os.environ))

    def _started(self, words: list[str], log: IO[bytes], env: dict[str, str]) -> None:
        # conmon leaves a file `oom` where its engine was started.
        self._process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, cwd=self.folder
        )
        until = time.monotonic() + START_S_MAX
        while self._docker("version").returncode != 0:
            if self._process.poll() is not None or time.monotonic() > until:
                self.stop()
                said = Path(log.name).read_text(errors="replace")[-400:]
                pytest.skip(f"NOT PROVED HERE: {words[0]} can't be started: {said}")
            time.sleep(0.05)

    def build(self) -> None:
        """Make the image of busybox."""
        root = self.folder / "root"
        for folder in ("bin", "tmp", "etc"):
            (root / folder).mkdir(parents=True)
        (root / "tmp").chmod(0o1777)
        shutil.copy(next(filter(os.path.exists, _BUSYBOX)), root / "bin/busybox")
        for name in _APPLETS:
            (root / "bin" / name).symlink_to("busybox")
        (root / "etc/passwd").write_text("root:x:0:0:root:/:/bin/sh\n")
        changes = ("-c", "ENV PATH=/bin", "-c", 'CMD ["/bin/echo", "its own command"]')
        tar = subprocess.Popen(["tar", "-C", str(root), "-c", "."], stdout=subprocess.PIPE)
        made = self._docker("import", *changes, "-", IMAGE, stdin=tar.stdout)
        assert tar.stdout is not None
        tar.stdout.close()
        assert tar.wait(30) == 0
        assert made.returncode == 0, made.stderr

    def run(self, *words: str) -> str:
        """What `docker` says."""
        done = self._docker(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def containers(self) -> list[str]:
        """The ids of all containers, also of those that have ended."""
        return self.run("ps", "-aq").split()

    def _docker(self, *words: str, stdin: object = subprocess.DEVNULL) -> "subprocess.CompletedProcess[str]":
        command = ["docker", "--host", f"unix://{self.socket}", *words]
        return subprocess.run(command, stdin=stdin, capture_output=True, text=True, timeout=60, check=False)  # type: ignore[call-overload]  # a pipe, or none

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(30)
            self._process = None

    def clean(self) -> None:
        """Unmount what a dockerd leaves, and remove the empty cgroups of its containers."""
        for line in Path("/proc/self/mountinfo").read_text().splitlines()[::-1]:
            point = line.split()[4]
            if point.startswith(f"{self.folder}/"):
                subprocess.run(["umount", "-l", point], check=False)
        for name in ("docker", "libpod_parent"):
            for top in Path("/sys/fs/cgroup").glob(f"*/{name}"):
                for parent, _, _ in os.walk(top, topdown=False):
                    with suppress(OSError):  # another's container is in it
                        Path(parent).rmdir()
        shutil.rmtree(self.folder, ignore_errors=True)


class Podman(Daemon):
    """Podman's service, with runc: crun doesn't take the cgroups that most test machines have."""

    init = False
    image = f"docker.io/{IMAGE}"

    def start(self) -> None:
        configuration = self.folder / "containers.conf"
        configuration.write_text(
            '[containers]\ndefault_ulimits = ["nofile=20000:20000", "nproc=32768:32768"]\n'
            '[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
        )
        words = ["podman", "--storage-driver", "overlay", "--root", f"{self.folder}/data"]
        words += ["--runroot", f"{self.folder}/run", "--tmpdir", f"{self.folder}/tmp"]
        words += ["system", "service", "-t", "0", f"unix://{self.socket}"]
        with (self.folder / "podman.log").open("ab") as log:
            self._started(words, log, {**os.environ, "CONTAINERS_CONF": str(configuration)})


@contextmanager
def podman_engine() -> Iterator[Daemon]:
    """Podman's service with the image, ended and cleaned up afterwards."""
    missing = [name for name in ("podman", "conmon", "runc") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"NOT PROVED HERE: not installed: {', '.join(missing)}")
    with _engine(Podman(Path(tempfile.mkdtemp(prefix="stoker-podman-")))) as daemon:
        yield daemon


@contextmanager
def docker_engine(within: str | None = None) -> Iterator[Daemon]:
    """A dockerd with the image, ended and cleaned up afterwards."""
    with _engine(Daemon(Path(tempfile.mkdtemp(prefix="stoker-docker-", dir=within)))) as daemon:
        yield daemon


@contextmanager
def _engine(daemon: Daemon) -> Iterator[Daemon]:
    daemon.folder.chmod(0o711)
    try:
        daemon.start()
        daemon.build()
        yield daemon
    finally:
        daemon.stop()
        daemon.clean()
