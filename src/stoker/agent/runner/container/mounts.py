"""Checks of what a container may see of its node.

They are made on the node, by a process that has become the job's user: what that user can't reach isn't mounted.

Rules: H1  a folder or file is mounted only if it lies, once every link on its way has been followed, in a folder that
           the node allows
       H2  none that holds the socket of a container engine or the agent's own data is, nor what lies in these
       H3  a folder that the node allows for reading only is mounted for reading only
       H4  a target is an absolute path, named once, and not one that the engine fills itself
       H5  a working directory is mounted where it is, if the node allows it; one that only the image has is the
           image's; one that the node has and doesn't allow is refused, since the job would find another
       H6  the device nodes of a fabric (InfiniBand, RoCE) that the user may use are there

Limits: between the check and the mount a user may put a link in the place of what was checked. The container runs as
        that user, without capabilities and without a way to gain any, so it can open nothing there that its user
        couldn't open outside.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress

from stoker.agent.runner.process.account import CannotStart, error_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Final

    from stoker.agent.runner.protocol import MountFields

_FILLED: Final = ("/proc", "/sys", "/dev", "/run/secrets")
"""H4."""
_ENGINES: Final = (
    "/run/docker.sock", "/run/containerd", "/run/podman", "/run/crio", "/run/docker", "/var/lib/docker",
    "/var/lib/containerd", "/var/lib/containers",
)  # fmt: skip
_READ_ONLY: Final = ":ro"
FABRIC: Final = "/dev/infiniband"
_DEVICES_MAX: Final = 256


class AllowedMounts:
    """Paths of one node that its containers may be shown, and those that they never are."""

    def __init__(self, allowed: Iterable[str], hidden: Iterable[str]) -> None:
        """`allowed`: paths, with `:ro` behind those for reading only; `hidden`: paths never to be seen."""
        self._allowed = [(os.path.realpath(path.removesuffix(_READ_ONLY)), path) for path in allowed]
        self._hidden = [os.path.realpath(path) for path in (*hidden, *_ENGINES)]

    def checked(self, mount: MountFields) -> MountFields:
        """Return the mount with the path that it really is (H1 to H3). Raises CannotStart."""
        source, target = mount["source"], _target(mount["target"])
        if not source.startswith("/"):
            raise CannotStart(f"the mount of {source[:200]!r} isn't of an absolute path of the node")
        real = os.path.realpath(source)
        try:
            seen = os.stat(real)
        except OSError as error:
            raise CannotStart(f"{source[:200]} can't be mounted: {error_text(error)}") from error
        said = f"{source[:200]} can't be mounted" + (f" (it is {real[:200]})" if real != source.rstrip("/") else "")
        if not (stat.S_ISDIR(seen.st_mode) or stat.S_ISREG(seen.st_mode)):
            raise CannotStart(f"{said}: it is neither a folder nor a file")
        inside = self._within(real)
        if inside is None:
            names = ", ".join(path for _, path in self._allowed) or "nothing"
            hint = f"this node allows {names[:400]} (executor.docker.mounts_allowed of its agent.yaml)"
            raise CannotStart(f"{said}: {hint}")
        if any(_holds(path, real) or _holds(real, path) for path in self._hidden):
            raise CannotStart(f"{said}: it holds, or is in, what belongs to a container engine or to the agent")
        return {"source": real, "target": target, "read_only": mount["read_only"] or inside.endswith(_READ_ONLY)}

    def workdir(self, folder: str, mounts: Sequence[MountFields]) -> MountFields | None:
        """Return the mount that a working directory wants; None = none (H5). Raises CannotStart."""
        if os.path.normpath(folder) == "/" or any(_holds(each["target"], os.path.normpath(folder)) for each in mounts):
            return None  # each image has a root of its own, and the node's is never shown
        real = os.path.realpath(folder)
        if self._within(real) is not None:
            return self.checked({"source": folder, "target": folder, "read_only": False})
        if os.path.isdir(real):
            raise CannotStart(
                f"the working directory {folder[:200]} is a folder of this node, and containers may not see it "
                "(executor.docker.mounts_allowed of its agent.yaml): have it allowed, or name a folder of the image"
            )
        return None

    def _within(self, real: str) -> str | None:
        """Return the entry of the longest allowed path that holds this one."""
        found = [(path, entry) for path, entry in self._allowed if _holds(path, real)]
        return max(found, key=lambda each: len(each[0]))[1] if found else None


def once_each(mounts: Sequence[MountFields]) -> None:
    """Check that no target is named twice (H4). Raises CannotStart."""
    seen: dict[str, str] = {}
    for mount in mounts:
        if seen.setdefault(mount["target"], mount["source"]) != mount["source"]:
            raise CannotStart(
                f"{mount['target'][:200]} would be {seen[mount['target']][:200]} and {mount['source'][:200]}"
            )


def _target(target: str) -> str:
    path = os.path.normpath(target)
    if not path.startswith("/") or path == "/" or any(_holds(filled, path) for filled in _FILLED):
        raise CannotStart(f"nothing can be mounted at {target[:200]!r} of a container")
    return path


def _holds(folder: str, path: str) -> bool:
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


def fabric_devices(folder: str = FABRIC) -> list[str]:
    """Return the device nodes of a fabric that this process may read and write, in order (H6)."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []  # there is none
    found = []
    for path in [f"{folder}/{name}" for name in names[:_DEVICES_MAX]]:
        with suppress(OSError):
            if stat.S_ISCHR(os.stat(path).st_mode) and os.access(path, os.R_OK | os.W_OK):
                found.append(path)
    return found
