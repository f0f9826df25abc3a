"""Checks of the accounts under which jobs would run here.

Source: capabilities(7) for the numbers of the bits.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from stoker.agent.settings import AgentSettings
from stoker.cli.doctor.finding import Check, CheckResult, doubtful, fine, wrong
from stoker.cli.doctor.processes import account

_WANTED: Final = {
    "CAP_CHOWN": 0,
    "CAP_DAC_OVERRIDE": 1,
    "CAP_KILL": 5,
    "CAP_SETGID": 6,
    "CAP_SETUID": 7,
    "CAP_SYS_PTRACE": 19,
}
"""To become another user, give it its folders, end its processes, and tell by their environment whose they are."""


class Self(NamedTuple):
    """The account and rights of the process that checks."""

    uid: int
    capabilities: int
    """Bits."""


def checks(settings: AgentSettings) -> list[Check]:
    allow_root = settings.executor.allow_root
    return [Check("users", lambda: users(_self(), allow_root=allow_root, data_dir=settings.data_dir))]


def users(me: Self, *, allow_root: bool, data_dir: Path) -> Iterator[CheckResult]:
    if me.uid != 0:
        yield fine(f"an agent of this account runs every job as {account(me.uid)}, whatever user the job names")
        return
    missing = [name for name, bit in _WANTED.items() if not me.capabilities >> bit & 1]
    closed = _closed_above(data_dir)
    if missing:
        words = f"root lacks {', '.join(missing)} here, and can't run jobs as their users and look after them"
        yield wrong(words, "give the agent's unit or container these capabilities, or run it as another account")
    if closed:
        words = f"{closed} lets no other account through, so jobs can't reach their own folders in {data_dir}"
        yield wrong(words, f"chmod o+x {closed}, or name another data_dir")
    if allow_root:
        words = "executor.allow_root is true: whoever may submit a job without a user may do anything on this machine"
        yield doubtful(words, "set it to false, and give people tokens with --user")
    elif not missing and not closed:
        yield fine("an agent of root runs each job as its own user, and none as root")


def _self() -> Self:
    lines = Path("/proc/self/status").read_text().splitlines()
    bits = next((line.split()[1] for line in lines if line.startswith("CapEff:")), "0")
    return Self(os.geteuid(), int(bits, 16))


def _closed_above(path: Path) -> str:
    """A folder on the way to `path` that lets nobody through. Empty = there is none."""
    for folder in reversed(path.absolute().parents):
        try:
            if not folder.stat().st_mode & stat.S_IXOTH:
                return str(folder)
        except OSError:  # it isn't there yet; the agent makes it
            return ""
    return ""
