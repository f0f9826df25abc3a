"""A PostgreSQL server of the tests' own: real processes on a socket in a temporary folder.

`initdb` refuses root, so as root everything runs as the account `postgres`; that one must be able to reach the folder.
"""

import atexit
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
STORES: Final = "stores"


def programs() -> Path | None:
    """The folder of the newest server's programs; None when there is none."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    beside = shutil.which("initdb")
    return Path(beside).resolve().parent if beside else None


class Server:
    """One server. `fsync` is on: what is tested is durability."""

    def __init__(self, folder: Path, name: str = "data", port: int = 5432) -> None:
        """`port` is a part of the socket's name, and so any number will do."""
        bin_ = programs()
        assert bin_ is not None, "no PostgreSQL is installed (Debian: apt-get install postgresql)"
        self.bin = bin_
        self.folder = folder
        self.data = folder / name
        self.port = port
        self._has_stores = False

    def url(self, database: str) -> str:
        return f"postgresql://{ACCOUNT}@/{database}?host={self.folder}&port={self.port}"

    def url_with(self, other: "Server", database: str) -> str:
        """Either of them, whichever takes writes."""
        hosts, ports = f"{self.folder},{other.folder}", f"{self.port},{other.port}"
        return f"postgresql://{ACCOUNT}@/{database}?host={hosts}&port={ports}"

    def make(self) -> None:
        """A copy of what `initdb` made for the first one here, which costs a third of making it again."""
        global _pattern
        if _pattern is None:
            _pattern = Server(_own_folder())
            atexit.register(shutil.rmtree, _pattern.folder, ignore_errors=True)
            words = ("-A", "trust", "-U", ACCOUNT, "-E", "UTF8", "--locale=C.UTF-8", "--no-sync")
            _pattern._run("initdb", *words, "-D", _pattern.data)
        self._run("/bin/cp", "-a", _pattern.data, self.data)

    def start(self, *settings: str, tries: int = 40) -> None:
        """A server that was killed may be in its own way for two seconds."""
        options = f"-k {self.folder} -p {self.port} -c listen_addresses='' " + " ".join(
            f"-c {each}" for each in settings
        )
        for turn in range(tries):
            done = self._try("pg_ctl", "-w", "-D", self.data, "-l", self.log, "-o", options, "start")
            if done.returncode == 0:
                return
            if turn == tries - 1:
                raise AssertionError(self.log.read_text()[-2_000:] + done.stdout)
            time.sleep(0.1)

    @property
    def log(self) -> Path:
        return self.data.with_name(f"{self.data.name}.log")

    def stop(self, mode: str = "fast") -> None:
        self._run("pg_ctl", "-w", "-D", self.data, "-m", mode, "stop")

    def kill(self) -> None:
        """kill -9 of the postmaster; its children notice and end themselves."""
        os.kill(self.pid, signal.SIGKILL)

    def is_there(self) -> bool:
        """One that was killed leaves its number behind."""
        try:
            return "State:\tZ" not in Path(f"/proc/{self.pid}/status").read_text()
        except FileNotFoundError:
            return False

    @property
    def pid(self) -> int:
        return int((self.data / "postmaster.pid").read_text().split()[0])

    def copy(self) -> "Server":
        """A replica of this one, started; from now on each commit here waits until it is on that one's disk too."""
        made = Server(self.folder, "copy", self.port + 1)
        source = f"host={self.folder} port={self.port} user={ACCOUNT} application_name=copy"
        self._run("pg_basebackup", "-d", source, "-D", made.data, "-R", "-X", "stream", "-c", "fast", "--no-sync")
        made.start()
        self.sql(ACCOUNT, "ALTER SYSTEM SET synchronous_standby_names = 'copy'")
        self.sql(ACCOUNT, "SELECT pg_reload_conf()")
        for _ in range(400):
            if self.sql(ACCOUNT, "SELECT sync_state FROM pg_stat_replication") == "sync":
                return made
            time.sleep(0.05)
        raise AssertionError(made.log.read_text()[-2_000:])

    def promote(self) -> None:
        """Of a replica: it takes writes when this returns."""
        self._run("pg_ctl", "-w", "-D", self.data, "promote")

    def schema(self, name: str) -> str:
        """A place of its own in the database STORES, which costs less than another database; its URL."""
        if not self._has_stores and not self.sql(ACCOUNT, f"SELECT 1 FROM pg_database WHERE datname = '{STORES}'"):
            self.sql(ACCOUNT, f"CREATE DATABASE {STORES}")
        self._has_stores = True
        self.sql(STORES, f"CREATE SCHEMA {name}")
        return f"{self.url(STORES)}&options=-csearch_path%3D{name}"

    def database(self, name: str) -> str:
        """A new, empty database; its URL."""
        self.sql(ACCOUNT, f"CREATE DATABASE {name}")
        return self.url(name)

    def sql(self, database: str, statement: str) -> str:
        return self.ask(self.url(database), statement)

    def ask(self, url: str, statement: str) -> str:
        done = self._run("psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-c", statement, url)
        return done.stdout.strip()

    def _run(self, program: str, *words: str | Path) -> "subprocess.CompletedProcess[str]":
        done = self._try(program, *words)
        assert done.returncode == 0, f"{program}: {done.stdout}"
        return done

    def _try(self, program: str, *words: str | Path) -> "subprocess.CompletedProcess[str]":
        line: Sequence[str] = [str(self.bin / program), *map(str, words)]  # or an absolute path
        if os.geteuid() == 0:
            line = ["setpriv", f"--reuid={ACCOUNT}", f"--regid={ACCOUNT}", "--clear-groups", *line]
        # A file, since the server that pg_ctl leaves behind would hold a pipe open.
        with tempfile.TemporaryFile("w+") as said:
            code = subprocess.run(
                line, cwd="/", stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT, check=False
            ).returncode
            said.seek(0)
            return subprocess.CompletedProcess(line, code, said.read())


_pattern: Server | None = None


def _own_folder() -> Path:
    """Not pytest's, whose parents are closed to the account, and a short path: a socket lies in it."""
    folder = Path(tempfile.mkdtemp(prefix="stoker-pg-"))
    if os.geteuid() == 0:
        shutil.chown(folder, ACCOUNT, ACCOUNT)
    return folder


@contextmanager
def server() -> Iterator[Server]:
    """A new one, started; gone at the end."""
    folder = _own_folder()
    try:
        made = Server(folder)
        made.make()
        made.start()
        try:
            yield made
        finally:
            for each in (made, Server(folder, "copy", made.port + 1)):
                if each.is_there():
                    each.stop("immediate")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
