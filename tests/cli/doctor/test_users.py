"""What the doctor says of the users that jobs would run as."""

import os
from pathlib import Path

from stoker.cli.doctor import node
from stoker.cli.doctor.finding import Level
from stoker.cli.doctor.node import Self

ALL = (1 << 41) - 1
ANYWHERE = Path("/var/lib/stoker-agent")


def test_an_agent_that_is_root_and_whole_is_fine() -> None:
    (said,) = node.users(Self(0, ALL), allow_root=False, data_dir=ANYWHERE)
    assert said.level is Level.OK
    assert "runs each job as its own user" in said.what


def test_an_agent_of_another_account_says_as_whom_all_jobs_run() -> None:
    (said,) = node.users(Self(os.getuid() or 65_534, 0), allow_root=False, data_dir=ANYWHERE)
    assert (said.level, "whatever user the job names" in said.what) == (Level.OK, True)


def test_root_without_what_it_takes_to_become_somebody_is_wrong() -> None:
    """As in a container."""
    (said,) = node.users(Self(0, ALL & ~(1 << 7) & ~(1 << 19)), allow_root=False, data_dir=ANYWHERE)
    assert said.level is Level.ERROR
    assert "CAP_SETUID, CAP_SYS_PTRACE" in said.what


def test_jobs_as_root_are_doubtful() -> None:
    (said,) = node.users(Self(0, ALL), allow_root=True, data_dir=ANYWHERE)
    assert (said.level, "--user" in said.fix) == (Level.WARNING, True)


def test_a_folder_above_that_lets_nobody_through_is_wrong_and_named(tmp_path: Path) -> None:
    """Root's home, say."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    for above in (tmp_path, *list(tmp_path.parents)[:-1]):
        if not above.stat().st_mode & 1:
            closed = above  # pytest's own; the outermost counts
    (said,) = node.users(Self(0, ALL), allow_root=False, data_dir=closed / "agent")
    assert said.level is Level.ERROR
    assert f"chmod o+x {closed}" in said.fix
