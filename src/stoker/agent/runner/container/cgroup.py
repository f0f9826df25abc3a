"""Cgroup of a task that is a container: the engine makes the container's own inside it.

An engine with the `cgroupfs` driver is given a path, below which it makes a folder in every hierarchy of the machine,
also in those that the runner doesn't use. So all folders of such a task have one path, and the end of all of them is
the end of the container. The client, which is no part of the job, is in a folder `client` beside the container's; in
version 1 it is in no other hierarchy than that of the tree, so it takes nothing of the job's memory there.

Where the agent sees only a part of a hierarchy (it is itself in a container), its paths aren't the engine's, and where
systemd makes the cgroups the engine takes no path: then there is none of these, and the container's processes are found
by their mark.
"""

from __future__ import annotations

import os
from contextlib import suppress

from stoker.agent.runner.files import write_file
from stoker.agent.runner.process.cgroup import TaskCgroup
from stoker.agent.runner.process.procfs import read_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from stoker.agent.runner.process.cgroup import Cgroups

CLIENT_MB: Final = 32
"""Version 2 counts the client with the job: it has so much more than the job's limit, which the container keeps."""
CLIENT_PIDS: Final = 16
_CLIENT: Final = "client"
_V2: Final = "version 2"
"""In the place of the controllers of such a hierarchy."""


class ContainerCgroup(TaskCgroup):
    """Cgroup of one container and its client."""

    __slots__ = ("_memory", "_pids", "path")

    def __init__(self, path: str, tree: str, others: dict[str, str], memory_mb: int, pids_max: int) -> None:
        """`path` within each hierarchy; `tree`: the folder there that holds the tree; `others` by controller."""
        folders = [tree, *dict.fromkeys(folder for folder in others.values() if folder != tree)]
        super().__init__(folders)
        self.memory_mb = memory_mb
        self.path = path
        self._memory = others.get("memory", tree)
        self._pids = (others.get("pids", tree), pids_max)

    def make(self) -> None:
        """Make the folder of the tree, that of the client inside it, and those that have limits. Raises OSError."""
        tree, (pids, pids_max) = self.folders[0], self._pids
        client = f"{tree}/{_CLIENT}"
        for folder in dict.fromkeys((tree, client, pids, self._memory)):
            with suppress(FileExistsError):
                os.mkdir(folder)
        if os.path.exists(f"{client}/tasks"):
            self._files.append(f"{client}/tasks")
        else:
            self.born_in = client
        if pids_max and os.path.exists(f"{pids}/pids.max"):
            write_file(f"{pids}/pids.max", str(pids_max + CLIENT_PIDS))
        if self.memory_mb:
            self._limit_memory(self._memory)

    def kill(self, *, sparing: bool = False) -> None:
        """Kill all that is in it now. `sparing`: but for the client, which has last words of the job to copy."""
        if not sparing:
            super().kill()
            return
        for folder in self.folders:
            with suppress(OSError):
                TaskCgroup([inner for inner in _inside(folder) if not inner.endswith(f"/{_CLIENT}")]).kill()

    def memory(self) -> tuple[bool, int]:
        """Return whether the limit killed anything, as far as it can be read here, and the peak in MiB."""
        if not self.memory_mb:
            return False, 0
        killed, peak_mb = self._memory_of(self._memory)
        return killed, min(peak_mb, self.memory_mb)

    def _limit_memory(self, folder: str) -> None:
        limit_mb, is_v2 = self.memory_mb, os.path.exists(f"{folder}/memory.max")
        self.memory_mb += CLIENT_MB * is_v2
        try:
            super()._limit_memory(folder)
        finally:
            self.memory_mb = limit_mb


def container_cgroup(cgroups: Cgroups, name: str, memory_mb: int, pids_max: int) -> ContainerCgroup | None:
    """Return the group of a container, which isn't made yet; None = an engine can't be given one here."""
    if cgroups.tree is None:
        return None
    mounts = _mounts()
    tree = cgroups.tree.folder(name)
    point = max((point for point, _ in mounts if tree.startswith(f"{point}/")), key=len, default="")
    if not point:
        return None
    path = tree[len(point) :]
    others = {controller: f"{place}{path}" for place, controllers in mounts for controller in controllers}
    return ContainerCgroup(path, tree, others, memory_mb, pids_max)


def _mounts() -> list[tuple[str, list[str]]]:
    """Return each mounted hierarchy with its controllers; none where one is mounted in part only.

    Source: proc_pid_mountinfo(5). A hierarchy of version 2 has its controllers in a file of its own.
    """
    found: list[tuple[str, list[str]]] = []
    for line in read_file("/proc/self/mountinfo").decode("utf-8", "surrogateescape").split("\n"):
        words = line.split()
        kind = words[words.index("-") + 1] if "-" in words else ""
        if kind not in ("cgroup", "cgroup2"):
            continue
        if words[3] != "/":
            return []
        names = words[-1].split(",") if kind == "cgroup" else [_V2]
        found.append((words[4], [name for name in names if name not in ("rw", "ro")]))
    return found


def _inside(folder: str) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
