"""A PostgreSQL server of the tests' own: real processes on a socket in a temporary folder.

`initdb` refuses root, so as root everything runs as the account `postgres`; that one must be able to reach the folder.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ACCOUNT: Final = "postgres"


def programs() -> Path | None:
    """The folder of the newest server's programs; None when there is none."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    beside = shutil.which("initdb")
    return Path(beside).resolve().parent if beside else None


class Server:
    """One server. `fsync` is on: what is tested is durability."""

    def __init__(self, folder: Path) -> None:
        bin_ = programs()
        assert bin_ is not None, "no PostgreSQL is installed (Debian: apt-get install postgresql)"
        self.bin = bin_
        self.folder = folder
        self.data = folder / "data"
        self.port = 5432

    def url(self, database: str) -> str:
        return f"postgresql://{ACCOUNT}@/{database}?host={self.folder}&port={self.port}"

    def make(self) -> None:
        self._run(
            "initdb", "-A", "trust", "-U", ACCOUNT, "-E", "UTF8", "--locale=C.UTF-8", "--no-sync", "-D", self.data
        )

    def start(self, *settings: str, tries: int = 40) -> None:
        """A server that was killed may be in its own way for two seconds."""
        options = f"-k {self.folder} -c listen_addresses='' " + " ".join(f"-c {each}" for each in settings)
        for turn in range(tries):
            done = self._try("pg_ctl", "-w", "-D", self.data, "-l", self.folder / "log", "-o", options, "start")
            if done.returncode == 0:
                return
            if turn == tries - 1:
                raise AssertionError((self.folder / "log").read_text()[-2_000:] + done.stdout)
            time.sleep(0.1)

    def stop(self, mode: str = "fast") -> None:
        self._run("pg_ctl", "-w", "-D", self.data, "-m", mode, "stop")

    def kill(self) -> None:
        """kill -9 of the postmaster; its children notice and end themselves."""
        os.kill(self.pid, signal.SIGKILL)

    @property
    def pid(self) -> int:
        return int((self.data / "postmaster.pid").read_text().split()[0])

    def database(self, name: str) -> str:
        """A new, empty database; its URL."""
        self.sql(ACCOUNT, f"CREATE DATABASE {name}")
        return self.url(name)

    def sql(self, database: str, statement: str) -> str:
        done = self._run("psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-c", statement, self.url(database))
        return done.stdout.strip()

    def _run(self, program: str, *words: str | Path) -> "subprocess.CompletedProcess[str]":
        done = self._try(program, *words)
        assert done.returncode == 0, f"{program}: {done.stdout}"
        return done

    def _try(self, program: str, *words: str | Path) -> "subprocess.CompletedProcess[str]":
        line: Sequence[str] = [str(self.bin / program), *map(str, words)]
        if os.geteuid() == 0:
            line = ["setpriv", f"--reuid={ACCOUNT}", f"--regid={ACCOUNT}", "--clear-groups", *line]
        # A file, since the server that pg_ctl leaves behind would hold a pipe open.
        with tempfile.TemporaryFile("w+") as said:
            code = subprocess.run(
                line, cwd="/", stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT, check=False
            ).returncode
            said.seek(0)
            return subprocess.CompletedProcess(line, code, said.read())


@contextmanager
def server() -> Iterator[Server]:
    """A new one, started; gone at the end."""
    # Not pytest's folder, whose parents are closed to the account, and a short path: a socket lies in it.
    folder = Path(tempfile.mkdtemp(prefix="stoker-pg-"))
    try:
        if os.geteuid() == 0:
            shutil.chown(folder, ACCOUNT, ACCOUNT)
        made = Server(folder)
        made.make()
        made.start()
        try:
            yield made
        finally:
            if (made.data / "postmaster.pid").exists():
                made.stop("immediate")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
