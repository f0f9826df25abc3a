"""Accounts of this machine for tests that run jobs as other users: made with useradd, and gone afterwards. For root."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("useradd") is None,
    reason="NOT PROVED HERE: only root can make accounts and run jobs as them",
)


class Users:
    """`ann` and `bob`, each with a group of its own and nothing in common; `ann` is also in `team`."""

    def __init__(self, folder: Path) -> None:
        stem = f"stk{os.getpid()}"
        self.folder = folder
        """Anybody may pass through it, and nobody but root may list it."""
        self.ann, self.bob, self.toor, self.team = f"{stem}a", f"{stem}b", f"{stem}r", f"{stem}t"

    def home(self, name: str) -> Path:
        return self.folder / "home" / name


@contextmanager
def made_users() -> Iterator[Users]:
    # pytest's own folders are closed to all other accounts.
    users = Users(Path(tempfile.mkdtemp(prefix="stoker-users-")))
    users.folder.chmod(0o711)
    (users.folder / "home").mkdir(mode=0o755)
    try:
        _run("groupadd", users.team)
        for name, more in ((users.ann, ("-G", users.team)), (users.bob, ())):
            _run("useradd", "-U", *more, "-m", "-d", str(users.home(name)), "-s", "/bin/sh", name)
            users.home(name).chmod(0o700)
        _run("useradd", "-o", "-u", "0", "-g", "0", "-M", "-d", "/", users.toor)
        yield users
    finally:
        for name in (users.ann, users.bob):
            _run("userdel", name, check=False)
        _run("userdel", "-f", users.toor, check=False)
        _run("groupdel", users.team, check=False)
        shutil.rmtree(users.folder, ignore_errors=True)


def uid_of(name: str) -> int:
    return pwd.getpwnam(name).pw_uid


def in_a_child(deed: Callable[[Callable[[bytes], object]], object]) -> tuple[bytes, int]:
    """What `deed` said and how the process in which it ran ended, as waitpid gives it. It may become another user."""
    heard, said = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(heard)
            deed(lambda words: os.write(said, words))
            status = 0
        finally:
            os._exit(status)
    os.close(said)
    with open(heard, "rb") as file:
        words = file.read()
    return words, os.waitpid(pid, 0)[1]


def _run(*words: str, check: bool = True) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0 or not check, f"{words}: {done.stderr}"
