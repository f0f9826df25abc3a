"""Backups and restores by their command lines."""

import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from stoker.wire.backup import BackupHead, read_backup
from tests.real.control_process import ControlProcess
from tests.real.forks import ran

RUN_S_MAX = 60.0


def stoker(*words: object, env: dict[str, str] | None = None, **how: object) -> subprocess.CompletedProcess[bytes]:
    if not how:
        return ran([sys.executable, "-m", "stoker", *map(str, words)], env={**os.environ, **(env or {})})
    return subprocess.run(  # type: ignore[call-overload,no-any-return]  # given by name
        [sys.executable, "-m", "stoker", *map(str, words)],
        env={**os.environ, **(env or {})},
        stdout=how.pop("stdout", subprocess.PIPE),
        stderr=subprocess.PIPE,
        timeout=RUN_S_MAX,
        **how,
    )


def backed_up(control: ControlProcess, path: Path) -> BackupHead:
    done = stoker("backup", path, env=control.environ)
    assert done.returncode == 0, done.stderr
    with path.open("rb") as file:
        return read_backup(file, {})


def restored(backup: Path, folder: Path) -> ControlProcess:
    """A control plane over what was restored, whose tokens are those of the backup. Not started."""
    done = stoker("restore", backup, "--data-dir", folder)
    assert done.returncode == 0, done.stderr
    kept = folder.parent / f"{folder.name}.tokens"
    if not kept.exists():
        shutil.copytree(folder.parent / "data.tokens", kept)
    return ControlProcess(folder)


def refused(done: subprocess.CompletedProcess[bytes], status: int) -> str:
    """The code of one clear error, with a hint and without a traceback."""
    lines = done.stderr.decode().splitlines()
    assert done.returncode == status, done.stderr
    assert [line.partition(":")[0] for line in lines] == ["error", "hint"], lines
    return lines[0].rpartition("[")[2].rstrip("]")


def known_jobs(control: ControlProcess) -> set[int]:
    with control.client() as client:
        return {int(one.id) for one in client.each_job()}


def at_most(size: int) -> Callable[[], None]:
    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return limit
