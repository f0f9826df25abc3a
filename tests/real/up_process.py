"""`stoker up` as a process of its own on free loopback ports, and a search for whatever it leaves behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar

from tests.real.control_process import free_port, pause
from tests.real.forks import SRC, Started, ran_text, started

START_S_MAX: Final = 60.0
STOP_S_MAX: Final = 40.0

Found = TypeVar("Found")


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Ours from the working tree, temporary files below `folder`, and no server or token from outside."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("STOKER")}
    ours = {
        "PYTHONPATH": str(SRC),
        "TMPDIR": str(folder),
        "XDG_CONFIG_HOME": str(folder),
        "XDG_STATE_HOME": str(folder),
    }
    return {**inherited, **ours, **more}


def stoker(*words: str) -> list[str]:
    return [sys.executable, "-m", "stoker", *words]


def until(look: Callable[[], Found | None], patience_s: float = 30.0, what: str = "it") -> Found:
    """The first answer that is neither None nor False."""
    began = time.monotonic()
    while time.monotonic() < began + patience_s:
        found = look()
        if found is not None and found is not False:
            return found
        pause(began)
    raise AssertionError(f"waited {patience_s} s in vain for {what}")


def left_behind(folder: Path) -> list[str]:
    """Processes that run in `folder`, were given it, inherited it, or write into it: agents, runners, jobs."""
    mark = str(folder).encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                words = (entry / "cmdline").read_bytes()
                writes = os.readlink(entry / "fd" / "1")
                seen = words + (entry / "environ").read_bytes() + f"{os.readlink(entry / 'cwd')}\n{writes}".encode()
            except OSError:
                continue
            if mark in seen and words:
                found.append(f"{entry.name} {words.replace(bytes(1), b' ').decode(errors='replace')}> {writes}")
    return found


class UpProcess:
    """Started on entry; on exit it must end by itself, and is killed if it doesn't."""

    def __init__(
        self, folder: Path, *flags: str, data_dir: Path | None = None, env: Mapping[str, str] | None = None
    ) -> None:
        self.folder = folder
        self._env = env or {}
        self.http_port, self.grpc_port = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.http_port}"
        where = ("--data-dir", str(data_dir)) if data_dir else ()
        ports = ("--http-port", str(self.http_port), "--grpc-port", str(self.grpc_port))
        self._command = stoker("up", *ports, *where, *flags)
        self.log = folder / f"up-{self.http_port}.log"
        self.process: Started

    def __enter__(self) -> Self:
        with self.log.open("wb") as words:
            env = environment(self.folder, **self._env)
            self.process = started(self._command, out=words, env=env, new_session=True, forks=True)
        try:
            until(self._is_up, START_S_MAX, f"stoker up: {self.said}")
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise
        return self

    def _is_up(self) -> bool:
        assert self.process.poll() is None, self.said
        return "Ctrl-C ends it." in self.said

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, at: TracebackType | None) -> None:
        if fault is not None:
            fault.add_note(f"stoker up ({self.process.poll()}): {self.said[-2_000:]}")
        if self.process.poll() is None:
            self.stop()

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Its exit status."""
        self.process.send_signal(number)
        try:
            return self.process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"stoker up did not end: {self.said}") from None


def run(folder: Path, *words: str, env: Mapping[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    """One `stoker` command, to its end."""
    return ran_text(stoker(*words), env=environment(folder, **(env or {})), cwd=folder)
